"""Run a record again, all of its facts or a sample, or ask further questions of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.data import is_shipped
from kgbench.data.cases import MESSAGES
from kgbench.errors import InputError, LawError
from kgbench.localizers import InterventionLocalizer, is_foreign, names
from kgbench.models import catalog
from kgbench.progress import Progress
from kgbench.readouts import DEFAULT
from kgbench.records import Journal, Record
from kgbench.runner.job import Job, Pairs, job_configurations, prepare_job
from kgbench.runner.lookup import check, load_suite, suites
from kgbench.runner.run import measure_job
from kgbench.runner.sources import Sources
from kgbench.runner.spec import Held, Settings, Spec
from kgbench.runner.third_party_answers import ask, declared, request_of
from kgbench.runner.third_party_process import method_of
from kgbench.sites import BASELINES
from kgbench.sites.configurations import parse_top
from kgbench.stats.rerun_comparison import Repeated, repeated
from kgbench.version import __version__

PAIR = ("dataset", "prompts", "weights", "tokenizer", "dtype")
"""Parts of an identity that are of the pair and its facts."""


def job_of(
    record: Record,
    sources: Sources,
    settings: Settings,
    localizer: str | None = None,
    pairs: Pairs | None = None,
    held: Held | None = None,
) -> Job:
    """The job that a record is of, loaded and checked.

    Args:
        record: The record.
        sources: Where its parts are.
        settings: How it is to be computed now.
        localizer: The name or file of its method, where that is not installed by its name.
        pairs: Where models are loaded.
        held: The localizer, where it is in memory.

    Raises:
        InputError: A part is missing here, or is not the one of the record; the message names it.
    """
    expected = record.identity.model_dump(mode="json")
    if record.identity.ties_count_for_the_target:  # all but tied ranks is still comparable
        del expected["metric_version"]
    spec = replace(specification(record, sources, localizer), expected=expected, held=held)
    try:
        return prepare_job(spec, settings, pairs)
    except LawError as error:  # of the pair, which says nothing of the record
        raise InputError(f"the pair cannot be run here: {error}") from error


def question_spec(spec: Spec, record: Record, of: str) -> Spec:
    """The specification of what is asked of a run: nothing else may be loaded for it.

    Args:
        spec: What was evaluated.
        record: The run's record.
        of: `method`; or `pair`, without the run's method, suite and layers.
    """
    what = record.identity
    expected = what.model_dump(mode="json", include=set(PAIR))
    if of == "method":
        method = what.model_dump(mode="json", include={"localizer": {"name", "version"}})
        return replace(spec, expected={**expected, **method})
    return replace(
        spec,
        localizer=Spec.localizer,
        localizer_args={},
        suite=Spec.suite,
        layers=None,
        prompts=tuple(what.prompts),
        held=spec.held and Held(spec.held.pair, spec.held.dataset),
        expected=expected,
    )


def specification(record: Record, sources: Sources, localizer: str | None = None) -> Spec:
    """The specification of a record, as far as it is known without loading models or code.

    Args:
        record: The record.
        sources: Where its parts are.
        localizer: As of `job_of`.

    Raises:
        InputError: A part is not at hand, or no suite gives the record's configurations.
    """
    sources.check()
    what, model = record.identity, _model(record, sources)
    sources = _with_facts(sources.model_copy(update={"model": model}), record)
    suite, grafts = _suite_of(record)
    prompts = tuple(what.prompts)
    facts = sources.facts()
    usual = tuple(facts.templates) or load_suite(suite).prompts
    first = None if facts.readout is None else DEFAULT
    parameters = what.localizer.parameters.items()
    is_chat = any(f"{{{MESSAGES}}}" in facts.templates.get(name, "") for name in prompts)
    return Spec(
        localizer=localizer_of(record, localizer),
        localizer_args={name: argument_text(value) for name, value in parameters},
        readout=first if what.readout is None else what.readout.name,
        readout_args={} if what.readout is None else what.readout.parameters,
        model=model,
        recipient=sources.recipient,
        donors=sources.donors,
        revision=sources.revision,
        chat_template=sources.chat_template or is_chat,  # messages are read in no other way
        dataset=sources.dataset,
        imports=sources.imports,
        prompts=() if usual == prompts else prompts,
        grafts=grafts,
        suite=suite,
        limit=what.limit,
        dtype=what.dtype,
        seed=what.seeds[0],
        metric=record.metric,
    )


def localizer_of(record: Record, localizer: str | None = None) -> str:
    """The name or file of a record's localizer.

    Args:
        record: The record.
        localizer: What the user gave.

    Raises:
        InputError: No file is given, and none of the name is installed.
    """
    if localizer is not None:
        return localizer
    name = record.identity.localizer.name
    # Nor is it a file, whatever it looks like: no code comes in with a record.
    if name not in names():
        raise InputError(
            f"the method {name!r} is not installed here: install its package, or give "
            "--localizer FILE.py:CLASS"
        )
    return name


def _model(record: Record, sources: Sources) -> str | None:
    if sources.model is not None or (sources.recipient is not None and sources.donors):
        return sources.model
    if catalog.is_name(record.model):
        return record.model
    donors = ", ".join(f"--donor {name}=PATH" for name in record.identity.weights.donors)
    raise InputError(
        f"the pair {record.model!r} is not in the catalog, and nothing says where its models are: "
        f"give --recipient PATH {donors} (of a plant --model PATH) to `kgbench rerun`, or to the "
        "same `kgbench eval` once more, which finds the run and notes it; models that were in "
        "memory are saved first, by save_pretrained"
    )


def _with_facts(sources: Sources, record: Record) -> Sources:
    """Add the record's facts: a given file, those of the pair, or a shipped data set."""
    dataset = record.identity.dataset
    named = sources.dataset is not None
    if named or (sources.model is not None and sources.facts().content_hash == dataset.hash):
        return sources
    if not is_shipped(dataset.name):
        raise InputError(
            f"the facts {dataset.name!r} are not shipped: give the file with --dataset FILE, to "
            "`kgbench rerun` or to the same `kgbench eval` once more; facts that were in memory "
            "are written to one first, with the same columns"
        )
    return sources.model_copy(update={"dataset": dataset.name})


