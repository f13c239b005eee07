"""Laws of the estimates: what an interval holds, and how often."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from kgbench.stats import Figure, difference, discordance, mean, ratio, resample, resampled_means, unseen, wilson

Triple = tuple[np.ndarray, np.ndarray, np.ndarray]
hits = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40)


def test_figure_json() -> None:
    """A figure is three numbers or a reason, never both and never neither."""
    assert Figure(0.5, 0.4, 0.6, 9).to_json() == {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    assert Figure.missing("why", 3).to_json() == {"undefined": "why", "n": 3}


@pytest.mark.parametrize(
    "numbers", [(None, None, None), (0.5, None, None), (0.5, 0.6, 0.7), (float("nan"), 0.0, 1.0), (0.5, 0.0, float("inf"))]
)
def test_figure_refuses(numbers: tuple[float | None, float | None, float | None]) -> None:
    """Half a figure, NaN, an infinity and a value outside its interval are refused."""
    with pytest.raises(ValueError):
        Figure(*numbers, 9)


def test_figure_refuses_reason_with_numbers() -> None:
    """A figure that is undefined holds no numbers."""
    with pytest.raises(ValueError):
        Figure(0.5, 0.4, 0.6, 9, "why")


def test_one_minus() -> None:
    """1 - x turns the interval round, and leaves undefined undefined."""
    assert Figure(0.25, 0.0, 0.5, 9).one_minus() == Figure(0.75, 0.5, 1.0, 9)
    assert Figure.missing("why", 9).one_minus() == Figure.missing("why", 9)


@given(n=st.integers(1, 60), draws=st.integers(1, 50), seed=st.integers(0, 9))
def test_resample(n: int, draws: int, seed: int) -> None:
    """Each draw holds n facts, and the same arguments give the same draws."""
    counts = resample(n, draws, seed)
    assert counts.shape == (draws, n) and (counts.sum(axis=1) == n).all() and (counts >= 0).all()
    assert np.array_equal(counts, resample(n, draws, seed))


@pytest.mark.parametrize(("n", "draws"), [(0, 10), (5, 0)])
def test_resample_refuses(n: int, draws: int) -> None:
    """There is no resample of nothing."""
    with pytest.raises(ValueError):
        resample(n, draws)


def test_resampled_means_are_paired() -> None:
    """One resample serves all: the means of a sum are the sum of the means."""
    rng, counts = np.random.default_rng(0), resample(30, 100, 0)
    a, b = rng.random(30), rng.random(30)
    assert np.allclose(resampled_means(a + b, counts), resampled_means(a, counts) + resampled_means(b, counts))
    with pytest.raises(ValueError):
        resampled_means(rng.random(29), counts)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson(case: tuple[int, int]) -> None:
    """It is scipy's, it is never a point, and turning hits into misses turns it round."""
    h, n = case
    figure, mirrored = wilson(h, n), wilson(n - h, n).one_minus()
    expected = binomtest(h, n).proportion_ci(method="wilson")
    assert figure.low == pytest.approx(expected.low) and figure.high == pytest.approx(expected.high)
    assert figure.low < figure.high
    assert (figure.low, figure.high) == pytest.approx((mirrored.low, mirrored.high), abs=1e-12)


def test_wilson_of_nothing() -> None:
    """A missing number is undefined, never 0."""
    assert wilson(0, 0).undefined


def test_unseen_has_its_closed_form() -> None:
    """Wilson's upper bound at no exception is z²/(n+z²)."""
    z2 = 1.959963984540054**2
    assert unseen(50) == pytest.approx(z2 / (50 + z2))


def test_mean_of_hits_is_wilsons() -> None:
    """Booleans are hits: all alike, they still have a width."""
    assert mean(np.ones(50, bool), resample(50)) == wilson(50, 50)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30))
def test_mean_holds_its_value(values: list[float]) -> None:
    """The interval holds the value; equal values without a known support are undefined, with the value in the reason."""
    figure = mean(np.array(values), resample(len(values), 100))
    if np.ptp(values) == 0:
        assert figure.undefined and "no interval" in figure.undefined
    else:
        assert figure.low <= np.mean(values) <= figure.high


