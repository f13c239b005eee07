"""Arrays in, estimates with intervals out.

Every estimate is a `Figure`: a value with a 95 % interval and the number of facts behind it, or the reason why there is none.
Facts are resampled whole, and one resample serves every configuration, so that differences and ratios are paired.

Hits come as booleans and their per-fact contrasts as integers; every other score is floating-point. The dtype tells them apart.

A bootstrap of equal values is a point and claims too much. What replaces it:

- the mean of hits has Wilson's interval, and no bootstrap;
- a contrast of hits has the hull of its bootstrap interval and of a Wilson-type bound on the discordant facts (`discordance`);
- a mean or ratio of other scores that are tied but for fewer than five facts has the hull of its bootstrap interval and of what would
  happen if the share of facts that n facts without an exception leave open (Wilson's upper bound at 0 of n, z²/(n+z²), 7 % of 50
  facts) lay elsewhere in the support;
- where no support is known and all values are equal, or with fewer than two facts, the figure is undefined and says so.

Percentiles are taken outwards to the next draw, never interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, norm

__all__ = [
    "LEVEL",
    "Figure",
    "Parts",
    "Resampled",
    "apart",
    "difference",
    "discordance",
    "mean",
    "mean_of",
    "ratio",
    "ratio_difference",
    "ratio_draws",
    "ratio_floor",
    "resample",
    "resampled_difference",
    "resampled_means",
    "resampled_ratio",
    "unseen",
    "wilson",
    "wilson_interval",
]

LEVEL = 0.95
"""Confidence of every interval."""

FEW = 5
"""Of fewer exceptions a bootstrap knows too little."""

Array = NDArray[Any]
Parts = tuple[Array, Array]
"""Numerator and denominator of a ratio of means, of each fact."""


@dataclass(frozen=True)
class Figure:
    """An estimate with its interval, or the reason why there is none.

    Raises:
        ValueError: If it is neither complete (finite, low <= value <= high) nor undefined with a reason and nothing else.
    """

    value: float | None
    """The estimate from all facts."""
    low: float | None
    """Lower end of the interval."""
    high: float | None
    """Upper end of the interval."""
    n: int
    """Number of facts."""
    undefined: str | None = None
    """Why there is no estimate."""

    def __post_init__(self) -> None:
        numbers = (self.value, self.low, self.high)
        if self.undefined:
            if any(x is not None for x in numbers):
                raise ValueError("an undefined figure holds no numbers")
        elif self.value is None or self.low is None or self.high is None or not all(isfinite(x) for x in numbers if x is not None):
            raise ValueError(f"a figure needs three finite numbers or a reason: {numbers}")
        elif not self.low <= self.value <= self.high:
            raise ValueError(f"a figure's value lies within its interval: {numbers}")

    @classmethod
    def hull(cls, value: float, n: int, *intervals: tuple[float, float]) -> Figure:
        """The figure whose interval is the smallest that holds the value and all given intervals."""
        ends = [value, *(float(end) for interval in intervals for end in interval)]
        return cls(float(value), float(min(ends)), float(max(ends)), n)

    @classmethod
    def missing(cls, reason: str, n: int) -> Figure:
        """The figure that is undefined for this reason."""
        return cls(None, None, None, n, reason)

    def one_minus(self) -> Figure:
        """The figure of 1 - x; undefined stays undefined."""
        if self.value is None or self.low is None or self.high is None:
            return self
        return Figure(1 - self.value, 1 - self.high, 1 - self.low, self.n)

    def to_json(self) -> dict[str, Any]:
        """`{"value", "low", "high", "n"}`, or `{"undefined": reason, "n"}`."""
        if self.undefined:
            return {"undefined": self.undefined, "n": self.n}
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def resample(n: int, draws: int = 2000, seed: int = 0) -> NDArray[np.int64]:
    """How often each of n facts occurs in each of the draws.

    Args:
        n: Number of facts.
        draws: Number of bootstrap draws.
        seed: Seed of the generator; the same three arguments give the same counts.

    Returns:
        Counts [draws, n]; each row sums to n.

    Raises:
        ValueError: If n or draws is below 1.
    """
    if n < 1 or draws < 1:
        raise ValueError(f"a resample needs at least one fact and one draw, not n={n}, draws={draws}")
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws).astype(np.int64)


def resampled_means(values: Array, counts: Array) -> NDArray[np.float64]:
    """The mean of values [n] in each draw: [draws]."""
    if counts.shape[1] != len(values):
        raise ValueError(f"the resample is of {counts.shape[1]} facts, the values are of {len(values)}")
    means: NDArray[np.float64] = np.asarray(counts, float) @ np.asarray(values, float) / len(values)
    return means


@lru_cache(maxsize=8192)
def wilson(hits: int, n: int, level: float = LEVEL) -> Figure:
    """The hit rate with Wilson's score interval (E. B. Wilson, 1927)."""
    if n < 1:
        return Figure.missing("no facts", 0)
    interval = binomtest(int(hits), int(n)).proportion_ci(level, method="wilson")
    return Figure.hull(hits / n, n, (float(interval.low), float(interval.high)))


