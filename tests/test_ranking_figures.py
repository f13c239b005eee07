"""Laws of the figures that judge a ranking: what they count, ties, and intervals that are no
points.
"""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kgbench.stats import agreement
from kgbench.stats.ranking_quality import average_precision, chance_precision, expected_precision
from kgbench.stats.ratios import area_weights, curve_area, recovery

cases = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=6)


def arrays(case: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    scores, truth = (np.array(column) for column in zip(*case, strict=True))
    assume(0 < truth.sum() < len(truth))
    return scores.astype(float), truth


def by_order(truth: np.ndarray) -> float:
    """Average precision of an order without ties, the first the highest, by its definition."""
    return float(np.mean([truth[: place + 1].mean() for place in np.flatnonzero(truth)]))


@given(cases)
def test_ties_are_averages_over_their_orders(case: list[tuple[int, bool]]) -> None:
    """It is the mean over all orders that the scores leave open, and never above 1."""
    scores, truth = arrays(case)
    orders = []
    for order in permutations(range(len(scores))):
        if all(scores[a] >= scores[b] for a, b in pairwise(order)):
            orders.append(by_order(truth[list(order)]))
    value = average_precision(scores, truth).value
    assert value == pytest.approx(np.mean(orders))
    assert value <= 1 == average_precision(truth.astype(float), truth).value


@given(cases)
def test_only_the_order_counts(case: list[tuple[int, bool]]) -> None:
    """A rising map of the scores and another order of the places change nothing."""
    scores, truth = arrays(case)
    same = average_precision(np.exp(scores)[::-1], truth[::-1])
    assert same.value == pytest.approx(average_precision(scores, truth).value)


def test_random_expectations() -> None:
    """Chance is the mean over random orders, and what equal scores get."""
    truth, random = np.arange(12) < 3, np.random.default_rng(0)
    mean = np.mean([by_order(random.permutation(truth)) for _ in range(4000)])
    assert mean == pytest.approx(expected_precision(12, 3), abs=0.02)
    assert chance_precision(truth) == expected_precision(12, 3)
    assert average_precision(np.zeros(12), truth).value == pytest.approx(expected_precision(12, 3))


def test_places_are_no_sample() -> None:
    """A figure over the places of one plant is a value alone, and says why."""
    precision = average_precision(np.arange(20.0), np.arange(20) < 4)
    assert precision.value is not None
    assert precision.low is precision.high is None
    assert "not a sample" in (precision.undefined or "")


@pytest.mark.parametrize("k", [0, 5])
def test_nothing_to_separate(k: int) -> None:
    """Where all or none of the places are planted there is no figure, and the reason says so."""
    truth = np.arange(5) < k
    assert "no order is wrong" in (average_precision(np.arange(5.0), truth).undefined or "")
    assert chance_precision(truth) is None


def test_agreement() -> None:
    """Spearman's correlation with its number of sites; equal orders have 1, constant maps none."""
    rng = np.random.default_rng(2)
    first = rng.normal(size=200)
    found = agreement(first, first + rng.normal(size=200))
    assert 0.5 < found.value < 0.9 and found.n == 200 and found.low is None
    assert (agreement(first, np.exp(first)).value, agreement(first, -first).value) == (1, -1)
    assert agreement(first, np.zeros(200)).value is None


# ------------------------------------------------------------------------- the area under the curve

BUDGETS = {f"top {b:g}%": b for b in (0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)}


def test_the_area_is_the_trapezoid() -> None:
    """It is the trapezoid over log10 of the budget from .1 to 100, divided by 3; 0 has no part in
    it, and a constant has itself.
    """
    budgets = np.array(list(BUDGETS.values()))
    heights = np.random.default_rng(3).random(len(budgets))
    logs = np.log10(budgets[1:])
    expected = np.sum((heights[1:-1] + heights[2:]) / 2 * np.diff(logs)) / 3
    assert area_weights(budgets) @ heights == pytest.approx(expected)
    assert area_weights(budgets).sum() == pytest.approx(1)
    for wrong in ([1.0, 100.0], [0.1, 1.0], [0.1, 0.1, 100.0]):
        with pytest.raises(ValueError):
            area_weights(np.array(wrong))


def test_area_of_recoveries() -> None:
    """The area is the weighted mean of the recoveries; a ranking that has everything at .1 % has 1,
    and no point.
    """
    rng = np.random.default_rng(4)
    hit = rng.random((len(BUDGETS), 40)) < np.linspace(0, 0.9, len(BUDGETS))[:, None]
    scores = {
        "PRE": np.zeros(40, bool),
        "SFT": rng.random(40) < 0.95,
        **dict(zip(BUDGETS, hit, strict=True)),
    }
    recoveries = {label: recovery(scores, label) for label in BUDGETS}
    found = curve_area(scores, BUDGETS)
    assert found.value == pytest.approx(
        area_weights(np.array(list(BUDGETS.values()))) @ [f.value for f in recoveries.values()]
    )
    assert found.low < found.value < found.high
    full = curve_area({**scores, **dict.fromkeys(BUDGETS, scores["SFT"])}, BUDGETS)
    assert full.value == pytest.approx(1) and full.low < 0.95 < 1.05 < full.high
    assert curve_area({**scores, "SFT": scores["PRE"]}, BUDGETS).undefined
