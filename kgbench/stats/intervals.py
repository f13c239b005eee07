"""Arrays in, estimates with intervals out.

Every estimate is an `Estimate`: a value with a 95 % interval and the number of facts behind it, or
the reason why there is none.

One method gives the intervals. A few facts without an exception do not bound the rate of exceptions
well, and Student's interval of such a sample is too narrow. So two imagined facts are added, one at
each end of what a score can be, of the weight z²/4 (.96 facts at 95 %), and Student's interval is
taken of them all:

- the mean of hits, of reciprocal ranks and of probabilities has its imagined facts at 0 and 1, a
  paired difference of hits at -1 and 1 (as D. G. Bonett and R. M. Price do, 2012; of hits alone see
  A. Agresti and B. Caffo, 2000);
- the ratio of two means has Fieller's interval: all r for which the interval of numerator - r *
  denominator holds 0, with imagined facts at the four corners. There is none where the interval of
  the denominator holds 0, and those that are left are of denominators that luck made large: within
  a few standard errors of 0 (`WEAK`) they hold the truth less often than 95 %;
- the median has the interval of its order statistics.

`make coverage` simulates how often each holds the truth.

What is a mean over several ratios (`Resampled`) is resampled instead: facts are drawn whole, and
one resample serves every configuration. Percentiles are taken outwards to the next draw, never
interpolated.

A mean over *strata* is over groups that are fixed and weigh the same, such as the levels of planted
knowledge, with values in them that are sampled, such as their training seeds. Only the variance
within strata counts.

Hits come as booleans and their per-fact contrasts as integers; every other score is floating-point.
The dtype distinguishes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, inf, isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtri, stdtrit  # scipy.stats takes a second to import

from kgbench.estimate import Estimate

LEVEL = 0.95
"""Confidence of every interval."""

IMAGINED = float(ndtri((1 + LEVEL) / 2)) ** 2 / 4
"""What each of the two imagined facts weighs."""

WEAK = 5.0
"""Standard errors below which a denominator is weak: its coefficient of variation is above .2."""

FEW = 5
"""Of fewer exceptions a bootstrap knows too little."""

RECOVERIES = (0, 1)
"""Ratios that facts can take exactly: like the floor, and like the ceiling, of a recovery."""

Array = NDArray[Any]
Parts = tuple[Array, Array]
"""Numerator and denominator of a ratio of means, of each fact."""


BLOCK = 200
"""Draws at a time, where all at once would take several times their memory."""


def resample(n: int, draws: int = 2000, seed: int = 0) -> NDArray[np.float64]:
    """How often each of n facts occurs in each of the draws.

    Args:
        n: Number of facts.
        draws: Number of bootstrap draws.
        seed: Seed of the generator; the same three arguments give the same counts.

    Returns:
        Counts [draws, n]; each row sums to n. They are whole numbers as floats, so that products
        with them are exact for hits and need no conversion of the whole.

    Raises:
        ValueError: If n or draws is below 1.
    """
    if n < 1 or draws < 1:
        raise ValueError(
            f"a resample needs at least one fact and one draw, not n={n}, draws={draws}"
        )
    random, shares = np.random.default_rng(seed), np.full(n, 1 / n)
    counts = np.empty((draws, n))
    for start in range(0, draws, BLOCK):
        counts[start : start + BLOCK] = random.multinomial(n, shares, min(BLOCK, draws - start))
    return counts


def resampled_means(values: Array, counts: Array) -> NDArray[np.float64]:
    """The mean in each draw, of values [n] or of several columns [n, columns]: [draws, …]."""
    if counts.shape[1] != len(values):
        raise ValueError(
            f"the resample is of {counts.shape[1]} facts, the values are of {len(values)}"
        )
    means: NDArray[np.float64] = counts @ np.asarray(values, float) / len(values)
    return means


@lru_cache(maxsize=8192)
def hit_rate(hits: int, n: int) -> Estimate:
    """The hit rate of n facts."""
    if n < 1:
        return Estimate.missing("no facts", 0)
    return Estimate.hull(hits / n, n, rate_interval(hits / n, n))


def rate_interval(rate: float, n: float) -> tuple[float, float]:
    """The interval of a hit rate, which need not be a whole number of n."""
    low, high = _student(rate, n * rate * (1 - rate), n, (0.0, 1.0))
    return max(0.0, low), min(1.0, high)


def mean(values: Array, support: tuple[float, float] | None = None) -> Estimate:
    """The mean over facts.

    Args:
        values: Per-fact scores [n]; booleans are hits.
        support: Between what scores lie, or the means of other configurations: there are the
            imagined facts. Without it there are none.
    """
    n = len(values)
    if values.dtype == bool:
        return hit_rate(int(values.sum()), n)
    if n < 1 or (n < 2 and not np.issubdtype(values.dtype, np.integer)):
        return Estimate.missing(
            f"{n} fact{'s' * (n == 0)}, and an interval needs two"
            + (f" (the value is {values[0]:.4g})" if n else ""),
            n,
        )
    # An exact sum does not depend on the order in which a machine adds.
    value = fsum(values.tolist()) / n
    ends = None
    if support is not None and min(support) < max(support):
        ends = (min(support), max(support))
    if ends is None and np.ptp(values) == 0:
        return Estimate.missing(
            f"all {n} values are {value:.4g}, so their spread cannot be estimated", n
        )
    low, high = _student(value, float(((values - value) ** 2).sum()), n, ends)
    if ends is not None and ends[0] <= values.min() and values.max() <= ends[1]:
        low, high = max(ends[0], low), min(ends[1], high)
    return Estimate.hull(value, n, (low, high))


def stratified_mean(strata: Sequence[Array], support: tuple[float, float]) -> Estimate:
    """The mean over strata of the mean in each.

    The imagined facts are shared by the strata, and Student's interval has the degrees of freedom
    of F. E. Satterthwaite (Biometrics Bulletin 2, 1946), since strata may differ in variance. Of
    one stratum it is `mean`.

    Args:
        strata: Scores of each stratum, at least two unless there is only one stratum.
        support: Between what scores lie.
    """
    n = sum(map(len, strata))
    if len(strata) == 1:
        return mean(strata[0], support)
    weight = IMAGINED / len(strata)
    parts = []
    for values in strata:
        value = float(np.mean(values))
        spread = float(np.sum((values - value) ** 2))
        parts.append(_with_imagined(value, spread, len(values), support, weight))
    centre = float(np.mean([part.mean for part in parts]))
    variances = np.array([part.variance for part in parts]) / len(strata) ** 2
    freedom = satterthwaite([(part.size - 1, part.variance) for part in parts])
    margin = student_quantile(freedom) * sqrt(variances.sum())
    low, high, pooled = centre - margin, centre + margin, np.concatenate(strata)
    if support[0] <= pooled.min() and pooled.max() <= support[1]:
        low, high = max(support[0], low), min(support[1], high)
    return Estimate.hull(float(np.mean(list(map(np.mean, strata)))), n, (low, high))


def satterthwaite(terms: Iterable[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of independent variances; infinite where all are 0.

    Args:
        terms: Degrees of freedom and variance of each.
    """
    variance = spread = 0.0
    for freedom, part in terms:
        variance += part
        spread += part**2 / freedom
    return variance**2 / spread if spread > 0 else inf


