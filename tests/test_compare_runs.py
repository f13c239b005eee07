"""`kgbench compare`: paired differences of two runs, and what is told of the two."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_runs
import numpy as np
import pytest
from commands import Call
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import OTHER, WORSE, folder, stored

from kgbench.analyses.compare import Comparison, compare_records, comparison_report
from kgbench.errors import InputError
from kgbench.records import facts_table
from kgbench.records.identity import identity_differences
from kgbench.report import to_text
from kgbench.stats import ratio
from kgbench.stats.intervals import ratio_difference
from kgbench.stats.ratios import (
    area_difference,
    curve_area,
    paired_prompts,
    recovery,
    recovery_difference,
)
from kgbench.stats.summary import rescored

ROOT = Path(__file__).parent.parent
METRICS = ("top1", "top5", "log_rank", "mrr", "prob", "logprob", "logit_diff")


def numbers(found: Comparison, sign: float = 1.0) -> list[tuple[Any, ...]]:
    """All differences; with the sign changed, as if the records had changed places."""
    rows = []
    for row in found.rows:
        figures = [getattr(row, name) for name in ("difference", "sufficiency", "necessity")]
        ends = [
            (e.value, e.low, e.high) if sign > 0 or e.value is None else (-e.value, -e.high, -e.low)
            for e in figures
        ]  # type: ignore[operator]
        flipped = (row.gained, row.lost) if sign > 0 else (row.lost, row.gained)
        rows.append((row.prompt, row.graft, row.n, *ends, *flipped))
    return rows


@pytest.mark.parametrize("metric", METRICS)
def test_a_run_beside_itself(metric: str) -> None:
    """Every difference is 0 with an interval that holds it and, but where 0 holds by definition,
    has a width; no fact flips.
    """
    record = stored()
    found = compare_records(record, record, metric)
    assert len(found.rows) == 18
    assert not found.differing
    assert not found.first_only
    assert not found.second_only
    for row in found.rows:
        assert (row.difference.value, row.gained, row.lost) == (0, (), ())
        assert row.difference.low < 0 < row.difference.high
        for share in (row.sufficiency, row.necessity):
            assert share.value in (0, None)
            if (
                row.graft not in ("PRE", "SFT")
                and share.undefined is None
                and row.sufficiency.low != row.sufficiency.high
            ):
                assert share.low <= 0 <= share.high
        if row.graft not in ("PRE", "SFT"):
            assert row.sufficiency.low < 0 < row.sufficiency.high
    assert found.significant() == [] and "no fact flipped" in found.verdict()


@pytest.mark.parametrize("metric", METRICS)
def test_the_other_way_round_changes_the_sign(metric: str) -> None:
    """A beside B is B beside A with every sign changed, intervals included, and with gained and
    lost exchanged.
    """
    first, second = stored(), stored(WORSE, seed=3, **OTHER)
    one, two = compare_records(first, second, metric), compare_records(second, first, metric)
    assert numbers(one, -1) == numbers(two)
    assert {row.graft for row in one.significant()} >= ({"FE+LT"} if metric == "top5" else set())


@pytest.mark.parametrize("metric", ["prob", "logprob", "logit_diff"])
def test_rounding_is_no_difference(metric: str) -> None:
    """A run that another arrangement of the same computation made differs in its last digits, and
    nothing is told from 0.
    """
    record, rows = stored()
    columns = rows.to_pydict()
    noise = np.random.default_rng(0).normal(1e-5, 2e-6, rows.num_rows)
    moved = {
        "logprob": noise + columns["logprob"],
        "prob": np.exp(noise) * columns["prob"],
        "logit_diff": noise + columns["logit_diff"],
    }
    found = compare_records((record, rows), (record, facts_table({**columns, **moved})), metric)
    assert found.significant() == []
    for row in found.rows:
        assert row.difference.low < 0 < row.difference.high
        assert row.graft in ("PRE", "SFT") or row.sufficiency.low < 0 < row.sufficiency.high


def test_differences_are_those_of_the_means() -> None:
    """B − A is the difference of what the records say, in means, sufficiency and necessity, where
    they have the same facts.
    """
    first, second = stored(), stored(WORSE, seed=3, **OTHER)
    rows = [{(row.prompt, row.graft): row for row in record.rows} for record, _ in (first, second)]
    for found in compare_records(first, second).rows:
        a, b = (of[found.prompt, found.graft] for of in rows)
        assert (found.first, found.second) == (
            pytest.approx(a.top5.value, abs=1e-5),
            pytest.approx(b.top5.value, abs=1e-5),
        )
        for name in ("sufficiency", "necessity"):
            values = [getattr(row, name).value for row in (a, b)]
            difference = getattr(found, name).value
            assert (
                difference is None
                if None in values
                else difference == pytest.approx(values[1] - values[0], abs=2e-5)
            )


def test_facts_that_flip_are_those_that_one_alone_hits() -> None:
    """Gained and lost are counted by hand from the ranks; of a metric that is no hit, by the
    default one.
    """
    first, second = stored(), stored(WORSE, seed=3, **OTHER)
    hits = [
        {(r["prompt"], r["graft"], r["fact"]) for r in table.to_pylist() if r["rank"] <= 5}
        for _, table in (first, second)
    ]
    for metric in ("top5", "logprob"):
        found = compare_records(first, second, metric)
        assert found.hits == "top5"
        gained = {(row.prompt, row.graft, fact) for row in found.rows for fact in row.gained}
        lost = {(row.prompt, row.graft, fact) for row in found.rows for fact in row.lost}
        assert (gained, lost) == (hits[1] - hits[0], hits[0] - hits[1])


def test_flips_are_those_of_the_run_s_own_hits() -> None:
    """Of a metric that is no hit, they are on the metric of the first run where that is one."""
    record, rows = stored()
    exact = rescored(record, rows, "top1")
    assert compare_records((exact, rows), (record, rows), "logprob").hits == "top1"


def test_few_differences_are_hardly_significant_by_chance() -> None:
    """One in twenty is; of 18 it is about one, of fewer than ten it is none."""
    found = compare_records(stored(), stored(WORSE, seed=3, **OTHER))
    assert "(about 1 expected by chance)" in found.verdict()
    few = replace(found, rows=tuple(row for row in found.rows if row.prompt == "qa"))
    assert "(fewer than 1 expected by chance)" in few.verdict()


def test_only_shared_facts_and_configurations() -> None:
    """Facts and configurations of one record alone are told with their number, and count for
    nothing.
    """
    fewer = {graft: rate for graft, rate in fake_runs.RATES.items() if graft != "FE^C"}
    first, second = stored(n=60), stored(fewer, n=40, **OTHER)
    found = compare_records(first, second)
    assert found.facts["qa"].shared == 40
    assert found.facts["qa"].first_only == 20
    assert found.facts["qa"].second_only == 0
    assert found.first_only == (("headline", "FE^C"), ("qa", "FE^C")) and found.second_only == ()
    assert {row.n for row in found.rows} == {40}
    text = to_text(comparison_report(found))
    assert "headline: 40 facts in both, 20 only in A" in text and "only in A: qa: FE^C" in text


def test_nothing_in_common_is_an_error() -> None:
    """Records of other prompts have nothing that could be compared."""
    rows = fake_runs.rows(20, prompts=("elsewhere",))
    other = fake_runs.record(rows, what=fake_runs.identity(prompts={"elsewhere": "e"}))
    with pytest.raises(InputError, match="no fact of one prompt in common"):
        compare_records(stored(), (other, rows))


def test_ids_of_other_facts_are_left_out() -> None:
    """Where the data sets differ, an id that stands for another object in the other record is no
    shared fact.
    """
    first = stored()
    record, rows = stored(dataset={"name": "tiny_movies", "hash": "x", "n": 60})
    columns = rows.to_pydict()
    changed = {"tiny_movies/3", "tiny_movies/7"}
    columns["target"] = [
        t + 100 if f in changed else t
        for t, f in zip(columns["target"], columns["fact"], strict=True)
    ]
    found = compare_records(first, (record, facts_table(columns)))
    assert found.facts["qa"].shared == 58
    assert "2 ids stand for facts with other objects" in found.notes[1]


def test_what_differs_is_told_first() -> None:
    """Parts of the identity that differ are named with both values; equal identities have none."""
    one, two = (
        fake_runs.identity(),
        fake_runs.identity(dtype="float64", configurations=("PRE", "SFT", "FE"), **OTHER),
    )
    assert identity_differences(one, one) == ()
    parts = {part.field: part.sentence() for part in identity_differences(one, two)}
    assert parts["dtype"] == "dtype: float32 in A, float64 in B"
    assert set(parts) == {"dtype", "configurations", "weights.recipient", "weights.donors.sft"}
    assert parts["configurations"].startswith("configurations: A alone has ALL, LT")
    text = to_text(comparison_report(compare_records(stored(), stored(WORSE, **OTHER))))
    assert text.index("the weights of donor sft are others") < text.index("headline:")
    fewer = fake_runs.identity(prompts={"qa": "q" * 64}, limit=60)
    assert [part.sentence() for part in identity_differences(one, fewer)] == [
        "A asks headline, B does not",
        "A takes all facts, B the first 60 facts",
    ]
    assert max(map(len, text.splitlines())) <= 100


booleans = st.lists(st.booleans(), min_size=30, max_size=30).map(np.array)


@given(booleans, booleans, booleans)
def test_difference_of_ratios(one: Any, two: Any, three: Any) -> None:
    """With one denominator it is a ratio: the same value; it changes its sign with the order, and
    is 0 of one thing twice.
    """
    low, high = np.zeros(30, bool), np.ones(30, bool)
    high[:3] = False
    first, second = ({"PRE": low, "SFT": high, "LT": hits} for hits in (one, two))
    found, back = recovery_difference(first, second, "LT"), recovery_difference(second, first, "LT")
    parts = [recovery(scores, "LT").value for scores in (first, second)]
    assert found.value == pytest.approx(parts[1] - parts[0])
    assert (found.value, found.low, found.high) == pytest.approx(
        (-back.value, -back.high, -back.low)
    )
    same = recovery_difference(first, {**first, "LT": one.copy()}, "LT")
    assert same.value == 0 and same.low < 0 < same.high
    gap = high.astype(int) - low
    alone = ratio(two.astype(int) - one, gap)
    assert (found.value, found.low, found.high) == pytest.approx(
        (alone.value, alone.low, alone.high)
    )
    other = three.astype(int)
    if abs(other.mean()) > 0.4:
        mixed = ratio_difference((one.astype(int), gap), (two.astype(int), other))
        assert mixed.undefined or mixed.low <= mixed.value <= mixed.high


@given(st.lists(booleans, min_size=4, max_size=4), st.lists(booleans, min_size=4, max_size=4))
@settings(max_examples=30)
def test_difference_of_areas(one: list[Any], two: list[Any]) -> None:
    """Its value is the difference of the areas, it changes its sign with the order, and of one
    ranking twice it is 0.
    """
    low, high = np.zeros(30, bool), np.ones(30, bool)
    budgets = {f"top {share:g}%": share for share in (0.1, 1.0, 10.0, 100.0)}
    first, second = (
        {"PRE": low, "SFT": high, **dict(zip(budgets, hits, strict=True))} for hits in (one, two)
    )
    found, back = area_difference(first, second, budgets), area_difference(second, first, budgets)
    areas = [curve_area(scores, budgets).value for scores in (first, second)]
    assert found.value == pytest.approx(areas[1] - areas[0])
    assert (found.value, found.low, found.high) == pytest.approx(
        (-back.value, -back.high, -back.low)
    )
    same = area_difference(first, first, budgets)
    assert same.value == 0 and same.low < 0 < same.high


def test_coverage_of_the_difference() -> None:
    """Over 200 samples, the 95 % interval of a difference of recoveries that are equal in truth
    holds 0 in at least 92 %.
    """
    rng, held = np.random.default_rng(0), 0
    for _ in range(200):
        pre, sft = np.zeros(60, bool), rng.random(60) < 0.95
        first, second = (
            {"PRE": pre, "SFT": sft, "LT": sft & (rng.random(60) < 0.6)} for _ in range(2)
        )
        found = recovery_difference(first, second, "LT")
        held += found.low <= 0 <= found.high
    assert held >= 184


def test_pairing_keeps_what_both_have() -> None:
    """Columns of both runs are over the same facts in the same order."""
    (_, first), (_, second) = stored(n=50), stored(n=30, **OTHER)
    for prompt in paired_prompts(first, second, ()):
        assert prompt.first.facts.tolist() == prompt.second.facts.tolist() and prompt.first.n == 30
        assert prompt.only == (20, 0)


# ------------------------------------------------------------------------------------------ command


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs in a folder of records."""
    return folder(tmp_path, *stored()), folder(tmp_path, *stored(WORSE, seed=3, **OTHER))


def test_command(folders: tuple[Path, Path], run: Call) -> None:
    """By folder or start of the id; text, or one JSON object of the same figures and all facts."""
    first, second = folders
    status, text, _ = run("compare", first, second)
    assert status == 0 and "--json lists all" in " ".join(text.split())
    by_id = [json.loads((folder / "record.json").read_text())["id"][:10] for folder in folders]
    answer = json.loads(run("compare", *by_id, "--output-dir", first.parent, "--json")[1])
    assert answer["first"]["path"] == str(first) and answer["metric"] == "top5"
    row = next(row for row in answer["rows"] if (row["prompt"], row["graft"]) == ("qa", "FE+LT"))
    assert row["difference"]["value"] == pytest.approx(row["second"] - row["first"], abs=1e-5)
    assert row["difference"]["high"] < 0 and len(row["lost"]) > 20
    assert answer["verdict"] == " ".join(text[: text.index("\n\n")].split())
