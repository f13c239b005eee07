"""Run a record again: its specification, all of its facts, or a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.data import ImportOptions, is_shipped
from kgbench.errors import InputError, LawError
from kgbench.localizers import AbstractLocalizer, create, names
from kgbench.models import catalog
from kgbench.progress import Progress
from kgbench.records import Journal, Record, SiteScore
from kgbench.records.identity import identity_differences
from kgbench.runner.job import Job, Pairs, job_configurations, prepare_job
from kgbench.runner.run import measure_job
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party import isolated
from kgbench.runner.workload import job_dataset, load_suite, suites
from kgbench.sites import BASELINES
from kgbench.sites.configurations import parse_top
from kgbench.stats.repetition import Repeated, repeated
from kgbench.version import __version__

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
    """Locations of the parts of a run that the names in its record do not give."""

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
        InputError: A part is missing here, or is not the one of the record; the message names it.
    """
    try:
        job = prepare_job(specification(record, places), settings, pairs)
    except LawError as error:  # of the pair, which says nothing of the record
        raise InputError(f"the pair cannot be run here: {error}") from error
    parts = []
    for part in identity_differences(record.identity, job.identity):
        # With the older rule of ties all but tied ranks is still comparable.
        if part.field != "metric_version" or not record.identity.ties_count_for_the_target:
            known = (hint for start, hint in HINTS.items() if part.field.startswith(start))
            parts.append(f"{part.text()} ({next(known, 'other settings')})")
    if parts:
        raise InputError(
            "what this record is of is not at hand (field: in the record | here): "
            + "; ".join(parts)
        )
    return job


def specification(record: Record, places: Places) -> Spec:
    """The specification of a record, as far as it is known without loading models.

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
    localizer = create(spec.localizer, spec.localizer_args, spec.seed)
    return _with_configurations(spec, record, localizer)


def localizer_of(record: Record, places: Places) -> str:
    """The name or file of a record's localizer.

    Raises:
        InputError: No file is given, and none of the name is installed.
    """
    if places.localizer is not None:
        return places.localizer
    name = record.identity.localizer.name
    # Nor is it a file, whatever it looks like: no code comes in with a record.
    if name not in names():
        raise InputError(
            f"the method {name!r} is not installed here: install its package, or give "
            "--localizer FILE.py:CLASS"
        )
    return name


def _model(record: Record, places: Places) -> str | None:
    if places.model is not None:
        return places.model
    if record.model in catalog.pair_names():
        return record.model
    if places.recipient is None or not places.donors:
        if record.model in catalog.replicas():
            catalog.entry(record.model)  # its error says how the weights are made
        given = ", ".join(f"--donor {name}=PATH" for name in record.identity.weights.donors)
        raise InputError(
            f"the pair {record.model!r} is not in the catalog: give --recipient PATH {given}, "
            "or of a plant --model PATH; models that were in memory are saved first, by "
            "save_pretrained"
        )
    return None


def _with_facts(spec: Spec, record: Record, places: Places) -> Spec:
    """Add the record's facts: a given file, those of the pair, or a shipped data set."""
    wanted = record.identity.dataset
    if places.dataset is not None:
        return replace(spec, dataset=places.dataset, imports=places.imports)
    if spec.model is not None and job_dataset(spec).content_hash == wanted.hash:
        return spec
    if not is_shipped(wanted.name):
        raise InputError(
            f"the facts {wanted.name!r} are not shipped: give the file with --dataset FILE; facts "
            "that were in memory are written to one first, with the same columns"
        )
    return replace(spec, dataset=wanted.name)


def _with_configurations(spec: Spec, record: Record, localizer: AbstractLocalizer) -> Spec:
    """The specification with the suite and the grafts that give the record's configurations.

    Complements come after their grafts, so that the requested grafts are the first of all.

    Raises:
        InputError: None does.
    """
    wanted = record.identity.configurations
    named = (label for label in wanted if label not in (*BASELINES, "ALL"))
    ran = tuple(label for label in named if parse_top(label) is None)
    asked = [(), ("ALL",), *(ran[: n + 1] for n in range(len(ran)))]
    # Of suites that ask the same, the usual one.
    for name in sorted(suites(), key=lambda name: name != Spec.suite):
        suite = load_suite(name)
        if suite.truth != (record.identity.truth is not None):
            continue
        for grafts in asked:
            found = replace(spec, suite=name, grafts=grafts)
            if tuple(job_configurations(found, suite, localizer)) == wanted:
                return found
    raise InputError(
        "no suite of this version of kgbench gives the configurations of the record: "
        f"{', '.join(wanted)}"
    )


def argument_text(value: Any) -> str:
    """A parameter as it is given on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(argument_text, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


@dataclass(frozen=True)
class Sample:
    """Which facts are run again, and how closely they are to agree."""

    n: int | None = None
    """How many; by default all."""
    seed: int = 0
    tolerance: float | None = None
    """Of log-probabilities, in nats; by default that of the record's dtype."""


def verify(
    record: Record,
    facts: pa.Table,
    places: Places,
    settings: Settings,
    sample: Sample,
    progress: Progress | None = None,
) -> tuple[Repeated, tuple[str, ...]]:
    """Run a seeded sample of a record's facts again and compare the rows.

    A method is fitted and ranks sites on all facts, as in the run; only the sample is measured.

    Args:
        record: The record.
        facts: Its per-fact rows.
        places: Where the parts of the run are.
        settings: How it is computed now; its output directory is not used.
        sample: Which facts.
        progress: Progress callback.

    Returns:
        The comparison, and the ids of the facts.

    Raises:
        InputError: The job cannot be run here, or what is here is not what the record is of.
    """
    localizer = localizer_of(record, places)
    with TemporaryDirectory(prefix="kgbench-") as folder:
        asked = (record, places, settings, sample, Path(folder) / "run")
        ids, scores = isolated(localizer, _measure, *asked, progress=progress)
        rows = Journal(Path(folder) / "run").table()
    chosen = sample_facts(ids, sample)
    # Facts that the run does not have are told.
    left_out = pa.array(set(ids) - set(chosen), pa.string())
    stored = facts.filter(pc.invert(pc.is_in(facts["fact"], left_out)))
    return repeated(record, stored, rows, sample.tolerance, scores), chosen


def _measure(
    record: Record,
    places: Places,
    settings: Settings,
    sample: Sample,
    folder: Path,
    progress: Progress | None = None,
) -> tuple[tuple[str, ...], tuple[SiteScore, ...] | None]:
    """Measure the sample; its rows are left in a journal.

    Returns:
        Ids of all facts of the job, and the map of a method that ranks.
    """
    pairs = Pairs()
    job = job_of(record, places, settings, pairs)
    ids = tuple(prompt.fact.id for prompt in job.all_prompts)
    journal, chosen = Journal(folder, f"kgbench {__version__}"), sample_facts(ids, sample)
    ranking = measure_job(job, journal, pairs, progress, facts=chosen).ranking
    return ids, None if ranking is None else ranking.map


def sample_facts(ids: Sequence[str], sample: Sample) -> tuple[str, ...]:
    """The facts of a sample, sorted; all of them where there are no more.

    Args:
        ids: Ids of all facts.
        sample: How many, and the seed.
    """
    known = sorted(set(ids))
    drawn = np.random.default_rng(sample.seed).permutation(len(known))[: sample.n]
    return tuple(known[i] for i in sorted(drawn.tolist()))
