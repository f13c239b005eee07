"""Laws of the estimates: what an interval holds, and how often."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from coverage_table import CASES, Case, lowest_of_hits, simulated
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from kgbench.estimate import Estimate
from kgbench.stats import difference, hit_rate, linearised, mean, ratio, resample
from kgbench.stats.intervals import discordance, divides, median, resampled_means

hits = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=40)


def test_figure_json() -> None:
    """A figure is three numbers or a reason, never both and never neither."""
    assert Estimate(0.5, 0.4, 0.6, 9).to_json() == {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    assert Estimate.missing("why", 3).to_json() == {"undefined": "why", "n": 3}


@pytest.mark.parametrize(
    "numbers",
    [
        (None, None, None),
        (0.5, None, None),
        (0.5, 0.6, 0.7),
        (float("nan"), 0.0, 1.0),
        (0.5, 0.0, float("inf")),
    ],
)
def test_figure_refuses(numbers: tuple[float | None, float | None, float | None]) -> None:
    """Half a figure, NaN, an infinity and a value outside its interval are refused."""
    with pytest.raises(ValueError):
        Estimate(*numbers, 9)


def test_figure_refuses_reason_with_numbers() -> None:
    """A figure that is undefined holds no numbers."""
    with pytest.raises(ValueError):
        Estimate(0.5, 0.4, 0.6, 9, "why")


def test_one_minus() -> None:
    """1 - x turns the interval round, and leaves undefined undefined."""
    assert Estimate(0.25, 0.0, 0.5, 9).one_minus() == Estimate(0.75, 0.5, 1.0, 9)
    assert Estimate.missing("why", 9).one_minus() == Estimate.missing("why", 9)


@given(n=st.integers(1, 60), draws=st.integers(1, 50), seed=st.integers(0, 9))
def test_resample(n: int, draws: int, seed: int) -> None:
    """Each draw holds n facts, and the same arguments give the same draws."""
    counts = resample(n, draws, seed)
    assert counts.shape == (draws, n) and (counts.sum(axis=1) == n).all() and (counts >= 0).all()
    assert np.array_equal(counts, resample(n, draws, seed))


@given(n=st.integers(1, 9), draws=st.integers(1, 900))
def test_blocks_of_a_resample_are_the_whole(n: int, draws: int) -> None:
    """That draws are made block by block changes none of them."""
    whole = np.random.default_rng(3).multinomial(n, np.full(n, 1 / n), size=draws)
    assert np.array_equal(resample(n, draws, 3), whole)


def test_linearised_values_carry_the_ratio() -> None:
    """Their mean is the ratio of means, and their standard error that of its bootstrap."""
    rng = np.random.default_rng(4)
    bottom = (rng.random(400) < 0.9).astype(int)
    top = bottom * (rng.random(400) < 0.4)
    values, counts = linearised(top, bottom), resample(400, 4000)
    assert values.mean() == pytest.approx(top.mean() / bottom.mean())
    assert values.std(ddof=1) / 20 == pytest.approx(
        float(((counts @ top) / (counts @ bottom)).std()), rel=0.05
    )


@pytest.mark.parametrize(("n", "draws"), [(0, 10), (5, 0)])
def test_resample_refuses(n: int, draws: int) -> None:
    """There is no resample of nothing."""
    with pytest.raises(ValueError):
        resample(n, draws)


def test_resampled_means_are_paired() -> None:
    """One resample serves all: the means of a sum are the sum of the means."""
    rng, counts = np.random.default_rng(0), resample(30, 100, 0)
    a, b = rng.random(30), rng.random(30)
    assert np.allclose(
        resampled_means(a + b, counts), resampled_means(a, counts) + resampled_means(b, counts)
    )
    with pytest.raises(ValueError):
        resampled_means(rng.random(29), counts)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_hit_rate(case: tuple[int, int]) -> None:
    """It lies within 0 and 1, it is never a point, and turning hits into misses turns it round."""
    h, n = case
    figure, mirrored = hit_rate(h, n), hit_rate(n - h, n).one_minus()
    assert 0 <= figure.low <= h / n <= figure.high <= 1 and figure.low < figure.high
    assert (figure.low, figure.high) == pytest.approx((mirrored.low, mirrored.high), abs=1e-12)


def test_hit_rate_of_nothing() -> None:
    """A missing number is undefined, never 0."""
    assert hit_rate(0, 0).undefined


def test_the_imagined_facts_are_facts() -> None:
    """The interval is Student's of the facts and of two more, a hit and a miss, which weigh z²/4
    each.
    """
    weight, n, h = 1.959964**2 / 4, 40, 31
    count, total = n + 2 * weight, h + weight
    error = np.sqrt((total - total**2 / count) / (count - 1) / count)
    margin = t.ppf(0.975, count - 1) * error
    assert (hit_rate(h, n).low, hit_rate(h, n).high) == pytest.approx(
        (total / count - margin, total / count + margin), rel=1e-6
    )


def test_mean_of_hits_is_their_rate() -> None:
    """Booleans are hits: all alike, they still have a width."""
    assert mean(np.ones(50, bool)) == hit_rate(50, 50)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30))
def test_mean_holds_its_value(values: list[float]) -> None:
    """The interval holds the value; equal values without a known support are undefined, with the
    value in the reason.
    """
    figure = mean(np.array(values))
    if np.ptp(values) == 0:
        assert figure.value is None and "cannot be estimated" in (figure.undefined or "")
    else:
        assert figure.low <= np.mean(values) <= figure.high


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=300), st.randoms())
def test_a_mean_knows_no_order(values: list[float], random: Random) -> None:
    """It is the same to the last bit in whatever order facts come."""
    figure, other = mean(np.array(values)), list(values)
    random.shuffle(other)
    assert mean(np.array(other)).value == figure.value


@pytest.mark.parametrize("n", [0, 1])
def test_mean_of_too_few(n: int) -> None:
    """Of one fact there is no interval, and the reason says so."""
    figure = mean(np.full(n, 3.0))
    assert figure.value is None and "an interval needs two" in (figure.undefined or "")


def test_mean_of_ties_reaches_into_the_support() -> None:
    """All scores 1 where others are 301 on average: facts that 50 do not rule out might be like
    those.
    """
    figure = mean(np.ones(50), (1.0, 301.0))
    assert (figure.value, figure.low) == (
        1.0,
        1.0,
    )
    assert 1 + 300 / 50 < figure.high < 1 + 300 * 5 / 50


@given(st.lists(st.floats(0, 1), min_size=2, max_size=60), st.floats(0.1, 9), st.floats(-9, 9))
def test_a_mean_knows_no_unit(values: list[float], scale: float, shift: float) -> None:
    """Scores and their support in another unit give the same interval in that unit."""
    one, other = (
        mean(np.array(values), (0, 1)),
        mean(scale * np.array(values) + shift, (shift, scale + shift)),
    )
    assert 0 <= one.low <= one.value <= one.high <= 1
    assert (other.low, other.high) == pytest.approx(
        (scale * one.low + shift, scale * one.high + shift), abs=1e-6
    )


@given(st.lists(st.integers(1, 5000), min_size=6, max_size=80))
def test_median(ranks: list[int]) -> None:
    """Its ends are scores that occur; a rising map of the scores is one of the median's ends;
    doubled facts give no wider interval.
    """
    values = np.array(ranks, float)
    found, logs, doubled = median(values), median(np.log(values)), median(np.repeat(values, 2))
    assert found.low in values
    assert found.high in values
    assert found.low <= np.median(values) <= found.high
    assert (logs.low, logs.high) == pytest.approx((np.log(found.low), np.log(found.high)))
    assert found.low <= doubled.low <= doubled.high <= found.high


@pytest.mark.parametrize("n", range(6))
def test_median_of_too_few(n: int) -> None:
    """Of fewer than six facts not even the smallest and the largest hold it in 95 %."""
    assert "too few" in (median(np.arange(float(n))).undefined or "")


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
    figure, turned = difference(a, b), difference(b, a)
    assert figure.low <= figure.value <= figure.high and figure.low < figure.high
    assert (figure.low, figure.high) == pytest.approx((-turned.high, -turned.low))


def test_difference_is_paired() -> None:
    """Two scores that differ by little on every fact have a narrow difference, however wide they
    are themselves.
    """
    rng = np.random.default_rng(0)
    a = rng.normal(0, 10, 80)
    figure = difference(a, a + rng.normal(0.1, 0.01, 80))
    assert -0.12 < figure.low <= figure.high < -0.08


def test_ratio_of_equals_is_no_point() -> None:
    """A graft that hits just what the donor hits has 1, with the width that 50 facts leave open."""
    gained = np.r_[np.ones(45, int), np.zeros(5, int)]
    for figure in (ratio(gained, gained), ratio(gained * 1.5, gained * 1.5)):
        assert figure.value == 1 and 0.01 < 1 - figure.low < 0.1 and 0.01 < figure.high - 1 < 0.1


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=10, max_size=60))
def test_fiellers_ends(facts: list[tuple[bool, bool, bool]]) -> None:
    """A ratio is there exactly where its denominator divides, its interval holds it, and it changes
    its sign with its numerator.
    """
    pre, sft, own = (np.array(column, int) for column in zip(*facts, strict=True))
    found = ratio(own - pre, sft - pre)
    assert (found.value is not None) == divides(sft - pre)
    if found.undefined is None:
        assert found.low < found.value < found.high
        back = ratio(pre - own, sft - pre)
        assert (back.value, back.low, back.high) == pytest.approx(
            (-found.value, -found.high, -found.low)
        )


def test_ratio_is_not_clamped() -> None:
    """Ratios below 0 and above 1 stay as they are."""
    gained = np.r_[np.ones(30), np.zeros(30)] + np.linspace(0, 0.1, 60)
    assert ratio(gained * 2, gained).value == pytest.approx(2)
    assert ratio(-gained, gained).value == pytest.approx(-1)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0.1, 1), st.floats(0.5, 1)), min_size=3, max_size=30))
def test_ratio_knows_no_direction(pairs: list[tuple[float, float]]) -> None:
    """Numerator and denominator may both change sign, as for the rank, of which less is better."""
    a, b = np.array(pairs).T
    up, down = ratio(a, b), ratio(-a, -b)
    assert up.value == pytest.approx(down.value) if up.value is not None else down.value is None
    if up.low is not None:
        assert (up.low, up.value, up.high) == pytest.approx((down.low, down.value, down.high))


def test_ratio_whose_denominator_is_unsure_is_undefined() -> None:
    """Where the denominator may be 0, there is no ratio."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0.05, 1, 40)
    assert ratio(noise, noise).undefined


