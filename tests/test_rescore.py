"""`kgbench show --metric`, and entries that are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Call
from stored_runs import WORSE, folder, stored, submitted

from kgbench.records import load_record
from kgbench.stats.summary import rescored


def test_another_metric(tmp_path: Path, run: Call) -> None:
    """A run is shown on that metric, with the figures that its rows give, and stays as it is."""
    place = folder(tmp_path / "runs")
    first = load_record(str(place), tmp_path)
    status, out, _ = run("show", place, "--metric", "logprob")
    assert status == 0 and "sufficiency and necessity on logprob" in out
    told = json.loads(run("show", place, "--metric", "logprob", "--json")[1])
    again = rescored(first.record, first.facts(), "logprob")
    assert told == again.answer(str(place)) != first.record.answer(str(place))
    assert load_record(str(place), tmp_path).record == first.record


def test_the_run_s_own_metric_is_computed_too(tmp_path: Path, run: Call) -> None:
    """A figure that the record has otherwise than its rows give is not shown for a metric by name."""
    record, rows = stored()
    other = stored(WORSE)[0]
    place = folder(tmp_path / "runs", record.model_copy(update={"rows": other.rows}), rows)
    assert load_record(str(place), tmp_path).record.rows == other.rows
    answer = json.loads(run("show", place, "--metric", record.metric, "--json")[1])
    assert answer == record.answer(str(place)) != other.answer(str(place))


def test_show_tells_of_an_entry(tmp_path: Path, run: Call) -> None:
    """An entry of the leaderboard is shown with what was submitted beside it."""
    place = submitted(folder(tmp_path / "runs"), tmp_path / "board" / "results")
    out = run("show", place)[1]
    assert "submitted as Mine, code mine==1.0\nself-reported" in out
    assert json.loads(run("show", place, "--json")[1])["submission"]["name"] == "Mine"


def test_entries_are_found_by_the_start_of_their_id(
    tmp_path: Path, run: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the folder of runs does not have is looked for among the entries of the leaderboard."""
    place = submitted(folder(tmp_path / "runs"), tmp_path / "leaderboard" / "results")
    monkeypatch.chdir(tmp_path)
    assert run("show", stored()[0].id[:9])[1] == run("show", place)[1]
    assert run("show", "nonsuch")[0] == 2
