"""Whether an interval decides a bound, at all its edges."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kgbench.errors import InputError, UnknownNameError
from kgbench.estimate import Estimate
from kgbench.stats import mean
from kgbench.testing.decisions import FEWEST, OPERATORS
from kgbench.testing.decisions import Decision as decide

NEGATION = {"ge": "lt", "lt": "ge", "gt": "le", "le": "gt"}


def estimate(value: float, low: float, high: float, n: int = 150) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=n)


@dataclass(frozen=True)
class Shape:
    """How far an interval reaches below and above its value where it is over one fact."""

    value: float
    below: float
    above: float

    def over(self, n: int) -> Estimate:
        return estimate(
            self.value, self.value - self.below / sqrt(n), self.value + self.above / sqrt(n), n
        )


numbers = st.floats(-3, 3, allow_subnormal=False)
reaches = st.one_of(st.just(0.0), st.floats(0.001, 20))
shapes = st.builds(Shape, numbers, reaches, reaches)
operators = st.sampled_from(sorted(OPERATORS))


@pytest.mark.parametrize(
    ("low", "high", "outcomes"),
    [
        (0.92, 0.99, {"ge": "holds", "gt": "holds", "le": "fails", "lt": "fails"}),
        (0.90, 0.99, {"ge": "holds", "gt": "undecided", "le": "undecided", "lt": "fails"}),
        (0.85, 0.95, {"ge": "undecided", "gt": "undecided", "le": "undecided", "lt": "undecided"}),
        (0.80, 0.90, {"ge": "undecided", "gt": "fails", "le": "holds", "lt": "undecided"}),
        (0.80, 0.88, {"ge": "fails", "gt": "fails", "le": "holds", "lt": "holds"}),
        (0.90, 0.90, {"ge": "holds", "gt": "fails", "le": "holds", "lt": "fails"}),
    ],
)
def test_by_the_whole_interval(low: float, high: float, outcomes: dict[str, str]) -> None:
    """All of the interval keeps the bound, or none of it does; a touching point keeps `ge` and `le`
    and breaks `gt` and `lt`.
    """
    for value in (low, (low + high) / 2, high):
        found = {op: decide(estimate(value, low, high), op, 0.9).outcome for op in OPERATORS}
        assert found == outcomes


@pytest.mark.parametrize(("n", "decided"), [(1, False), (9, False), (10, True), (11, True)])
def test_fewer_than_ten_facts_never_decide(n: int, decided: bool) -> None:
    """Not even where the whole interval keeps, or breaks, the bound; ten would."""
    for op, outcome in (("ge", "holds"), ("le", "fails")):
        decision = decide(estimate(0.5, 0.4, 0.6, n), op, 0.1)
        assert decision.outcome == (outcome if decided else "undecided")
        assert decision.facts_needed == (None if decided else 10)


def test_all_values_equal() -> None:
    """Hits of all facts have an interval all the same; equal scores of no known support have no
    figure, and decide nothing.
    """
    hits = mean(np.ones(50, bool)).rounded()
    assert decide(hits, "ge", 0.9).outcome == "holds"
    assert decide(hits, "ge", 0.95).outcome == "undecided"
    same = mean(np.full(50, 0.3)).rounded()
    decision = decide(same, "ge", 0.1)
    assert (decision.outcome, decision.facts_needed) == ("undecided", None)
    assert "their spread cannot be estimated" in str(decision)


def test_one_value_without_a_width() -> None:
    """What holds by definition, such as the recovery of SFT, has an interval of one point, which
    decides.
    """
    assert [decide(estimate(1, 1, 1), op, 1).outcome for op in ("ge", "le", "gt", "lt")] == [
        "holds",
        "holds",
        "fails",
        "fails",
    ]
    assert decide(estimate(1, 1, 1, 3), "ge", 0.9).facts_needed == FEWEST


def test_undefined_decides_nothing() -> None:
    """However many facts there are."""
    decision = decide(Estimate(n=1000, undefined="m(SFT) - m(PRE) is not told from 0"), "le", 1e9)
    assert (decision.outcome, decision.facts_needed) == ("undecided", None)


def test_facts_needed() -> None:
    """By the end of the interval that crosses the bound: .86 [.78, .92] needs (.06 / .04)² times
    its 150 facts to fall below .9.
    """
    assert decide(estimate(0.86, 0.78, 0.92), "ge", 0.9).facts_needed == 338
    assert decide(estimate(0.94, 0.86, 0.99), "ge", 0.9).facts_needed == 600
    assert decide(estimate(0.9, 0.8, 1.0), "ge", 0.9).facts_needed is None


@given(shapes, st.integers(1, 400), operators, numbers)
def test_never_both(shape: Shape, n: int, op: str, bound: float) -> None:
    """What keeps a bound does not keep its negation, and what is undecided is undecided either way."""
    outcomes = (
        decide(shape.over(n), op, bound).outcome,
        decide(shape.over(n), NEGATION[op], bound).outcome,
    )
    assert outcomes in {("holds", "fails"), ("fails", "holds"), ("undecided", "undecided")}


@given(shapes, st.integers(1, 400), operators, numbers)
def test_mirrored(shape: Shape, n: int, op: str, bound: float) -> None:
    """Figure and bound with the other sign, and the operator turned round, are decided alike."""
    turned = {"ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}[op]
    mirror = Shape(-shape.value, shape.above, shape.below)
    one, other = decide(shape.over(n), op, bound), decide(mirror.over(n), turned, -bound)
    assert (one.outcome, one.facts_needed) == (other.outcome, other.facts_needed)


@given(shapes, st.integers(1, 400), st.integers(0, 400), operators, numbers)
def test_more_facts_stay_decided(shape: Shape, n: int, more: int, op: str, bound: float) -> None:
    """With estimate and spread as they are, more facts never take a decision back."""
    before, after = (decide(shape.over(size), op, bound).outcome for size in (n, n + more))
    assert before in ("undecided", after)


@given(shapes, st.integers(1, 400), operators, numbers)
def test_the_facts_needed_decide(shape: Shape, n: int, op: str, bound: float) -> None:
    """So many facts with estimate and spread as they are do decide it (but for rounding: a per
    mille more), and clearly fewer do not.

    An estimate has six digits, so nearer to the bound its rounding is more than a per mille of the
    distance.
    """
    assume(abs(shape.value - bound) > 0.1)
    decision = decide(shape.over(n), op, bound)
    assume(decision.outcome == "undecided")
    assert decision.facts_needed is not None and decision.facts_needed >= FEWEST
    assert (
        decide(shape.over(int(decision.facts_needed * 1.001) + 1), op, bound).outcome != "undecided"
    )
    fewer = int(decision.facts_needed * 0.999) - 2
    assert fewer < 1 or decide(shape.over(fewer), op, bound).outcome == "undecided"


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), "0.9", None, True])
def test_a_bound_is_a_number(bound: float) -> None:
    """Of anything else every comparison is false, which would pass for a decision."""
    with pytest.raises(InputError, match="a bound is a finite number"):
        decide(estimate(0.5, 0.4, 0.6), "ge", bound)


def test_unknown_operator() -> None:
    """It is told with those that there are."""
    with pytest.raises(UnknownNameError, match="Known: ge, gt, le, lt"):
        decide(estimate(0.5, 0.4, 0.6), "eq", 0.5)


def told(figure: Estimate, op: str, bound: float, over: str = "") -> str:
    return str(decide(figure, op, bound, "headline, FE+LT: sufficiency", over))


def test_sentences() -> None:
    """They say estimate, interval, number of facts, bound, and how many facts would decide it."""
    start = "headline, FE+LT: sufficiency"
    for op, bound, end in (
        ("ge", 0.9, "does not decide the bound .9 (ge); at most about 338 facts would decide it"),
        ("ge", 0.93, "is below the bound .93 (ge)"),
        ("gt", 0.92, "is not above the bound .92 (gt)"),
        ("le", 0.1, "is above the bound .1 (le)"),
        ("lt", 0.78, "is not below the bound .78 (lt)"),
        ("ge", 0.5, "keeps the bound .5 (ge)"),
    ):
        sentence = told(estimate(0.86, 0.78, 0.92), op, bound)
        assert sentence == f"{start} .86 [.78, .92] over 150 facts {end}"
    assert told(estimate(0.86, 0.78, 0.92), "ge", 0.86).endswith(
        "on the bound, so that no number of facts would decide it"
    )
    few = (
        "over 1 fact: fewer than 10 do not decide the bound .9 (ge); at most about 10 facts would"
        " decide it"
    )
    assert told(estimate(1, 1, 1, 1), "ge", 0.9) == f"{start} 1 {few}"
    reason = Estimate(n=4, undefined="no gain")
    assert (
        told(reason, "ge", 0.9)
        == f"{start} is undefined, so that the bound .9 (ge) is undecided: no gain"
    )
    sites = told(estimate(0.86, 0.78, 0.92), "ge", 0.9, "12 planted sites")
    assert "over 12 planted sites does not decide" in sites
    assert sites.endswith("it is not over facts, so that more of them do not narrow it")


def test_digits_tell_the_ends_from_the_bound() -> None:
    """Where rounding would put an end of the interval on the bound, more digits are shown."""
    assert ".896 [.85, .93]" in told(estimate(0.896, 0.85, 0.93), "ge", 0.9)
    assert ".90 [.86, .93]" in told(estimate(0.9, 0.861, 0.93), "ge", 0.9)
