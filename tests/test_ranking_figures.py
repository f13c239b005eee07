"""Laws of the figures that judge a ranking: what they count, ties, and intervals that are no points."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import norm

from kgbench.effects import agreement, rank_figures
from kgbench.effects.curve import area, points, weights
from kgbench.effects.ranking import auroc, average_precision, expected_precision, recall_at_k
from kgbench.stats import resample, wilson, wilson_interval

cases = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=2, max_size=6)
FIGURES = (auroc, average_precision, recall_at_k)


def arrays(case: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    scores, truth = (np.array(column) for column in zip(*case, strict=True))
    assume(0 < truth.sum() < len(truth))
    return scores.astype(float), truth


def by_order(truth: np.ndarray) -> tuple[float, float, float]:
    """AUROC, average precision and recall@k of an order without ties, the first the highest, by their definitions."""
    k, n = int(truth.sum()), len(truth)
    places = np.flatnonzero(truth)
    above = sum(int((~truth[place + 1 :]).sum()) for place in places)
    precision = float(np.mean([truth[: place + 1].mean() for place in places]))
    return above / (k * (n - k)), precision, float(truth[:k].sum() / k)


@given(cases)
def test_ties_are_averages_over_their_orders(case: list[tuple[int, bool]]) -> None:
    """Each figure is the mean over all orders that the scores leave open."""
    scores, truth = arrays(case)
    orders = [p for p in permutations(range(len(scores))) if all(scores[a] >= scores[b] for a, b in pairwise(p))]
    expected = np.mean([by_order(truth[list(order)]) for order in orders], axis=0)
    np.testing.assert_allclose([figure(scores, truth).value for figure in FIGURES], expected)


@given(cases)
def test_only_the_order_counts(case: list[tuple[int, bool]]) -> None:
    """A rising map of the scores and another order of the sites change nothing; negated scores mirror AUROC and its interval."""
    scores, truth = arrays(case)
    for figure in FIGURES:
        same = figure(np.exp(scores)[::-1], truth[::-1])
        assert same.value == pytest.approx(figure(scores, truth).value)
    here, mirrored = auroc(scores, truth), auroc(-scores, truth)
    np.testing.assert_allclose([mirrored.value, mirrored.low, mirrored.high], [1 - here.value, 1 - here.high, 1 - here.low], atol=1e-9)


def test_random_expectations() -> None:
    """What a random order is expected to get is the mean over random orders."""
    truth, rng = np.arange(12) < 3, np.random.default_rng(0)
    found = np.mean([by_order(rng.permutation(truth)) for _ in range(4000)], axis=0)
    expected = rank_figures(np.zeros(12), truth)
    np.testing.assert_allclose(found, list(expected.expected.values()), atol=0.02)
    assert expected.average_precision.value == pytest.approx(expected_precision(12, 3))
    assert (expected.auroc.value, expected.recall_at_k.value) == (0.5, 0.25)


def test_newcombe_s_interval() -> None:
    """Both ends solve the equation of his method 5; a perfect ranking has a lower end below 1, the nearer the more sites there are."""

    def variance(t: float, k: int, m: int) -> float:
        return t * (1 - t) / (k * m) * (1 + ((k + m) / 2 - 1) * ((1 - t) / (2 - t) + t / (1 + t)))

    rng = np.random.default_rng(1)
    for k, m in ((8, 28), (3, 100), (40, 5)):
        truth = np.arange(k + m) < k
        found = auroc(rng.normal(size=k + m) + truth, truth)
        for end in (found.low, found.high):
            assert abs(end - found.value) == pytest.approx(norm.ppf(0.975) * variance(end, k, m) ** 0.5, abs=1e-6)
    perfect = [auroc(np.arange(n) < n // 3, np.arange(n) < n // 3) for n in (6, 30, 300)]
    assert all(f.value == f.high == 1 for f in perfect)
    assert perfect[0].low < perfect[1].low < perfect[2].low < 1


def test_binomial_intervals() -> None:
    """Average precision and recall@k have Wilson's interval on the number of planted sites, which needs no whole number."""
    truth = np.arange(20) < 4
    found = recall_at_k(-np.arange(20.0), truth)
    assert (found.value, found.low) == (1, pytest.approx(wilson(4, 4).low))
    assert wilson_interval(0.25, 8) == pytest.approx((wilson(2, 8).low, wilson(2, 8).high))
    low, high = wilson_interval(0.33, 8)
    assert wilson(2, 8).low < low < 0.33 < high < wilson(3, 8).high


@pytest.mark.parametrize("k", [0, 5])
def test_nothing_to_separate(k: int) -> None:
    """Where all or none of the sites are planted there is no figure, and the reason says so."""
    for figure in FIGURES:
        assert "nothing to separate" in (figure(np.arange(5.0), np.arange(5) < k).undefined or "")


def test_agreement() -> None:
    """Spearman's correlation with its number of sites; equal orders have 1, constant maps none."""
    rng = np.random.default_rng(2)
    first = rng.normal(size=200)
    found = agreement(first, first + rng.normal(size=200))
    assert 0.5 < found.low < found.value < found.high < 0.9 and found.n == 200
    assert (agreement(first, np.exp(first)).value, agreement(first, -first).value) == (1, -1)
    assert agreement(first, np.zeros(200)).undefined


# ------------------------------------------------------------------------------------------------ the area under the curve

BUDGETS = {f"top {b:g}%": b for b in (0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)}


def test_the_area_is_the_trapezoid() -> None:
    """It is the trapezoid over log10 of the budget from .1 to 100, divided by 3; 0 has no part in it, and a constant has itself."""
    budgets = np.array(list(BUDGETS.values()))
    heights = np.random.default_rng(3).random(len(budgets))
    logs = np.log10(budgets[1:])
    expected = np.sum((heights[1:-1] + heights[2:]) / 2 * np.diff(logs)) / 3
    assert weights(budgets) @ heights == pytest.approx(expected)
    assert weights(budgets).sum() == pytest.approx(1)
    for wrong in ([1.0, 100.0], [0.1, 1.0], [0.1, 0.1, 100.0]):
        with pytest.raises(ValueError):
            weights(np.array(wrong))


def test_area_of_recoveries() -> None:
    """The area is the weighted mean of the recoveries, under one resample; a ranking that has everything at .1 % has 1, and no point."""
    rng = np.random.default_rng(4)
    hit = rng.random((len(BUDGETS), 40)) < np.linspace(0, 0.9, len(BUDGETS))[:, None]
    scores = {"PRE": np.zeros(40, bool), "SFT": rng.random(40) < 0.95, **dict(zip(BUDGETS, hit, strict=True))}
    counts = resample(40).astype(float)
    recoveries = points(scores, BUDGETS, counts)
    found = area(scores, BUDGETS, counts)
    assert found.value == pytest.approx(weights(np.array(list(BUDGETS.values()))) @ [f.value for f in recoveries.values()])
    assert found.low < found.value < found.high
    full = area({**scores, **dict.fromkeys(BUDGETS, scores["SFT"])}, BUDGETS, counts)
    assert full.value == pytest.approx(1) and full.low < 0.95 < 1.05 < full.high
    assert area({**scores, "SFT": scores["PRE"]}, BUDGETS, counts).undefined