def wilson_interval(rate: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's score interval of a rate that need not be a whole number of n, such as an average precision over n items."""
    z2 = float(norm.ppf((1 + level) / 2)) ** 2
    centre, margin = (rate + z2 / (2 * n)) / (1 + z2 / n), sqrt(z2 * (rate * (1 - rate) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    return max(0.0, centre - margin), min(1.0, centre + margin)


def unseen(n: int, level: float = LEVEL) -> float:
    """The largest share of exceptions that n facts without one leave open: Wilson's upper end at 0 of n."""
    high = wilson(0, n, level).high
    assert high is not None
    return high


def mean(values: Array, counts: Array, support: tuple[float, float] | None = None, level: float = LEVEL) -> Figure:
    """The mean over facts.

    Args:
        values: Per-fact scores [n]; booleans are hits and get Wilson's interval, others a percentile bootstrap.
        counts: Resample [draws, n].
        support: Between what the mean could lie, for scores that are tied but for a few.
        level: Confidence of the interval.
    """
    n = len(values)
    if values.dtype == bool:
        return wilson(int(values.sum()), n, level)
    if n < 2:
        return Figure.missing(f"{n} fact{'s' * (n == 0)}, and an interval needs two" + (f" (the value is {values[0]:.4g})" if n else ""), n)
    value = float(np.mean(values))
    intervals = [_percentiles(resampled_means(values, counts), level)]
    ties = int(np.unique(values, return_counts=True)[1].max())
    if support is not None and min(support) < max(support) and _few(n - ties, n):
        share = unseen(n, level)
        intervals.append((value - share * max(0.0, value - min(support)), value + share * max(0.0, max(support) - value)))
    elif np.ptp(values) == 0:
        return Figure.missing(f"all {n} values are {value:.4g}, so that no interval can be resampled", n)
    return Figure.hull(value, n, *intervals)


def difference(first: Array, second: Array, counts: Array, level: float = LEVEL) -> Figure:
    """The paired difference of two means, first - second, over the same facts.

    Args:
        first: Per-fact scores [n]; booleans are hits.
        second: Per-fact scores [n] of the same facts in the same order.
        counts: Resample [draws, n].
        level: Confidence of the interval.
    """
    contrast = _contrast(first) - _contrast(second)
    n = len(contrast)
    if n < 1:
        return Figure.missing("no facts", 0)
    value = float(np.mean(contrast))
    if np.issubdtype(contrast.dtype, np.integer):
        return Figure.hull(value, n, _percentiles(resampled_means(contrast, counts), level), discordance(contrast, level))
    return mean(contrast, counts, level=level)


def ratio(numerator: Array, denominator: Array, counts: Array, anchors: Sequence[int] = (0, 1)) -> Figure:
    """The ratio of two means of per-fact contrasts, with a percentile bootstrap that has a floor.

    A draw whose denominator has lost its sign counts against both ends. The caller has made sure that the interval of the denominator
    leaves out 0, so that fewer such draws exist than either tail holds.

    The floor: where a graft hits just the facts that the donor hits, every draw gives exactly 1, yet the next fact might differ. At an
    anchor r the mean of `numerator - r * denominator` is 0 if the ratio is r. For hits, the interval of that mean (`discordance`)
    divided by the denominator is an interval of the ratio; it is taken at the anchor with the fewest discordant facts, where the
    variance of the denominator does not enter to first order. For other scores, if all but a few facts tie exactly at an anchor, the
    share of facts that n without an exception leave open may lie one whole gap away: value ± `unseen(n)`.

    Args:
        numerator: Contrasts [n]; integers where the scores are hits.
        denominator: Contrasts [n].
        counts: Resample [draws, n].
        anchors: Ratios that facts can take exactly: 0 (like the floor) and 1 (like the ceiling) for a recovery.
    """
    return resampled_ratio(numerator, denominator, counts, anchors).figure()


def ratio_difference(first: tuple[Array, Array], second: tuple[Array, Array], counts: Array, anchors: Sequence[int] = (0, 1)) -> Figure:
    """The paired difference of two ratios of means, second - first, over the same facts.

    A percentile bootstrap with the floor of `ratio`: what the facts that tell the two apart leave open, by the smaller denominator. Where
    both have the same denominator, it is the ratio of the difference of the numerators to it.

    Args:
        first: Contrasts [n] of numerator and denominator; integers where the scores are hits.
        second: Likewise, of the same facts in the same order.
        counts: Resample [draws, n].
        anchors: Ratios that facts can take exactly.
    """
    return resampled_difference(first, second, counts, anchors).figure()


@dataclass(frozen=True)
class Resampled:
    """An estimate with its bootstrap, so that means over several of the same resample can be taken."""

    value: float
    draws: Array
    """What it is in each draw [draws]; NaN where a denominator has lost its sign."""
    floor: tuple[float, float]
    """The interval that its own holds at least."""
    n: int
    """Number of facts."""

    def figure(self) -> Figure:
        """The estimate with its interval."""
        bootstrap = _outwards(self.draws)
        if not all(map(isfinite, bootstrap)):
            return Figure.missing(f"the denominator loses its sign in {np.mean(np.isnan(self.draws)):.1%} of the draws", self.n)
        return Figure.hull(self.value, self.n, bootstrap, self.floor)


def resampled_ratio(numerator: Array, denominator: Array, counts: Array, anchors: Sequence[int] = (0, 1)) -> Resampled:
    """What `ratio` is made of; the arguments are the same."""
    value, draws = float(np.mean(numerator)) / float(np.mean(denominator)), _ratios(numerator, denominator, counts)
    return Resampled(value, draws, ratio_floor(numerator, denominator, anchors), len(numerator))


def ratio_floor(numerator: Array, denominator: Array, anchors: Sequence[int]) -> tuple[float, float]:
    """The interval that a ratio's own holds at least: see `ratio`."""
    n, gap = len(numerator), float(np.mean(denominator))
    residuals = [numerator - r * denominator for r in anchors]
    nearest = int(np.argmin([np.count_nonzero(e) for e in residuals]))
    if np.issubdtype(numerator.dtype, np.integer):
        ends = sorted(anchors[nearest] + end / gap for end in discordance(residuals[nearest]))
        return ends[0], ends[1]
    value, share = float(np.mean(numerator)) / gap, unseen(n) if _few(int(np.count_nonzero(residuals[nearest])), n) else 0.0
    return value - share, value + share


def resampled_difference(
    first: tuple[Array, Array], second: tuple[Array, Array], counts: Array, anchors: Sequence[int] = (0, 1)
) -> Resampled:
    """What `ratio_difference` is made of; the arguments are the same."""
    return apart((first, resampled_ratio(*first, counts, anchors)), (second, resampled_ratio(*second, counts, anchors)), anchors)


def apart(first: tuple[Parts, Resampled], second: tuple[Parts, Resampled], anchors: Sequence[int] = (0, 1)) -> Resampled:
    """The paired difference, second - first, of two ratios that are resampled already.

    Args:
        first: Contrasts [n] of numerator and denominator, and their ratio under a resample.
        second: Likewise, of the same facts in the same order under the same resample.
        anchors: Ratios that facts can take exactly.
    """
    ((top, bottom), one), ((other_top, other_bottom), other) = first, second
    n, gaps = len(top), (float(np.mean(bottom)), float(np.mean(other_bottom)))
    value, draws = other.value - one.value, other.draws - one.draws
    residuals = [(other_top - r * other_bottom) - (top - r * bottom) for r in anchors]
    left = min(residuals, key=np.count_nonzero)
    if np.issubdtype(left.dtype, np.integer):
        scale = min(map(abs, gaps)) * (np.sign(sum(gaps)) or 1.0)
        ends = sorted(value + (end - float(np.mean(left))) / scale for end in discordance(left))
        return Resampled(value, draws, (ends[0], ends[1]), n)
    share = unseen(n) if _few(int(np.count_nonzero(left)), n) else 0.0
    return Resampled(value, draws, (value - share, value + share), n)


def mean_of(parts: Sequence[Resampled], n: int) -> Resampled:
    """The mean of estimates, each weighing the same; floors as if all erred together, since facts may be shared.

    Args:
        parts: Estimates under draws that belong together: the same resample where facts are the same.
        n: Number of facts behind them.
    """
    floors = np.mean([part.floor for part in parts], axis=0)
    value, draws = float(np.mean([part.value for part in parts])), np.mean([part.draws for part in parts], axis=0)
    return Resampled(value, draws, (float(floors[0]), float(floors[1])), n)


def discordance(contrast: Array, level: float = LEVEL) -> tuple[float, float]:
    """A Wilson-type interval of the mean of integer contrasts, never a point.

    The mean is a sum of rates, of facts with a contrast of at least 1, 2, … less those of at most -1, -2, …; each rate has Wilson's
    interval, and their margins are squared and added (Newcombe 1998; Zou and Donner 2008). Both signs always take part, so that n
    facts without a discordant one give ± z²/(n+z²).
    """
    n, reach = len(contrast), max(1, int(np.abs(contrast).max()))
    value, down, up = float(np.mean(contrast)), 0.0, 0.0
    for k in range(1, reach + 1):
        for sign in (1, -1):
            rate = wilson(int(np.count_nonzero(sign * contrast >= k)), n, level)
            assert rate.value is not None and rate.low is not None and rate.high is not None
            inner, outer = rate.value - rate.low, rate.high - rate.value
            down += (inner if sign > 0 else outer) ** 2
            up += (outer if sign > 0 else inner) ** 2
    return value - sqrt(down), value + sqrt(up)


def _contrast(values: Array) -> Array:
    """Hits as integers, so that they can be subtracted; others as floats."""
    return values.astype(np.int64 if values.dtype == bool or np.issubdtype(values.dtype, np.integer) else np.float64)


def _percentiles(draws: Array, level: float = LEVEL) -> tuple[float, float]:
    tail = (1 - level) / 2
    return float(np.quantile(draws, tail, method="lower")), float(np.quantile(draws, 1 - tail, method="higher"))


def _ratios(numerator: Array, denominator: Array, counts: Array) -> Array:
    """The ratio of the two means in each draw [draws]; NaN where the denominator has lost its sign."""
    return ratio_draws(resampled_means(numerator, counts), resampled_means(denominator, counts), float(np.mean(denominator)))


def ratio_draws(numerators: Array, denominators: Array, gap: float) -> Array:
    """Ratios of sums or means in each draw [draws]; NaN where the denominator has not the sign of the gap."""
    sign = np.sign(gap)
    below = denominators * sign
    ratios: Array = np.divide(numerators * sign, below, out=np.full(len(below), np.nan), where=below > 0)
    return ratios


def _outwards(draws: Array) -> tuple[float, float]:
    """The percentiles, draws that are NaN counting against both ends."""
    missing = np.isnan(draws)
    return _percentiles(np.where(missing, -np.inf, draws))[0], _percentiles(np.where(missing, np.inf, draws))[1]


def _few(exceptions: int, n: int) -> bool:
    """Whether so few of n facts are not tied that a bootstrap claims too much."""
    return exceptions < FEW and 2 * exceptions < n
