"""From a record back to the specification that it is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kgbench.data import ImportOptions, is_shipped
from kgbench.errors import InputError, LawError
from kgbench.localizers import AbstractLocalizer, create, names
from kgbench.models import catalog
from kgbench.records import Record
from kgbench.records.differing import Differing, differing
from kgbench.runner.job import Job, job_configurations, prepare_job
from kgbench.runner.pairs import Pairs
from kgbench.runner.prompts import job_dataset
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.suites import load_suite, suites
from kgbench.sites import BASELINES
from kgbench.sites.configurations import parse_top

__all__ = ["Places", "argument_text", "job_of", "localizer_of", "specification"]

HINTS: Mapping[str, str] = {
    "weights": "other weights: give the checkpoints with --recipient and --donor",
    "tokenizer": "another tokenizer, or prompts in a chat template (--chat-template)",
    "dataset": "other facts: give the file with --dataset",
    "prompts": "another wording of the prompt",
    "localizer.version": "another version of the method's code",
    "truth": "a plant somewhere else",
    "ranking_version": "another rule of ranking",
    "metric_version": "another version of the metrics",
}
"""What it means that a part of the identity differs, and what to do, where anything can be done."""


@dataclass(frozen=True)
class Places:
    """Where the parts of a run are, as far as the names in its record do not say."""

    localizer: str | None = None
    """A registered name, or `path/to/file.py:Class`."""
    model: str | None = None
    recipient: str | None = None
    donors: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None
    chat_template: bool = False
    dataset: str | None = None
    imports: ImportOptions | None = None


def job_of(record: Record, places: Places, settings: Settings, pairs: Pairs | None = None) -> Job:
    """The job that a record is of, loaded and checked.

    Args:
        record: The record.
        places: Where its parts are.
        settings: How it is to be computed now.
        pairs: Where models are loaded.

    Raises:
        InputError: It cannot be run here: a part is not at hand, or is not the one that the record is of. It says which.
    """
    try:
        job = prepare_job(specification(record, places), settings, pairs)
    except LawError as error:  # of the pair, which says nothing of the record
        raise InputError(f"the pair cannot be run here: {error}") from error
    parts = [
        part
        for part in differing(record.identity, job.identity)
        if not _is_older_metric(record, part)
    ]
    if parts:
        told = "; ".join(f"{part.text()} ({_hint(part.field)})" for part in parts)
        raise InputError(
            f"what this record is of is not at hand (field: in the record | here): {told}"
        )
    return job


def _is_older_metric(record: Record, part: Differing) -> bool:
    """Whether a part is that ties count for the method in the record: all but the ranks of the tied is still comparable."""
    return part.field == "metric_version" and record.identity.ties_count_for_the_target


def specification(record: Record, places: Places) -> Spec:
    """The specification that a record is of, as far as that can be told without loading models.

    Args:
        record: The record.
        places: Where its parts are.

    Raises:
        InputError: A part is not at hand, or no suite gives the record's configurations.
    """
    what = record.identity
    spec = Spec(
        localizer=localizer_of(record, places),
        localizer_args={
            name: argument_text(value) for name, value in what.localizer.parameters.items()
        },
        model=_model(record, places),
        recipient=places.recipient,
        donors=dict(places.donors),
        revision=places.revision,
        chat_template=places.chat_template,
        prompts=tuple(what.prompts),
        limit=what.limit,
        dtype=what.dtype,
        seed=what.seeds[0],
        metric=record.metric,
    )
    spec = _with_facts(spec, record, places)
    return _with_configurations(
        spec, record, create(spec.localizer, spec.localizer_args, spec.seed)
    )


def localizer_of(record: Record, places: Places) -> str:
    """The name or file of a record's localizer.

    Raises:
        InputError: No file is given, and none of the name is installed.
    """
    if places.localizer is not None:
        return places.localizer
    name = record.identity.localizer.name
    if (
        name not in names()
    ):  # nor is it a file, whatever it looks like: no code comes in with a record
        raise InputError(
            f"the method {name!r} is not installed here: install its package, or give --localizer FILE.py:CLASS"
        )
    return name


def _model(record: Record, places: Places) -> str | None:
    if places.model is not None:
        return places.model
    if record.model in catalog.names():
        return record.model
    if places.recipient is None or not places.donors:
        given = ", ".join(f"--donor {name}=PATH" for name in record.identity.weights.donors)
        raise InputError(
            f"the pair {record.model!r} is not in the catalog: give --recipient PATH {given}, or of a plant --model PATH"
        )
    return None


def _with_facts(spec: Spec, record: Record, places: Places) -> Spec:
    """The specification with the record's facts: the file given, the pair's own, or a shipped data set."""
    wanted = record.identity.dataset
    if places.dataset is not None:
        return replace(spec, dataset=places.dataset, imports=places.imports)
    if spec.model is not None and job_dataset(spec).content_hash == wanted.hash:
        return spec
    if not is_shipped(wanted.name):
        raise InputError(
            f"the facts {wanted.name!r} are not shipped: give the file with --dataset FILE"
        )
    return replace(spec, dataset=wanted.name)


def _with_configurations(spec: Spec, record: Record, localizer: AbstractLocalizer) -> Spec:
    """The specification with the suite and the grafts that give the record's configurations.

    Complements come after the grafts that they are of, so that the grafts asked for are the first of all.

    Raises:
        InputError: None does.
    """
    wanted = record.identity.configurations
    ran = [
        label for label in wanted if label not in (*BASELINES, "ALL") and parse_top(label) is None
    ]
    asked = [(), ("ALL",), *(tuple(ran[: n + 1]) for n in range(len(ran)))]
    for name in sorted(
        suites(), key=lambda name: name != Spec.suite
    ):  # of suites that ask the same, the usual one
        suite = load_suite(name)
        if suite.truth != (record.identity.truth is not None):
            continue
        for grafts in asked:
            found = replace(spec, suite=name, grafts=grafts)
            if tuple(job_configurations(found, suite, localizer)) == wanted:
                return found
    raise InputError(
        f"no suite of this version of kgbench gives the configurations of the record: {', '.join(wanted)}"
    )


def argument_text(value: Any) -> str:
    """A parameter as it is given on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(argument_text, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _hint(field: str) -> str:
    return next((hint for part, hint in HINTS.items() if field.startswith(part)), "other settings")
