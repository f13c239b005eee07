"""Laws of the figures that judge a ranking: what they count, ties, and intervals that are no
points.
"""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kgbench.estimate import Estimate
from kgbench.stats import agreement
from kgbench.stats.ranking_quality import (
    LEAST,
    auroc,
    chance_precision,
    expected_precision,
    graded_precision,
)
from kgbench.stats.ratios import area_weights, curve_area, recovery

cases = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=6)


def average_precision(scores: np.ndarray, truth: np.ndarray) -> Estimate:
    """Of two grades, graded precision is average precision."""
    return graded_precision(scores, truth.astype(float))


FIGURES = (auroc, average_precision)


def arrays(case: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    scores, truth = (np.array(column) for column in zip(*case, strict=True))
    assume(0 < truth.sum() < len(truth))
    return scores.astype(float), truth


def by_order(truth: np.ndarray) -> tuple[float, float]:
    """AUROC and average precision of an order without ties, the first the highest, by their
    definitions.
    """
    k, n = int(truth.sum()), len(truth)
    places = np.flatnonzero(truth)
    above = sum(int((~truth[place + 1 :]).sum()) for place in places)
    precision = float(np.mean([truth[: place + 1].mean() for place in places]))
    return above / (k * (n - k)), precision


@given(cases)
def test_ties_are_averages_over_their_orders(case: list[tuple[int, bool]]) -> None:
    """Each figure is the mean over all orders that the scores leave open."""
    scores, truth = arrays(case)
    orders = [
        p
        for p in permutations(range(len(scores)))
        if all(scores[a] >= scores[b] for a, b in pairwise(p))
    ]
    expected = np.mean([by_order(truth[list(order)]) for order in orders], axis=0)
    np.testing.assert_allclose([figure(scores, truth).value for figure in FIGURES], expected)


@given(cases)
def test_only_the_order_counts(case: list[tuple[int, bool]]) -> None:
    """A rising map of the scores and another order of the sites change nothing; negated scores
    mirror AUROC.
    """
    scores, truth = arrays(case)
    for figure in FIGURES:
        same = figure(np.exp(scores)[::-1], truth[::-1])
        assert same.value == pytest.approx(figure(scores, truth).value)
    here, mirrored = auroc(scores, truth), auroc(-scores, truth)
    assert mirrored.value == pytest.approx(1 - here.value)


def test_random_expectations() -> None:
    """What a random order is expected to get is the mean over random orders, and what equal scores
    get.
    """
    truth, rng = np.arange(12) < 3, np.random.default_rng(0)
    found = np.mean([by_order(rng.permutation(truth)) for _ in range(4000)], axis=0)
    np.testing.assert_allclose(found, [0.5, expected_precision(12, 3)], atol=0.02)
    assert average_precision(np.zeros(12), truth).value == pytest.approx(expected_precision(12, 3))


def test_sites_are_no_sample() -> None:
    """A figure over the sites of one plant is a value alone, and says why."""
    for figure in FIGURES:
        found = figure(np.arange(20.0), np.arange(20) < 4)
        assert (
            found.value is not None
            and found.low is found.high is None
            and "not a sample" in (found.undefined or "")
        )


@pytest.mark.parametrize("k", [0, 5])
def test_nothing_to_separate(k: int) -> None:
    """Where all or none of the sites are planted there is no figure, and the reason says so."""
    assert "nothing to separate" in (auroc(np.arange(5.0), np.arange(5) < k).undefined or "")


# ------------------------------------------------------------------------------------- graded truth

graded = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([-0.2, 0.0, 0.04, 0.1, 0.1, 0.5, 0.9, 1.3])),
    min_size=2,
    max_size=6,
)


def graded_arrays(case: list[tuple[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    scores, relevance = (np.array(column, float) for column in zip(*case, strict=True))
    assume(relevance.max() > LEAST and np.ptp(relevance) > 0)
    return scores, relevance


def over_thresholds(scores: np.ndarray, relevance: np.ndarray) -> float:
    """The mean of average precision over a fine grid of thresholds, by its definition."""
    low, high = max(LEAST, relevance.min()), relevance.max()
    grid = low + (np.arange(2000) + 0.5) / 2000 * (high - low)
    values = {t: average_precision(scores, relevance >= t).value for t in np.unique(relevance)}
    return float(np.mean([values[relevance[relevance >= t].min()] for t in grid]))


@given(graded)
def test_graded_precision_is_the_mean_over_thresholds(case: list[tuple[int, float]]) -> None:
    """Each threshold between the least and the largest relevance, from .05 up, weighs the same."""
    scores, relevance = graded_arrays(case)
    np.testing.assert_allclose(
        graded_precision(scores, relevance).value, over_thresholds(scores, relevance), atol=5e-3
    )


@given(graded)
def test_the_truth_has_1_and_equal_scores_have_chance(case: list[tuple[int, float]]) -> None:
    """Ranked by relevance all is found; a map that scores all alike has the mean of all orders;
    nothing is above 1.
    """
    scores, relevance = graded_arrays(case)
    assert graded_precision(relevance, relevance).value == pytest.approx(1)
    chance = chance_precision(relevance)
    assert graded_precision(np.zeros(len(relevance)), relevance).value == pytest.approx(chance)
    orders = [
        graded_precision(-np.array(order, float), relevance).value
        for order in permutations(range(len(relevance)))
    ]
    assert np.mean(orders) == pytest.approx(chance) and max(orders) <= 1
    assert graded_precision(scores, relevance).value <= 1


@given(graded)
def test_graded_precision_is_of_the_order(case: list[tuple[int, float]]) -> None:
    """A rising map of the scores and another order of the places change nothing."""
    scores, relevance = graded_arrays(case)
    found = graded_precision(np.exp(scores)[::-1], relevance[::-1]).value
    assert found == pytest.approx(graded_precision(scores, relevance).value)


def test_of_two_grades_it_is_average_precision() -> None:
    """Where places are relevant or not, grades make no difference."""
    scores, truth = np.array([3.0, 1.0, 2.0, 2.0, 0.0]), np.array([True, True, False, True, False])
    assert graded_precision(scores, 0.7 * truth).value == pytest.approx(
        average_precision(scores, truth).value
    )


@pytest.mark.parametrize(
    ("relevance", "words"),
    [([0.04, -0.3, 0], "above 0.05"), ([0.5, 0.5], "equally relevant"), ([], "no weights changed")],
)
def test_without_grades_there_is_nothing_to_rank(relevance: list[float], words: str) -> None:
    """No figure, a reason, and no chance."""
    values = np.array(relevance)
    assert (
        words in (graded_precision(np.arange(float(len(values))), values).undefined or "")
        and chance_precision(values) is None
    )


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
