"""Running a record's job again, from nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from kgbench.effects.repeated import TOLERANCES, Repeated, repeated, repeated_map
from kgbench.localizers import is_foreign
from kgbench.records import Record, RecordStore
from kgbench.runner.foreign import isolated
from kgbench.runner.pairs import Pairs
from kgbench.runner.respec import Places, job_of, localizer_of
from kgbench.runner.run import Run, compute_job
from kgbench.runner.scoring import Progress
from kgbench.runner.spec import Settings

__all__ = ["reproduce"]


def reproduce(
    record: Record,
    facts: pa.Table,
    places: Places,
    settings: Settings,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Repeated:
    """Run a record's job again and compare the rows; no stored part of the run is used, and nothing is kept.

    Args:
        record: The record.
        facts: Its per-fact rows.
        places: Where the parts of the run are.
        settings: How it is computed now; its output directory is not used.
        tolerance: Of log-probabilities, in nats; by default that of the record's dtype.
        progress: Told of the progress.

    Raises:
        InputError: The job cannot be run here, or what is here is not what the record is of.
    """
    localizer = localizer_of(record, places)
    with TemporaryDirectory(prefix="kgbench-") as folder:
        asked = (record, places, replace(settings, output_dir=Path(folder)))
        run = (
            isolated(localizer, _again, *asked, progress=progress)
            if is_foreign(localizer)
            else _again(*asked, progress)
        )
        again = RecordStore(folder).load(run.record.id)
        found = repeated(
            record, facts, again.facts(), tolerance or TOLERANCES[record.identity.dtype]
        )
    scores = run.record.scores
    return (
        found
        if record.scores is None or scores is None
        else replace(found, map=repeated_map(record.scores, scores))
    )


def _again(
    record: Record, places: Places, settings: Settings, progress: Progress | None = None
) -> Run:
    pairs = Pairs()
    return compute_job(job_of(record, places, settings, pairs).spec, settings, progress, pairs)
