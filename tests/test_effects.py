"""Laws of recovery, sufficiency, necessity and synergy, and of the sentence over a run."""

from __future__ import annotations

import re

import fake_runs
import numpy as np
import pyarrow as pa
import pytest
from fake_runs import RATES, rows
from hypothesis import given, settings
from hypothesis import strategies as st

from kgbench.errors import DataError
from kgbench.records import Record
from kgbench.report import to_text
from kgbench.report.run_report import record_report
from kgbench.sites import CONFIGURATIONS
from kgbench.stats import METRICS, hit_rate, mean, necessity, recovery, score, sufficiency
from kgbench.stats.answer_frequency import name_prior
from kgbench.stats.intervals import WEAK, rate_interval, standard_errors
from kgbench.stats.ratios import COMPLEMENTS, gain, synergy
from kgbench.stats.summary import summarize
from kgbench.stats.verdict_sentence import verdict


def world(seed: int = 0, n: int = 50, **rates: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.random(n) < rate for name, rate in {**RATES, **rates}.items()}


def test_scores_follow_from_the_columns() -> None:
    """Hits are booleans of rank <= k; the reciprocal rank is the rank's."""
    columns = {
        "rank": np.array([1, 5, 6, 100]),
        "prob": np.array([0.5, 0.1, 0.1, 0.0]),
        "logprob": np.zeros(4),
        "logit_diff": np.zeros(4),
    }
    assert score(columns, "top1").tolist() == [True, False, False, False]
    assert score(columns, "top5").tolist() == [True, True, False, False]
    assert score(columns, "top100").all()
    assert score(columns, "mrr") == pytest.approx([1, 0.2, 1 / 6, 0.01])
    assert score(columns, "mrr") == pytest.approx(score(columns, "rr"))
    assert all((score(columns, m).dtype == bool) == m.startswith("top") for m in METRICS)


def test_name_prior() -> None:
    """The five most frequent first tokens, whatever their ids."""
    assert name_prior([4, 3, 1, 1, 1, 1, 1]) == hit_rate(10, 12)
    assert name_prior([1, 1]) == hit_rate(2, 2)


def test_floor_and_ceiling_hold_by_definition() -> None:
    """recovery(PRE) is 0 and recovery(SFT) 1, without a width; of neither is necessity asked."""
    found = world()
    for name, value in (("PRE", 0.0), ("SFT", 1.0)):
        figure = recovery(found, name)
        assert (figure.value, figure.low, figure.high) == (value, value, value)
        assert necessity(found, name).undefined


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_necessity_is_one_minus_the_complements_recovery(seed: int) -> None:
    """By definition, interval included, for each pathway configuration."""
    found = world(seed)
    for graft, other in COMPLEMENTS.items():
        if graft in found:
            own, rest = necessity(found, graft), recovery(found, other)
            assert (own.value, own.low, own.high) == pytest.approx(
                (1 - rest.value, 1 - rest.high, 1 - rest.low)
            )


def test_necessity_without_the_complement() -> None:
    """A missing complement leaves it undefined, whether nobody named it or it was not run; a named
    one is used.
    """
    found = world()
    found["LT:o"] = found["LT"]
    assert necessity(found, "LT:o").undefined
    assert necessity(found, "LT:o", {"LT:o": "LT^C"}) == necessity(found, "LT")
    del found["LT^C"]
    assert necessity(found, "LT").undefined


@settings(max_examples=20)
@given(seed=st.integers(0, 1000))
def test_synergy_is_a_difference_of_sufficiencies(seed: int) -> None:
    """Its value is; its interval holds it and is its own."""
    found = world(seed)
    figure = synergy(found)
    both, first, second = (sufficiency(found, name).value for name in ("FE+LT", "FE", "LT"))
    assert figure.value == pytest.approx(both - first - second)
    assert figure.low < figure.value < figure.high


def test_synergy_of_extremes_is_no_point() -> None:
    """Where both together bring everything and each alone nothing, or each alone everything, the
    interval has a width.
    """
    all_, none = np.ones(50, bool), np.zeros(50, bool)
    base = {"PRE": none, "SFT": all_, "FE+LT": all_}
    for alone, value in ((none, 1.0), (all_, -1.0)):
        figure = synergy({**base, "FE": alone, "LT": alone})
        assert figure.value == value and figure.high - figure.low >= rate_interval(0.0, 50)[1]