@pytest.mark.parametrize("n", [0, 1])
def test_mean_of_too_few(n: int) -> None:
    """Of one fact there is no interval, and the reason says so."""
    figure = mean(np.full(n, 3.0), np.ones((5, n)))
    assert figure.value is None and "an interval needs two" in (figure.undefined or "")


def test_mean_of_ties_reaches_into_the_support() -> None:
    """All ranks 1 where the recipient's mean rank is 301: as many as 50 facts do not rule out might be like the recipient's."""
    figure = mean(np.ones(50), resample(50), (1.0, 301.0))
    assert (figure.value, figure.low) == (1.0, 1.0) and figure.high == pytest.approx(1 + 300 * unseen(50))


def test_mean_of_many_different_values_ignores_the_support() -> None:
    """Where a bootstrap has enough exceptions to go by, the support changes nothing."""
    values = np.r_[np.ones(40), np.full(10, 2.0)]
    assert mean(values, resample(50), (1.0, 900.0)) == mean(values, resample(50))


@given(hits)
def test_discordance(pairs: list[tuple[bool, bool]]) -> None:
    """It is never a point, holds the mean, and changes sign with the contrast."""
    a, b = np.array(pairs).T.astype(int)
    low, high = discordance(a - b)
    assert low <= np.mean(a - b) <= high and low < high
    assert discordance(b - a) == pytest.approx((-high, -low))


@given(hits)
def test_difference(pairs: list[tuple[bool, bool]]) -> None:
    """A paired difference of hits is never a point and changes sign when its sides change places."""
    a, b = np.array(pairs).T
    counts = resample(len(a), 100)
    figure, turned = difference(a, b, counts), difference(b, a, counts)
    assert figure.low <= figure.value <= figure.high and figure.low < figure.high
    assert (figure.low, figure.high) == pytest.approx((-turned.high, -turned.low))


def test_difference_is_paired() -> None:
    """Two scores that differ by little on every fact have a narrow difference, however wide they are themselves."""
    rng, counts = np.random.default_rng(0), resample(80)
    a = rng.normal(0, 10, 80)
    figure = difference(a, a + rng.normal(0.1, 0.01, 80), counts)
    assert -0.11 < figure.low <= figure.high < -0.09


def test_ratio_of_equals_is_no_point() -> None:
    """A graft that hits just what the donor hits has 1, with the width that 50 facts leave open."""
    counts, gained = resample(50), np.r_[np.ones(45, int), np.zeros(5, int)]
    figure = ratio(gained, gained, counts)
    assert figure.value == 1 and (figure.low, figure.high) == pytest.approx((1 - unseen(50) / 0.9, 1 + unseen(50) / 0.9))
    smooth = ratio(gained * 1.5, gained * 1.5, counts)
    assert (smooth.low, smooth.high) == pytest.approx((1 - unseen(50), 1 + unseen(50)))


def test_ratio_is_not_clamped() -> None:
    """Ratios below 0 and above 1 stay as they are."""
    counts, gained = resample(60), np.r_[np.ones(30), np.zeros(30)] + np.linspace(0, 0.1, 60)
    assert ratio(gained * 2, gained, counts).value == pytest.approx(2)
    assert ratio(-gained, gained, counts).value == pytest.approx(-1)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0.1, 1), st.floats(0.5, 1)), min_size=3, max_size=30))
def test_ratio_knows_no_direction(pairs: list[tuple[float, float]]) -> None:
    """Numerator and denominator may both change sign, as for the rank, of which less is better."""
    a, b = np.array(pairs).T
    counts = resample(len(a), 100)
    up, down = ratio(a, b, counts), ratio(-a, -b, counts)
    assert (up.low, up.value, up.high) == pytest.approx((down.low, down.value, down.high))


