"""Whether figures have moved since a record was saved, and sessions of pytest that fail by it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_runs
import numpy as np
import pytest
from sessions import counts, session, write

from kgbench.errors import DataError, InputError
from kgbench.records import RecordStore, StoredRecord
from kgbench.records.store import read_record
from kgbench.stats import difference
from kgbench.testing.saved_comparison import compare_saved, saved_records

WORSE = {**fake_runs.RATES, "FE+LT": 0.6}


def saved(
    folder: Path,
    weights: str,
    rates: Mapping[str, float] = fake_runs.RATES,
    n: int = 150,
    **changes: Any,
) -> StoredRecord:
    """A record of a donor's weights in a folder of records."""
    rows = fake_runs.rows(n, rates)
    what = fake_runs.identity(weights={"recipient": "r", "donors": {"sft": weights}}, **changes)
    return read_record(RecordStore(folder).write(fake_runs.record(rows, what=what), rows))


def test_comparison(tmp_path: Path) -> None:
    """Paired over the facts that both have: what moved, from what to what, with interval and number
    of facts.
    """
    old, new = saved(tmp_path / "old", "s"), saved(tmp_path / "new", "t", WORSE, n=120)
    assert compare_saved(saved(tmp_path / "same", "u"), saved_records(tmp_path / "old")).moved == ()
    found = compare_saved(new, saved_records(old.path))
    assert found.figures == 18 and len(found.moved) == 2
    pattern = (
        r"(headline|qa), FE\+LT: top5 from \.9\d to \.60, by −\.3\d \[−\.\d\d, −\.\d\d\] over 120"
        r" facts"
    )
    assert all(re.fullmatch(pattern, line) for line in found.moved)
    assert found.lines()[0] == f"compared with {old.path}: 2 of 18 figures moved"
    fewer = {graft: rate for graft, rate in fake_runs.RATES.items() if graft != "FE^C"}
    less = compare_saved(saved(tmp_path / "less", "v", fewer), [old])
    assert less.left_out == (
        "not compared, for only one of the records has it: headline, FE^C; qa, FE^C",
    )


def test_comparison_never_takes_another_question(tmp_path: Path) -> None:
    """Other facts, prompts or another method are told as such; nothing to compare is an error."""
    new = saved(tmp_path / "new", "t")
    other = saved(tmp_path / "old", "s", prompts={"headline": "h", "qa": "another wording"})
    with pytest.raises(
        InputError, match=f"no saved record answers .* {other.path.name} has other prompts"
    ):
        compare_saved(new, saved_records(tmp_path / "old"))
    first, second = saved(tmp_path / "two", "a"), saved(tmp_path / "two", "b")
    with pytest.raises(InputError, match="has other facts and localizer"):
        theirs = {
            "dataset": {"name": "others", "hash": "x", "n": 3},
            "localizer": {"name": "ablation", "version": "1"},
        }
        compare_saved(new, [saved(tmp_path / "other", "o", **theirs)])
    assert compare_saved(first, [first, second]).saved == str(second.path)
    with pytest.raises(InputError, match="no record in"):
        saved_records(tmp_path / "nowhere")
    (second.path / "facts.parquet").unlink()
    with pytest.raises(InputError, match="a damaged record is left out"):
        saved_records(tmp_path / "two")
    with pytest.raises(DataError):
        saved_records(second.path)


def at(stored: StoredRecord, time: str) -> StoredRecord:
    provenance = stored.record.provenance.model_copy(update={"time": time})
    return StoredRecord(stored.record.model_copy(update={"provenance": provenance}), stored.path)


def test_which_of_several_is_taken(tmp_path: Path) -> None:
    """Of the same facts and configurations rather than others, then the newest, whatever their
    order; it is said which it was.
    """
    new = saved(tmp_path, "new")
    early, late = (
        at(saved(tmp_path, "a"), "2026-01-01T00:00:00+00:00"),
        at(saved(tmp_path, "b"), "2026-02-01T00:00:00+00:00"),
    )
    other = at(
        saved(tmp_path, "c", configurations=("PRE", "SFT", "FE")), "2026-03-01T00:00:00+00:00"
    )
    for records in ([early, late, other, new], [new, other, late, early]):
        found = compare_saved(new, records)
        assert found.saved == str(late.path)
        assert found.notes == (
            (
                "of 4 saved records that answer the question, the one of 2026-02-01T00:00:00+00:00"
                " was taken"
            ),
        )
        assert found.lines()[1].strip() == found.notes[0]
    assert compare_saved(new, [other]).notes == ()