def test_synergy_covers() -> None:
    """Its 95 % interval holds the truth in at least 90 % of worlds."""
    held, truth = 0, (0.97 - 0.02) / 0.95 - 2 * (0.05 - 0.02) / 0.95
    for seed in range(150):
        figure = synergy(
            world(seed, **{"PRE": 0.02, "SFT": 0.97, "FE": 0.05, "LT": 0.05, "FE+LT": 0.97})
        )
        held += figure.low <= truth <= figure.high
    assert held / 150 >= 0.9


def test_undefined_without_a_gain() -> None:
    """Where the denominator may be 0, every ratio is undefined, and the reason holds the
    numbers.
    """
    found = world(SFT=0.03)
    denominator = gain(found)
    assert denominator.low <= 0 <= denominator.high
    for figure in (
        recovery(found, "FE"),
        necessity(found, "FE"),
        synergy(found),
        recovery(found, "SFT"),
    ):
        assert figure.value is None
        assert f"{denominator.value:.3g}" in figure.undefined
        assert "n = 50" in figure.undefined


def test_rank_recovers_by_its_signs() -> None:
    """Of the rank less is better; a graft half-way down has half."""
    rng = np.random.default_rng(0)
    pre, noise = rng.integers(300, 500, 50).astype(float), rng.normal(0, 1, 50)
    found = {"PRE": pre, "SFT": np.ones(50), "FE": (pre + 1) / 2 + noise, "LT": np.ones(50)}
    assert recovery(found, "FE").value == pytest.approx(0.5, abs=0.01)
    exact = recovery(found, "LT")
    assert exact.value == 1 and 0.9 < exact.low < 1 < exact.high < 1.1


def test_summary_rows() -> None:
    """One row per prompt and configuration, in the paper's order, with the means of all metrics and
    the denominator of the ratios.
    """
    found = summarize(rows(), dropped={"headline": 0, "qa": 3})
    assert [(r.prompt, r.graft) for r in found.rows] == [
        (p, c) for p in ("headline", "qa") for c in CONFIGURATIONS
    ]
    assert {r.dropped for r in found.rows if r.prompt == "qa"} == {3}
    assert {r.n for r in found.rows} == {50}
    by = {r.graft: r for r in found.rows if r.prompt == "qa"}
    row = by["FE+LT"]
    assert row.complement == "(FE+LT)^C"
    assert row.gain.value == pytest.approx(by["SFT"].top5.value - by["PRE"].top5.value, rel=1e-5)
    assert row.sufficiency.value == pytest.approx(
        (row.top5.value - by["PRE"].top5.value) / row.gain.value, rel=1e-5
    )
    assert row.top5.value <= row.top10.value <= row.top100.value <= 1
    assert row.estimate("rr") == row.mrr
    assert set(found.synergy) == set(found.baselines["name_prior"]) == {"headline", "qa"}


@pytest.mark.parametrize("metric", METRICS)
def test_summary_of_each_metric(metric: str) -> None:
    """Every metric gives ratios, and a graft that does what the donor does recovers most of it on
    each.
    """
    found = summarize(rows(prompts=["headline"]), metric=metric)
    best = next(r for r in found.rows if r.graft == "FE+LT")
    assert best.sufficiency.undefined or best.sufficiency.value > 0.8
    assert found.metric == metric and found.verdict.endswith(f"({metric}).")


def test_summary_does_not_depend_on_the_order_of_rows() -> None:
    """Shuffled rows give the same figures."""
    table = rows()
    shuffled = table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)))
    assert summarize(shuffled) == summarize(table)


def test_summary_reads_the_last_position() -> None:
    """Where a prompt was read at several positions, the last one counts."""
    table = rows(prompts=["qa"])
    earlier = table.set_column(3, table.schema.field(3), pa.array([2] * table.num_rows, pa.int32()))
    earlier = earlier.set_column(
        5, table.schema.field(5), pa.array([999] * table.num_rows, pa.int32())
    )
    assert summarize(pa.concat_tables([earlier, table])) == summarize(table)


@pytest.mark.parametrize(
    ("left_out", "says"), [("SFT", "not run under SFT"), ("FE", "over others under FE")]
)
def test_summary_needs_the_same_facts(left_out: str, says: str) -> None:
    """Without the donor there is no ratio, and configurations over different facts are not
    compared.
    """
    names, grafts = rows()["fact"].to_pylist(), rows()["graft"].to_pylist()
    keep = [
        not (g == left_out and (left_out == "SFT" or f == "tiny_movies/3"))
        for f, g in zip(names, grafts, strict=True)
    ]
    with pytest.raises(DataError, match=says):
        summarize(rows().filter(pa.array(keep)))