def _suite_of(record: Record) -> tuple[str, tuple[str, ...]]:
    """The suite and the grafts that give the record's configurations.

    Complements come after their grafts, so that the requested grafts are the first of all.

    Raises:
        InputError: None does.
    """
    configurations = record.identity.configurations
    named = (label for label in configurations if label not in (*BASELINES, "ALL"))
    ran = tuple(label for label in named if parse_top(label) is None)
    selections = [(), ("ALL",), *(ran[: n + 1] for n in range(len(ran)))]
    # Of suites that ask the same, the usual one.
    for suite in sorted(map(load_suite, suites()), key=lambda suite: suite.name != Spec.suite):
        if suite.truth != (record.identity.truth is not None):
            continue
        for grafts in selections:
            labels = job_configurations(suite, grafts, None, record.kind, record.floor)
            if tuple(labels) == configurations:
                return suite.name, grafts
    raise InputError(
        "no suite of this version of kgbench gives the configurations of the record: "
        f"{', '.join(configurations)}"
    )


def argument_text(value: Any) -> str:
    """A parameter as it is given on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(argument_text, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value)


@dataclass(frozen=True)
class Repetition:
    """How a record is run again."""

    sources: Sources = field(default_factory=Sources)
    """Where its parts are."""
    localizer: str | None = None
    """As of `job_of`."""
    sample: int | None = None
    """How many facts are measured; by default all."""
    seed: int = 0
    """Of the sample."""
    tolerance: float | None = None
    """Of log-probabilities, in nats; by default that of the record's dtype."""


def repeat(
    record: Record,
    facts: pa.Table,
    how: Repetition,
    settings: Settings,
    progress: Progress | None = None,
) -> tuple[Repeated, tuple[str, ...]]:
    """Run a record's facts again, or a seeded sample of them, and compare the rows.

    A method is fitted and ranks sites on all facts, as in the run; only the sample is measured. One
    of a third party runs in a process of its own, which gets the pair under another name and with
    exchanged answers and returns treatments or scores of sites (`kgbench.runner.third_party_answers`): they are
    measured here, on the pair itself.

    Args:
        record: The record.
        facts: Its per-fact rows.
        how: Which facts, and where the parts of the run are.
        settings: How it is computed now; its output directory is not used.
        progress: Progress callback.

    Returns:
        The comparison, and the ids of the facts.

    Raises:
        InputError: The job cannot be run here, or what is here is not what the record is of.
    """
    pairs, held = Pairs(), None
    parts = (record, how.sources, settings, how.localizer, pairs)
    with TemporaryDirectory(prefix="kgbench-") as folder:
        if is_foreign(localizer := localizer_of(record, how.localizer)):
            method = method_of(check(specification(record, how.sources, localizer)))
            job = job_of(*parts, declared(method))
            with job.reading():
                request = request_of(job, method, exchanged=True)
            handed = Path(folder) / "handed"
            handed.mkdir()
            held = declared(method, ask(request, method, handed, progress, pairs))
        job = job_of(*parts, held)
        ids = [prompt.fact.id for prompt in job.all_prompts]
        chosen = sample_facts(ids, how.sample, how.seed)
        journal = Journal(Path(folder) / "run", f"kgbench {__version__}")
        ranking = measure_job(job, journal, pairs, progress, facts=chosen).ranking
        rows = journal.table()
    # Facts that the run does not have stay among the rows, and differ.
    left_out = pa.array(set(ids) - set(chosen), pa.string())
    stored = facts.filter(pc.invert(pc.is_in(facts["fact"], left_out)))
    scores = None if ranking is None else ranking.map
    again = repeated(record, stored, rows, how.tolerance, scores)
    knows = "answer" in job.localizer.needs and isinstance(job.localizer, InterventionLocalizer)
    return replace(again, knows_answers=knows), chosen


def sample_facts(ids: Sequence[str], n: int | None, seed: int) -> tuple[str, ...]:
    """The facts of a sample, sorted; all of them where there are no more.

    Args:
        ids: Ids of all facts.
        n: How many; by default all.
        seed: The larger sample of a seed holds the smaller one.
    """
    ordered = sorted(set(ids))
    drawn = np.random.default_rng(seed).permutation(len(ordered))[:n]
    return tuple(ordered[i] for i in sorted(drawn.tolist()))