def test_facts_that_were_added(tmp_path: Path) -> None:
    """A data set of the same name that has grown is compared over the ids that both have, and that
    is said.
    """
    old = saved(tmp_path, "a", n=150)
    grown = saved(tmp_path, "b", n=160, dataset={"name": "tiny_movies", "hash": "grown", "n": 160})
    found = compare_saved(grown, [old])
    assert found.notes == (
        "data set 'tiny_movies' has changed since: compared over the facts whose ids are in both",
    )
    assert found.figures == 18


def test_few_common_facts(tmp_path: Path) -> None:
    """Fewer than ten of them move nothing, and are told of; they do not pass for figures that have
    not moved.
    """
    never = {**dict.fromkeys(fake_runs.RATES, 0.0), "SFT": 1.0}
    old, new = saved(tmp_path / "old", "s"), saved(tmp_path / "new", "t", never, n=9)
    found = compare_saved(new, [old])
    assert (found.moved, found.figures) == ((), 0)
    few = (
        "  not compared, for fewer than 10 facts are in both records: headline, 9 facts; qa, 9"
        " facts"
    )
    assert found.lines() == [f"compared with {old.path}: there is no figure to compare", few]
    assert compare_saved(saved(tmp_path / "twenty", "u", never, n=20), [old]).moved


def test_undefined_differences(tmp_path: Path) -> None:
    """Probabilities that are equal fact by fact have no interval, and are not counted among the
    figures that have not moved.
    """

    def by_prob(stored: StoredRecord) -> StoredRecord:
        return StoredRecord(stored.record.model_copy(update={"metric": "prob"}), stored.path)

    old, new = by_prob(saved(tmp_path, "a")), by_prob(saved(tmp_path, "b"))
    found = compare_saved(new, [old])
    assert (found.moved, found.figures) == ((), 0)
    assert found.left_out[0].startswith(
        "not compared, for all 150 values are 0, so that nothing is known of how far others may be:"
        " headline, PRE; "
    )


def test_all_figures_together(tmp_path: Path) -> None:
    """A difference that one figure alone would tell from 0 is not told among eighteen, nor is a
    larger one among those of many records.
    """
    old, new = saved(tmp_path, "a"), saved(tmp_path, "b", {**fake_runs.RATES, "FE": 0.12})
    hits = [np.arange(150) < round(rate * 150) for rate in (0.12, 0.17)]
    alone = difference(hits[0], hits[1])
    assert alone.high is not None and alone.high < 0
    assert compare_saved(new, [old]).moved == ()
    more = saved(tmp_path, "c", {**fake_runs.RATES, "FE": 0.08})
    assert (
        len(compare_saved(more, [old]).moved) == 2
        and compare_saved(more, [old], records=10**6).moved == ()
    )


def test_a_session_that_fails_by_comparison(tmp_path: Path) -> None:
    """Records that assertions looked at are compared as well: found by their id, and where they
    cannot be found, told of.
    """
    old, new = saved(tmp_path / "old", "s"), saved(tmp_path / "now", "t", WORSE)
    conftest = f"""
import pytest
from kgbench.records import load_record

@pytest.fixture
def record():
    return load_record({str(new.path)!r}, "").record
"""
    test = (
        "from kgbench.testing import assert_localized\ndef test_mine(record):"
        " assert_localized(record, top5__ge=.4)\n"
    )
    folder = write(tmp_path, conftest=conftest, test_mine=test)
    done = session(folder, "--kgbench-compare-fail", "old", "--kgbench-save", "now")
    assert (done.returncode, counts(done)) == (1, {"passed": 1}), done.stdout
    assert f"compared with {old.path}: 2 of 18 figures moved" in done.stdout
    assert re.search(
        r"^  qa, FE\+LT: top5 from \.97 to \.60, by −\.37 \[.*\] over 150 facts$", done.stdout, re.M
    )
    done = session(folder, "--kgbench-compare-fail", "old")
    assert (done.returncode, counts(done)) == (1, {"passed": 1}), done.stdout
    assert "was not compared: its per-fact rows are not known here" in done.stdout


def test_a_comparison_of_nothing(tmp_path: Path) -> None:
    """A session that was asked to compare and evaluated nothing fails, and says so; one whose ini
    file asks is let be.
    """
    folder = write(tmp_path, test_other="def test_one(): pass\n")
    done = session(folder, "--kgbench-compare-fail", "old")
    assert done.returncode == 1 and "no test of this session evaluated anything" in done.stdout
    done = session(folder, "-o", "kgbench_compare_fail=old")
    assert done.returncode == 0 and "evaluated" not in done.stdout