def test_layers_in_their_order() -> None:
    """Other grafts stand after the paper's, layer 2 before layer 10."""
    rates = {"PRE": 0.0, "LT:o@10": 0.3, "SFT": 1.0, "LT:o@2": 0.2}
    assert [r.graft for r in summarize(rows(rates=rates, prompts=["qa"])).rows] == [
        "PRE",
        "SFT",
        "LT:o@2",
        "LT:o@10",
    ]


def test_nothing_was_run() -> None:
    """Without a row the sentence says so."""
    assert verdict([], "top5") == "Nothing was run."


def test_verdict_of_what_was_lost_and_gained() -> None:
    """Of a donor that lost what the base knew it says what carries the loss, on a metric of which
    less is better too, beside what another prompt gained.
    """
    for metric in ("top5", "log_rank"):
        rates = {"PRE": 0.9, "SFT": 0.1, "FE+LT": 0.1, "(FE+LT)^C": 0.9}
        text = summarize(rows(rates=rates, prompts=("headline",)), metric=metric).verdict
        assert re.match(r"FE\+LT carries 10[01] % \[", text)
        assert re.search(r"finetuning took away on headline; without both, (0|−1) % \[", text)
        assert "is worse than the base" in text and "added" not in text
    gained = rows(rates={"PRE": 0.1, "SFT": 0.9, "LT": 0.8}, prompts=("qa",))
    lost = rows(rates={"PRE": 0.9, "SFT": 0.1, "LT": 0.5}, prompts=("headline",))
    text = summarize(pa.concat_tables([gained, lost])).verdict
    assert text.startswith("LT carries 88 % [")
    assert "finetuning added on qa; LT carries 50 % [" in text
    assert "finetuning took away on headline; on headline the finetuned model is worse" in text


@pytest.mark.parametrize("base", [0.1, 0.9])
def test_verdict_of_what_controls_have_too(base: float) -> None:
    """It begins with that where finetuning changed them as far as cases, or farther, in either
    direction; where cases changed more, where cases did not change, and without controls it has
    no word of them.
    """

    def text(donor: float, of_controls: float | None, base: float = base) -> str:
        groups = [("headline", donor)]
        if of_controls is not None:
            groups.append(("headline (off)", of_controls))
        tables = []
        for prompt, rate in groups:
            rates = {"PRE": base, "SFT": rate, "LT": (base + rate) / 2}
            tables.append(rows(rates=rates, prompts=(prompt,)))
        return summarize(pa.concat_tables(tables)).verdict

    some, far = (0.5, 1 - base)
    alike = text(some, some)
    begins = "On headline finetuning did not change cases significantly more than controls"
    assert re.match(begins + r", cases by −?\.40 \[.*\], controls by −?\.40 \[.*\]; LT ", alike)
    farther = text(some, far)
    assert farther.startswith("On headline finetuning changed controls more than cases, cases by ")
    every = text(1.0, 1.0, base=0.0)  # each group without spread
    assert every.startswith("On headline finetuning changed controls as far as cases, cases by ")
    assert "changed controls more than cases" in text(some, 1.0, base=0.0)
    for other in (text(far, some), text(some, None), text(base, far)):
        assert "controls" not in other


def test_ranks_of_all_configurations() -> None:
    """Where every rank is 1 under the donor, their mean stands alone, and the mean of their
    logarithms has an interval all the same.
    """
    table = rows(prompts=["qa"])
    ones = [
        1 if g == "SFT" else r
        for g, r in zip(table["graft"].to_pylist(), table["rank"].to_pylist(), strict=True)
    ]
    table = table.set_column(5, table.schema.field(5), pa.array(ones, pa.int32()))
    row = next(r for r in summarize(table).rows if r.graft == "SFT")
    assert row.rank.value == 1
    assert row.rank.low is None
    assert "see median_rank" in (row.rank.undefined or "")
    assert row.log_rank.value == row.log_rank.low == 0 < row.log_rank.high
    assert (row.median_rank.low, row.median_rank.high) == (1, 1)
    assert mean(np.ones(50)).undefined


# ----------------------------------------------------------- rankings, and what cannot be expressed

TOPS = {"top 0.1%": 0.1, "top 1%": 1.0, "top 10%": 10.0, "top 100%": 100.0}


