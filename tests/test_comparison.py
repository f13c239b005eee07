"""Whether figures have moved since a record was saved, and sessions of pytest that fail by it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_runs
import pytest
from sessions import counts, session, write

from kgbench.errors import DataError, InputError
from kgbench.pytest_plugin.comparison import compare, saved_records
from kgbench.records import RecordStore, StoredRecord
from kgbench.records.store import read_record

WORSE = {**fake_runs.RATES, "FE+LT": 0.6}


def saved(folder: Path, weights: str, rates: Mapping[str, float] = fake_runs.RATES, n: int = 150, **changes: Any) -> StoredRecord:
    """A record of a donor's weights in a folder of records."""
    rows = fake_runs.rows(n, rates)
    what = fake_runs.identity(weights={"recipient": "r", "donors": {"sft": weights}}, **changes)
    return read_record(RecordStore(folder).write(fake_runs.record(rows, what=what), rows))


def test_comparison(tmp_path: Path) -> None:
    """Paired over the facts that both have: what moved, from what to what, with interval and number of facts."""
    old, new = saved(tmp_path / "old", "s"), saved(tmp_path / "new", "t", WORSE, n=120)
    assert compare(saved(tmp_path / "same", "u"), saved_records(tmp_path / "old")).moved == ()
    found = compare(new, saved_records(old.path))
    assert found.figures == 18 and len(found.moved) == 2
    pattern = r"(headline|qa), FE\+LT: top5 from \.9\d to \.60, by -\.3\d \[-\.\d\d, -\.\d\d\] over 120 facts"
    assert all(re.fullmatch(pattern, line) for line in found.moved)
    assert found.lines()[0] == f"compared with {old.path}: 2 of 18 figures moved"
    fewer = {graft: rate for graft, rate in fake_runs.RATES.items() if graft != "FE^C"}
    assert compare(saved(tmp_path / "less", "v", fewer), [old]).left_out == ("headline, FE^C", "qa, FE^C")


def test_comparison_never_takes_another_question(tmp_path: Path) -> None:
    """Other facts, prompts or another method are told as such; several records to choose from are, too; nothing to compare is an error."""
    new = saved(tmp_path / "new", "t")
    other = saved(tmp_path / "old", "s", prompts={"headline": "h", "qa": "another wording"})
    with pytest.raises(InputError, match=f"no saved record answers .* {other.path.name} has other prompts"):
        compare(new, saved_records(tmp_path / "old"))
    first, second = saved(tmp_path / "two", "a"), saved(tmp_path / "two", "b")
    with pytest.raises(InputError, match="several saved records"):
        compare(new, [first, second])
    assert compare(first, [first, second]).saved == str(second.path)
    with pytest.raises(InputError, match="no record in"):
        saved_records(tmp_path / "nowhere")
    (second.path / "facts.parquet").unlink()
    with pytest.raises(InputError, match="a damaged record is left out"):
        saved_records(tmp_path / "two")
    with pytest.raises(DataError):
        saved_records(second.path)


def test_a_session_that_fails_by_comparison(tmp_path: Path) -> None:
    """Records that assertions looked at are compared as well: found by their id, and where they cannot be found, told of."""
    old, new = saved(tmp_path / "old", "s"), saved(tmp_path / "now", "t", WORSE)
    conftest = f"""
import pytest
from kgbench.records import load_record

@pytest.fixture
def record():
    return load_record({str(new.path)!r}, "").record
"""
    test = "from kgbench.testing import assert_localized\ndef test_mine(record): assert_localized(record, top5__ge=.4)\n"
    folder = write(tmp_path, conftest=conftest, test_mine=test)
    done = session(folder, "--kgbench-compare-fail", "old", "--kgbench-save", "now")
    assert (done.returncode, counts(done)) == (1, {"passed": 1}), done.stdout
    assert f"compared with {old.path}: 2 of 18 figures moved" in done.stdout
    assert re.search(r"^  qa, FE\+LT: top5 from \.97 to \.60, by -\.37 \[.*\] over 150 facts$", done.stdout, re.M)
    done = session(folder, "--kgbench-compare-fail", "old")
    assert (done.returncode, counts(done)) == (1, {"passed": 1}), done.stdout
    assert "was not compared: its per-fact rows are not known here" in done.stdout


def test_a_comparison_of_nothing(tmp_path: Path) -> None:
    """A session that was asked to compare and evaluated nothing fails, and says so; one whose ini file asks is let be."""
    folder = write(tmp_path, test_other="def test_one(): pass\n")
    done = session(folder, "--kgbench-compare-fail", "old")
    assert done.returncode == 1 and "no test of this session evaluated anything" in done.stdout
    done = session(folder, "-o", "kgbench_compare_fail=old")
    assert done.returncode == 0 and "evaluated" not in done.stdout
