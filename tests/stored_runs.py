"""Runs that never happened, as folders of records and entries of a leaderboard, and commands run in
this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fake_runs
import pyarrow as pa
import pytest

from kgbench.cli import main
from kgbench.records import Record, RecordStore
from kgbench.stats.summary import rescored

Call = Callable[..., tuple[int, str, str]]
"""Runs a command: exit status, stdout, stderr."""

WORSE = {**fake_runs.RATES, "FE+LT": 0.6, "LT": 0.5}
OTHER = {"weights": {"recipient": "r", "donors": {"sft": "other"}}}


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


def caller(capsys: pytest.CaptureFixture[str]) -> Call:
    """What runs commands."""

    def call(*arguments: object) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call