def test_summary_of_a_ranking() -> None:
    """Its curve has the rows' recoveries, and the verdict speaks of its best sites and of the area."""
    table = rows(
        rates={
            "PRE": 0.0,
            "SFT": 1.0,
            "ALL": 0.9,
            "top 0.1%": 0.0,
            "top 1%": 0.2,
            "top 10%": 0.6,
            "top 100%": 0.9,
        }
    )
    found = summarize(table, complements=dict.fromkeys(TOPS), budgets=TOPS)
    assert found.curve is not None and set(found.curve) == {"headline", "qa"}
    by = {(r.prompt, r.graft): r.sufficiency for r in found.rows}
    assert [p.recovery for p in found.curve["qa"].points] == [by["qa", top] for top in TOPS]
    assert found.curve["qa"].area.value == pytest.approx((0.1 + 0.4 + 0.75) / 3)
    assert found.verdict.startswith("The best-ranked 1 % of all weights × tokens carry 20 % [")
    assert "the best-ranked 10 %" in found.verdict
    assert "the area under the recovery curve is .42 [" in found.verdict
    assert summarize(table).curve is None


def test_summary_of_what_cannot_be_expressed() -> None:
    """Such a configuration has a row in its place, with the reason in every figure and no facts;
    the verdict says which.
    """
    rates = {graft: rate for graft, rate in RATES.items() if graft not in ("FE", "LT^C")}
    absent = {"headline": {"FE": "no", "LT^C": "never"}, "qa": {"FE": "no", "LT^C": "never"}}
    found = summarize(rows(rates=rates), absent=absent)
    assert [r.graft for r in found.rows if r.prompt == "qa"] == list(CONFIGURATIONS)
    by = {r.graft: r for r in found.rows if r.prompt == "qa"}
    assert by["FE"].n == 0 and not by["FE"].applicable and by["LT"].applicable
    assert {by["FE"].top5.undefined, by["FE"].necessity.undefined, by["FE"].gain.undefined} == {
        "not applicable: no"
    }
    assert by["LT"].necessity.undefined == "its complement LT^C is not applicable: never"
    assert found.synergy["qa"].undefined == "not applicable: the method cannot express FE"
    assert found.verdict.endswith("the method cannot express FE and LT^C (top5).")
    assert "FE alone" not in found.verdict
    once = summarize(rows(rates=RATES), absent={"qa": {"M": "no movie"}})
    assert once.verdict.endswith("the method cannot express M on qa (top5).")


# ------------------------------------------------------------------------------- gains that are weak


def weak(n: int = 30, **rates: float) -> Record:
    """Eleven facts of thirty gained, none lost."""
    found = {"PRE": 0.0, "SFT": 11 / 30, "ALL": 11 / 30, "FE": 2 / 30, "LT": 4 / 30}
    found |= {"FE+LT": 8 / 30, "(FE+LT)^C": 1 / 30, **rates}
    limited = fake_runs.identity(limit=n)
    return fake_runs.record(rows(n, found, prompts=["headline"]), what=limited)


def test_a_weak_gain_is_told_in_differences() -> None:
    """Of a gain within five standard errors of 0 the sentence has differences with their intervals
    and no per cent.
    """
    record = weak()
    gain = record.by_prompt["headline"]["SFT"].gain
    assert gain.numbers is not None and 2 < standard_errors(gain) < WEAK
    assert record.verdict.startswith(
        "FE+LT carries .27 [.07, .43] of the .37 [.15, .54] that finetuning added on headline; "
        "without both, .03 ["
    )
    assert "%" not in record.verdict and "FE alone .07 [" in record.verdict
    for row in record.rows:
        assert row.difference is not None
        assert row.difference.value == pytest.approx((row.top5.value or 0), abs=1e-5)


def test_a_strong_gain_is_told_in_shares() -> None:
    """Twenty-nine of thirty facts are no weak gain, and fifty facts need no remark on their number."""
    record = weak(SFT=29 / 30, ALL=29 / 30)
    assert "%" in record.verdict and all(row.difference is None for row in record.rows)
    text = to_text(record_report(fake_runs.record(rows(50))))
    assert "standard errors" not in text and "are few" not in text


PERCENT = re.compile(r"([−\d]+) %( \[([−\d]+), ([−\d]+)\])?")


@settings(max_examples=60)
@given(
    n=st.integers(5, 60),
    rates=st.lists(st.floats(0, 1), min_size=6, max_size=6),
    metric=st.sampled_from(METRICS),
)
def test_no_sentence_has_a_share_that_nobody_reads(n: int, rates: list[float], metric: str) -> None:
    """Whatever the rates, per cents have their interval and are within 200."""
    grafts = ("PRE", "SFT", "FE", "LT", "FE+LT", "(FE+LT)^C")
    table = rows(n, dict(zip(grafts, rates, strict=True)), prompts=["headline"])
    for found in PERCENT.finditer(summarize(table, metric=metric, limited=True).verdict):
        assert found[2], found[0]
        assert all(abs(int(text.replace("−", "-"))) <= 200 for text in found.group(1, 3, 4))