def test_ratios_of_thirty_facts() -> None:
    """Eleven of thirty facts gained and none lost: Fieller's interval at 95 %, whatever the luck."""
    gained = np.repeat([1, 0], [11, 19])
    part = np.concatenate([np.repeat([1, 0], [9, 20]), [-1]])
    for numerator, numbers in ((gained, (1.0, 0.64, 1.56)), (part, (0.73, 0.20, 1.29))):
        assert ratio(numerator, gained).numbers == pytest.approx(numbers, abs=0.005)


SEEN = (
    "PRE .02, SFT .97, r = .5",
    "PRE .30, SFT .50, r = 1.25",
    "p = 0.05",
    "0.5 won, 0.2 lost",
    "of two humps",
    "nine in ten at 1",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [20, 150])
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name in SEEN],
    ids=lambda case: f"{case.score} {case.name}",
)
def test_coverage(case: Case, n: int) -> None:
    """Of 200 intervals of 95 % at least 89 in a hundred hold the truth: four standard errors below
    95; `make coverage` draws more.
    """
    held = simulated(case, n, 200)
    assert held.printed < 0.2 or held.covered >= 0.89


def test_coverage_of_hits_is_known() -> None:
    """Whatever the rate, the interval holds it in 93 % or more of all cases."""
    assert all(lowest_of_hits(n) >= 0.93 for n in (10, 20, 40, 150))