def test_ratio_whose_denominator_is_unsure_is_undefined() -> None:
    """Where more draws than a tail holds lose the denominator's sign, there is no ratio."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0.05, 1, 40)
    assert ratio(noise, noise, resample(40)).undefined


def independent(pre: float, sft: float, graft: float) -> Callable[[np.random.Generator, int], Triple]:
    return lambda rng, n: (rng.random(n) < pre, rng.random(n) < sft, rng.random(n) < graft)


def nearly(pre: float, sft: float, graft: float) -> Callable[[np.random.Generator, int], Triple]:
    """The graft hits what the donor hits but for a few facts."""

    def draw(rng: np.random.Generator, n: int) -> Triple:
        donor = rng.random(n) < sft
        return rng.random(n) < pre, donor, donor & (rng.random(n) < graft / sft)

    return draw


@pytest.mark.parametrize("n", [50, 150])
@pytest.mark.parametrize(
    ("world", "rates"),
    [
        (independent, (0.02, 0.97, 0.03)),
        (independent, (0.02, 0.97, 0.5)),
        (independent, (0.02, 0.97, 0.95)),
        (independent, (0.0, 0.6, 0.3)),
        (nearly, (0.0, 0.97, 0.97)),
        (nearly, (0.02, 0.97, 0.965)),
        (nearly, (0.02, 0.97, 0.95)),
        (nearly, (0.02, 0.6, 0.59)),
    ],
)
def test_coverage_of_ratios(world: Callable[..., Callable[[np.random.Generator, int], Triple]], rates: Triple, n: int) -> None:
    """Intervals of 95 % hold the true ratio in at least 90 % of worlds, near 0, half, near 1 and where pairs hardly differ."""
    rng, counts, (pre, sft, graft) = np.random.default_rng(7), resample(n, 500, 1).astype(float), rates
    truth, held, worlds = (graft - pre) / (sft - pre), 0, 150
    for _ in range(worlds):
        p, s, g = (drawn.astype(int) for drawn in world(*rates)(rng, n))
        figure = ratio(g - p, s - p, counts)
        held += figure.value is not None and figure.low <= truth <= figure.high
    assert held / worlds >= 0.9


@pytest.mark.parametrize("n", [50, 150])
@pytest.mark.parametrize("flips", [0.0, 0.01, 0.1])
def test_coverage_of_differences(n: int, flips: float) -> None:
    """Paired differences of hits hold the truth as often, also where hardly a pair differs."""
    rng, counts, held, worlds = np.random.default_rng(8), resample(n, 500, 1).astype(float), 0, 150
    for _ in range(worlds):
        a = rng.random(n) < 0.9
        figure = difference(a, a & (rng.random(n) >= flips), counts)
        held += figure.low <= 0.9 * flips <= figure.high
    assert held / worlds >= 0.9


def test_levels() -> None:
    """A higher level's interval holds a lower's, of hits and of other scores; 95 % is what is meant where none is named."""
    rng, counts = np.random.default_rng(0), resample(80)
    for values in (rng.random((2, 80)) < 0.4, rng.normal(size=(2, 80))):
        inner, outer = difference(*values, counts), difference(*values, counts, level=0.999)
        assert inner == difference(*values, counts, level=0.95)
        assert outer.low < inner.low < inner.value < inner.high < outer.high  # type: ignore[operator]
    hit, zero = rng.random(80) < 0.4, np.zeros(80)
    assert mean(hit, counts, level=0.99) == wilson(int(hit.sum()), 80, 0.99)
    assert mean(zero, counts, (0, 1), 0.99).high == unseen(80, 0.99) > unseen(80)


def test_families() -> None:
    """Of twenty figures that have not moved, at the level 1 - .05 / 20 all intervals hold 0 in about 95 % of the cases, and not at .95."""
    rng, counts = np.random.default_rng(0), resample(100)

    def moved(level: float) -> int:
        """Of 40 families, how many seem to have moved."""
        found = 0
        for _ in range(40):
            hits = rng.random((20, 2, 100)) < 0.5
            figures = (difference(a, b, counts, level) for a, b in hits)
            found += any(not f.low <= 0 <= f.high for f in figures if f.low is not None and f.high is not None)
        return found

    assert moved(1 - 0.05 / 20) <= 6 and moved(0.95) > 10
