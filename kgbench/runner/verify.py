"""Running a sample of a record's facts again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench import __version__
from kgbench.effects.repeated import TOLERANCES, Repeated, repeated, repeated_map
from kgbench.localizers import is_foreign
from kgbench.records import Journal, Record, SiteScore
from kgbench.runner.foreign import guarded, isolated
from kgbench.runner.job import Job
from kgbench.runner.measure import GROUP, Measurement, run_group
from kgbench.runner.pairs import Pairs
from kgbench.runner.ready import ready
from kgbench.runner.respec import Places, job_of, localizer_of
from kgbench.runner.scoring import Progress
from kgbench.runner.spec import Settings

__all__ = ["Sample", "sample_facts", "verify"]


@dataclass(frozen=True)
class Sample:
    """Which facts are run again, and how closely they are to agree."""

    n: int
    seed: int
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

    What a method learns from all facts, such as a ranking of sites, it learns from all facts here too; then only the sample is measured.

    Args:
        record: The record.
        facts: Its per-fact rows.
        places: Where the parts of the run are.
        settings: How it is computed now; its output directory is not used.
        sample: Which facts.
        progress: Told of the progress.

    Returns:
        The comparison, and the ids of the facts.

    Raises:
        InputError: The job cannot be run here, or what is here is not what the record is of.
    """
    localizer = localizer_of(record, places)
    with TemporaryDirectory(prefix="kgbench-") as folder:
        asked = (record, places, settings, sample, Path(folder) / "run")
        ran = (
            isolated(localizer, _run, *asked, progress=progress)
            if is_foreign(localizer)
            else _run(*asked, progress)
        )
        rows = Journal(Path(folder) / "run").table()
    chosen = sample_facts(ran.facts, sample)
    left_out = pa.array(set(ran.facts) - set(chosen), pa.string())
    stored = facts.filter(
        pc.invert(pc.is_in(facts["fact"], left_out))
    )  # those that the run does not have are told
    found = repeated(record, stored, rows, sample.tolerance or TOLERANCES[record.identity.dtype])
    both = (
        None
        if record.scores is None or ran.scores is None
        else repeated_map(record.scores, ran.scores)
    )
    return replace(found, map=both), chosen


@dataclass(frozen=True)
class _Ran:
    facts: tuple[str, ...]
    """Ids of all facts of the job."""
    scores: tuple[SiteScore, ...] | None
    """Of a method that ranks, each site's mean over the halves."""


def _run(
    record: Record,
    places: Places,
    settings: Settings,
    sample: Sample,
    folder: Path,
    progress: Progress | None = None,
) -> _Ran:
    """Measure the sample; its rows are left in a journal."""
    pairs = Pairs()
    job = job_of(record, places, settings, pairs)
    facts = tuple(prompt.fact.id for prompt in job.all_prompts)
    journal = Journal(folder, f"kgbench {__version__}")
    with guarded(job, journal, pairs):
        measurement = ready(job, journal, progress)
        _measure(measurement, journal, sample_facts(facts, sample))
    ranking = measurement.ranking
    scores = (
        None
        if ranking is None
        else tuple(SiteScore(**site._asdict(), score=value) for site, value in ranking.mean.items())
    )
    return _Ran(facts, scores)


def sample_facts(ids: Sequence[str], sample: Sample) -> tuple[str, ...]:
    """The facts of a sample, sorted; all of them where there are no more.

    Args:
        ids: Ids of all facts.
        sample: How many, and the seed.
    """
    known = sorted(set(ids))
    drawn = np.random.default_rng(sample.seed).permutation(len(known))[: sample.n]
    return tuple(known[i] for i in sorted(drawn.tolist()))


def _measure(measurement: Measurement, journal: Journal, facts: Sequence[str]) -> None:
    job: Job = measurement.job
    for prompts in job.prompts.values():
        chosen = [prompt for prompt in prompts if prompt.fact.id in facts]
        for start in range(0, len(chosen), GROUP):
            journal.append(*run_group(measurement, chosen[start : start + GROUP]))
