"""`kgbench rerun --metric`: stored figures are those of the rows, or it says which are not."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from commands import Call
from stored_runs import folder, stored, submitted

from kgbench.records import FACTS_SCHEMA, load_record
from kgbench.records.fact_rows import STORED
from kgbench.stats.summary import rescored


def edited(run: Path, old: str, new: str) -> Path:
    """The run, without its seal, with some text of its record changed."""
    (run / "seal.json").unlink(missing_ok=True)
    path = run / "record.json"
    assert path.read_text().count(old), old
    path.write_text(path.read_text().replace(old, new, 1))
    return run


def test_a_fresh_record_is_as_its_rows_say(tmp_path: Path, run: Call) -> None:
    """Nothing changes, nothing is written, and writing it back gives the same bytes."""
    place = folder(tmp_path)
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    status, out, _ = run("rerun", place, "--metric", "top5", "-q")
    assert (status, out) == (0, "all 292 figures of the rows are as stored (top5)\n")
    assert run("rerun", place, "--metric", "top5", "--write")[0] == 0
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_an_edited_figure_is_told(tmp_path: Path, run: Call) -> None:
    """Status 1 and the figure by name, stored and as the rows give it; in place the record is
    mended.
    """
    place = folder(tmp_path)
    record = load_record(str(place), tmp_path).record
    row = next(row for row in record.rows if (row.prompt, row.graft) == ("headline", "LT"))
    numbers = [row.top5.value, row.top5.low, row.top5.high]
    edited(place, ",".join(map(repr, numbers)), "0.6,0.5,0.7")
    status, out, _ = run("rerun", place, "--metric", "top5", "-q")
    assert status == 1
    assert "headline, LT, top5" in out
    assert ".6 [.5, .7]" in out
    assert "1 of 292" in out
    answer = json.loads(run("rerun", place, "--metric", "top5", "--json")[1])
    assert not answer["agrees"] and answer["differences"][0]["figure"] == "headline, LT, top5"
    assert answer["differences"][0]["stored"] == {"value": 0.6, "low": 0.5, "high": 0.7}
    assert run("rerun", place, "--metric", "top5", "--write")[0] == 1
    assert run("rerun", place, "--metric", "top5", "-q")[0] == 0
    assert load_record(str(place), tmp_path).record == record


def test_another_metric(tmp_path: Path, run: Call) -> None:
    """The table on that metric; with --write the record is on it too, and its rows stay."""
    place = folder(tmp_path / "runs")
    first = load_record(str(place), tmp_path)
    status, out, _ = run("rerun", place, "--metric", "logprob")
    assert status == 0 and "sufficiency and necessity on logprob" in out
    assert load_record(str(place), tmp_path).record == first.record
    assert run("rerun", place, "--metric", "logprob", "--write")[0] == 0
    again = load_record(str(place), tmp_path)
    assert again.record == rescored(first.record, first.facts(), "logprob")
    assert again.facts().equals(first.facts())


def test_old_rows_are_written_in_the_present_format(tmp_path: Path, run: Call) -> None:
    """Rows that hold what follows from others lose it in place, and read the same."""
    place = folder(tmp_path)
    before = load_record(str(place), tmp_path).facts()
    pq.write_table(before.cast(FACTS_SCHEMA), place / "facts.parquet")
    (place / "seal.json").unlink()
    assert run("rerun", place, "--metric", "top5", "--write")[0] == 0
    assert pq.read_schema(place / "facts.parquet").equals(STORED)
    assert load_record(str(place), tmp_path).facts().equals(before)
    assert sorted(path.name for path in place.iterdir()) == ["facts.parquet", "record.json"]


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