def difference(first: Array, second: Array) -> Estimate:
    """The paired difference of two means, first - second, over the same facts.

    The imagined facts of hits differ by one hit, those of other scores by as much as the means do.

    Args:
        first: Per-fact scores [n]; booleans are hits.
        second: Per-fact scores [n] of the same facts in the same order.
    """
    contrast = _contrast(first) - _contrast(second)
    reach = _reach(contrast)
    return mean(contrast, (-reach, reach))


def median(values: Array) -> Estimate:
    """The median over facts, with the interval of order statistics, valid for any distribution.

    Args:
        values: Per-fact scores [n].
    """
    n = len(values)
    below = _below_median(n)
    if below < 1:
        return Estimate.missing(
            f"{n} fact{'s' * (n != 1)}, too few for an interval of the median", n
        )
    ordered = np.sort(values)
    middle = (float(ordered[(n - 1) // 2]) + float(ordered[n // 2])) / 2
    return Estimate.hull(middle, n, (float(ordered[below - 1]), float(ordered[n - below])))


@lru_cache(maxsize=8192)
def _below_median(n: int) -> int:
    """Of n facts, below the median lie fewer than this with a probability of at most the tail."""
    return int(np.count_nonzero(bdtr(np.arange(n), n, 0.5) <= (1 - LEVEL) / 2))


def ratio(numerator: Array, denominator: Array) -> Estimate:
    """The ratio of two means of per-fact contrasts, with Fieller's interval.

    It is undefined where the denominator may be 0. Hits differ by one in the imagined facts, other
    scores by the mean of the denominator. They keep the interval from being a point where a graft
    hits just the facts that the donor hits, yet the next fact might differ.

    Args:
        numerator: Contrasts [n]; integers where the scores are hits.
        denominator: Contrasts [n].
    """
    n = len(numerator)
    if not divides(denominator):
        return Estimate.missing(
            f"the denominator ({np.mean(denominator) if n else 0:.3g}, n = {n}) is too uncertain "
            "for a ratio",
            n,
        )
    above, below = (np.asarray(values, float) for values in (numerator, denominator))
    a, b, weight = float(above.sum()), float(below.sum()), IMAGINED
    count, added = n + 2 * weight, 2 * weight * _reach(denominator) ** 2
    # (A - r B)² = c (N (Sxx - 2 r Sxy + r² Syy) - (A - r B)²) at the ends, c = t² / (N - 1)
    c = student_quantile(count - 1) ** 2 / (count - 1)
    square = (1 + c) * b * b - c * count * (float(below @ below) + added)
    middle = (1 + c) * a * b - c * count * float(above @ below)
    rest = (1 + c) * a * a - c * count * (float(above @ above) + added)
    root = sqrt(max(0.0, middle * middle - square * rest))
    return Estimate.hull(a / b, n, ((middle - root) / square, (middle + root) / square))


def divides(denominator: Array) -> bool:
    """Whether a mean of contrasts [n] differs from 0, so that ratios to it are defined."""
    n, weight = len(denominator), IMAGINED
    values, count = np.asarray(denominator, float), n + 2 * weight
    centre = float(values.sum()) / count
    squares = float(values @ values) + 2 * weight * _reach(denominator) ** 2 - count * centre**2
    error = sqrt(max(0.0, squares) / ((count - 1) * count))
    return n > 1 and abs(centre) > student_quantile(count - 1) * error > 0


def standard_errors(estimate: Estimate) -> float:
    """How many standard errors a `difference` is from 0, the imagined facts among them."""
    if estimate.numbers is None:
        return 0.0
    value, low, high = estimate.numbers
    count = estimate.n + 2 * IMAGINED
    centre = estimate.n * value / count
    # The end towards 0 is never cut at the bounds of the score.
    margin = abs(centre - (low if value > 0 else high))
    return abs(centre) / margin * student_quantile(count - 1) if margin else inf


def ratio_difference(first: Parts, second: Parts) -> Estimate:
    """The paired difference of two ratios of means, second - first, over the same facts.

    Where both have the same denominator, it is the ratio of the difference of the numerators to it;
    else the mean of their linearised values.

    Args:
        first: Contrasts [n] of numerator and denominator; integers where the scores are hits.
        second: Those of another, of the same facts in the same order.
    """
    (top, bottom), (other_top, other_bottom) = first, second
    if np.array_equal(bottom, other_bottom):
        return ratio(other_top - top, bottom)
    values = linearised(other_top, other_bottom) - linearised(top, bottom)
    value = float(np.mean(values))
    gap = min(abs(float(np.mean(bottom))), abs(float(np.mean(other_bottom))))
    reach = 1 / gap if np.issubdtype(top.dtype, np.integer) else 1.0
    return mean(values, (value - reach, value + reach))


def linearised(numerator: Array, denominator: Array) -> Array:
    """Per-fact values [n] of the ratio of two means: their mean, and to first order its variance.

    With R the ratio of the means and D the mean denominator, R + (numerator - R denominator) / D
    (the delta method: W. G. Cochran, Sampling Techniques, 1977, chapter 6).

    Args:
        numerator: Contrasts [n].
        denominator: Contrasts [n], with a mean that is not 0.
    """
    gap = float(np.mean(denominator))
    ratio = float(np.mean(numerator)) / gap
    values: Array = (
        ratio + (np.asarray(numerator, float) - ratio * np.asarray(denominator, float)) / gap
    )
    return values


@dataclass(frozen=True)
class Resampled:
    """An estimate with its bootstrap, for means over several of the same resample."""

    value: float
    draws: Array
    """What it is in each draw [draws]; NaN where a denominator has lost its sign."""
    floor: tuple[float, float]
    """The interval that its own holds at least."""
    n: int
    """Number of facts."""
    freedom: float | None = None
    """Degrees of freedom of the variance of the draws; None of a plain resample of n facts, whose
    variance is too small by (n - 1) / n and has n - 1."""

    def figure(self) -> Estimate:
        """The estimate with its interval."""
        bootstrap = outwards(self.draws)
        if not all(map(isfinite, bootstrap)):
            return Estimate.missing(
                f"the denominator loses its sign in {np.mean(np.isnan(self.draws)):.1%} of the "
                "draws",
                self.n,
            )
        return Estimate.hull(self.value, self.n, bootstrap, self.floor)


def resampled_ratio(parts: Parts, counts: Array, anchors: Sequence[int] = RECOVERIES) -> Resampled:
    """The ratio of two means under a resample of the facts.

    A draw whose denominator has lost its sign counts against both ends.

    Args:
        parts: Contrasts [n] of the numerator, integers where the scores are hits, and of the
            denominator, with a mean that differs from 0.
        counts: Resample [draws, n].
        anchors: Ratios that facts can take exactly.
    """
    numerator, denominator = parts
    gap = float(np.mean(denominator))
    value = float(np.mean(numerator)) / gap
    above, below = resampled_means(np.stack(parts, axis=1, dtype=float), counts).T
    residuals = [numerator - r * denominator for r in anchors]
    draws = ratio_draws(above, below, gap)
    return Resampled(value, draws, _floor(value, residuals, gap), len(numerator))


def _floor(value: float, residuals: Sequence[Array], gap: float) -> tuple[float, float]:
    """The interval that a ratio's own, or that of a difference of ratios, holds at least.

    Where a graft hits just the facts that the donor hits, every draw gives exactly 1, yet the next
    fact might differ. At an anchor r the mean of `numerator - r * denominator` is 0 if the ratio is
    r. For hits, the interval of that mean divided by the denominator is an interval of the ratio;
    it is taken at the anchor with the fewest discordant facts, where the variance of the
    denominator does not enter to first order. For other scores, if all but a few facts tie exactly
    at an anchor, the share of facts that n without an exception leave open may lie one whole gap
    away.

    Args:
        value: The ratio or the difference.
        residuals: At each anchor, what is left of each fact [n].
        gap: Mean of the denominator.
    """
    left = min(residuals, key=np.count_nonzero)
    reach = open_to(left)
    if not np.issubdtype(left.dtype, np.integer):
        return value - reach, value + reach
    offset = float(np.mean(left))
    low, high = sorted(value + (end - offset) / gap for end in discordance(left))
    return low, high


def resampled_strata(strata: Sequence[Array], draws: int = 2000) -> Resampled:
    """The mean over strata of the mean in each, resampled within strata.

    Of the n values of a stratum n - 1 are drawn, so that the variance of the draws is that of the
    mean (J. N. K. Rao and C. F. J. Wu, Journal of the American Statistical Association 83, 1988).
    Strata of the same sizes in the same order share one resample.

    Args:
        strata: Values of each stratum, at least two unless there is only one stratum.
        draws: Number of bootstrap draws.
    """
    means, terms = [], []
    drawn: Array = np.zeros(draws)
    for number, values in enumerate(strata):
        n, value = len(values), float(np.mean(values))
        means.append(value)
        if n < 2:
            drawn += value
            continue
        drawn += _fewer_counts(n, draws, number) @ values / (n - 1)
        terms.append((n - 1.0, float(np.var(values, ddof=1)) / n))
    value, n = float(np.mean(means)), sum(map(len, strata))
    return Resampled(value, drawn / len(strata), (value, value), n, satterthwaite(terms))


@lru_cache(maxsize=64)
def _fewer_counts(n: int, draws: int, seed: int) -> Array:
    """How often each of n values occurs among n - 1 that are drawn [draws, n]."""
    rng = np.random.default_rng([n, seed])
    return rng.multinomial(n - 1, np.full(n, 1 / n), size=draws).astype(float)


def apart(
    first: tuple[Parts, Resampled],
    second: tuple[Parts, Resampled],
    anchors: Sequence[int] = RECOVERIES,
) -> Resampled:
    """The paired difference, second - first, of two ratios that are resampled already.

    Args:
        first: Contrasts [n] of numerator and denominator, and their ratio under a resample.
        second: Those of another, of the same facts in the same order under the same resample.
        anchors: Ratios that facts can take exactly.
    """
    ((top, bottom), minuend), ((other_top, other_bottom), other) = first, second
    gaps = float(np.mean(bottom)), float(np.mean(other_bottom))
    value, draws = other.value - minuend.value, other.draws - minuend.draws
    residuals = [(other_top - r * other_bottom) - (top - r * bottom) for r in anchors]
    scale = min(map(abs, gaps)) * (np.sign(sum(gaps)) or 1.0)
    return Resampled(value, draws, _floor(value, residuals, scale), len(top))


def mean_of(parts: Sequence[Resampled], n: int) -> Resampled:
    """The mean of estimates of equal weight.

    Floors are averaged as if all errors were equal, since facts may be shared.

    Args:
        parts: Estimates under draws that belong together: the same resample where facts are the
            same.
        n: Number of facts behind them.
    """
    low, high = map(float, np.mean([part.floor for part in parts], axis=0))
    value = float(np.mean([part.value for part in parts]))
    return Resampled(value, np.mean([part.draws for part in parts], axis=0), (low, high), n)


def discordance(contrast: Array) -> tuple[float, float]:
    """The interval of the mean of integer contrasts, which is never a point: see `difference`."""
    estimate = mean(contrast, (-1.0, 1.0))
    assert estimate.numbers is not None
    return estimate.numbers[1:]


def _contrast(values: Array) -> Array:
    """Hits as integers, so that they can be subtracted; others as floats."""
    return values.astype(
        np.int64 if values.dtype == bool or np.issubdtype(values.dtype, np.integer) else np.float64
    )


def _reach(contrast: Array) -> float:
    """How far the imagined facts of a difference lie from 0."""
    is_integer = contrast.dtype.kind in "iu"
    return 1.0 if is_integer or not len(contrast) else abs(float(contrast.sum() / len(contrast)))


@lru_cache(maxsize=8192)
def student_quantile(freedom: float) -> float:
    """Half the width of Student's central interval, in standard errors."""
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def _student(
    value: float, spread: float, n: float, ends: tuple[float, float] | None
) -> tuple[float, float]:
    """Student's interval from n, mean and sum of squares, with imagined facts at the ends."""
    weight, ends = (IMAGINED, ends) if ends is not None else (0.0, (value, value))
    sample = _with_imagined(value, spread, n, ends, weight)
    margin = student_quantile(sample.size - 1) * sqrt(sample.variance)
    return sample.mean - margin, sample.mean + margin


class _Sample(NamedTuple):
    """Facts together with the imagined ones."""

    size: float
    mean: float
    variance: float
    """Of the mean."""


def _with_imagined(
    value: float, spread: float, n: float, ends: tuple[float, float], weight: float
) -> _Sample:
    """Facts of this mean and sum of squares, with an imagined one of this weight at each end."""
    low, high = ends
    count = n + 2 * weight
    centre = (n * value + weight * (low + high)) / count
    squares = (
        spread + n * (value - centre) ** 2 + weight * ((low - centre) ** 2 + (high - centre) ** 2)
    )
    return _Sample(count, centre, squares / ((count - 1) * count))


def ratio_draws(numerators: Array, denominators: Array, gap: float) -> Array:
    """Ratios of sums or means by draw [draws]; NaN where the denominator lacks the gap's sign."""
    sign = np.sign(gap)
    below = denominators * sign
    ratios: Array = np.divide(
        numerators * sign, below, out=np.full(len(below), np.nan), where=below > 0
    )
    return ratios


def outwards(draws: Array) -> tuple[float, float]:
    """Percentiles, taken outwards to the next draw; draws that are NaN count against both ends."""
    missing, tail = np.isnan(draws), (1 - LEVEL) / 2
    low = np.quantile(np.where(missing, -np.inf, draws), tail, method="lower")
    high = np.quantile(np.where(missing, np.inf, draws), 1 - tail, method="higher")
    return float(low), float(high)


def open_to(residuals: Array) -> float:
    """Share of exceptions that facts leave open where so few differ from 0 that draws miss them.

    It is the largest share that is compatible with none in n facts.
    """
    n, exceptions = len(residuals), np.count_nonzero(residuals)
    return rate_interval(0.0, n)[1] if exceptions < FEW and 2 * exceptions < n else 0.0
