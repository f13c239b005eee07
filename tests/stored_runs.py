"""Runs that never happened, as folders of records and entries of a leaderboard."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_runs
import pyarrow as pa

from kgbench.records import Record, RecordStore
from kgbench.stats.summary import rescored

WORSE = {**fake_runs.RATES, "FE+LT": 0.6, "LT": 0.5}
OTHER: dict[str, Any] = {"weights": {"recipient": "r", "donors": {"sft": "other"}}}


def stored(
    rates: Mapping[str, float] = fake_runs.RATES, n: int = 60, seed: int = 0, **changes: Any
) -> tuple[Record, pa.Table]:
    """A record of such a run, with its rows."""
    rows = fake_runs.rows(n, rates, seed=seed)
    return rescored(fake_runs.record(rows, what=fake_runs.identity(**changes)), rows), rows


def folder(root: Path, *run: Any) -> Path:
    """The folder of a run in a folder of records."""
    return RecordStore(root).write(*(run or stored()))


def submitted(run: Path, results: Path) -> Path:
    """The place of an entry in the results of a leaderboard that is made of a run's folder."""
    from submissions import put, sent

    from kgbench.records import load_record

    found = load_record(str(run), run.parent)
    entry = sent((found.record, found.facts()), "Mine", "mine==1.0", contract=None)
    return put(results, entry) / entry.place / entry.name
