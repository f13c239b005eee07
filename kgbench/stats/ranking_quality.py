"""How well a ranking of places finds those that hold the planted facts.

Places are ranked among those whose weights changed: anybody can see which these are. The average
precision is the mean, over planted places, of the precision down to each of them. Tied scores leave
the order open: it is then the expectation over all orders of what is tied (F. McSherry and M.
Najork, ECIR 2008). A map that scores all places alike has what a random order is expected to have:
chance.

It has no interval, nor has the agreement of two maps: all sites of a pair are there, and none was
drawn. What could come out otherwise is the plant, so that intervals are those of a mean over
plants.
"""

from __future__ import annotations

import numpy as np

from kgbench.estimate import Estimate
from kgbench.records import NO_INTERVAL_OF_SITES
from kgbench.stats.intervals import Array


def average_precision(scores: Array, truth: Array) -> Estimate:
    """The average precision of a ranking.

    Args:
        scores: Score of each place [n]; higher is more responsible.
        truth: Whether it is planted [n].
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    if not 0 < k < n:
        reason = f"{'all' if k else 'none'} of {n} places are planted, so that no order is wrong"
        return Estimate.missing(reason if n else "no weights changed", n)
    return Estimate.alone(_precision(scores, truth), n, NO_INTERVAL_OF_SITES)


def chance_precision(truth: Array) -> float | None:
    """Expected average precision of a random order; None where no order is wrong.

    Args:
        truth: Whether a place is planted [n].
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    return expected_precision(n, k) if 0 < k < n else None


def _precision(scores: Array, truth: Array) -> float:
    """Its expectation over the orders that the scores leave open; some place is planted."""
    values, group = np.unique(np.asarray(scores, float), return_inverse=True)
    sizes, planted = np.bincount(group), np.bincount(group, weights=np.asarray(truth, float))
    precision, before, hits = 0.0, 0, 0
    for tie in reversed(range(len(values))):  # equal scores together, the highest first
        size, relevant = int(sizes[tie]), int(planted[tie])
        if relevant:
            within = np.arange(size)
            expected = hits + 1 + within * ((relevant - 1) / (size - 1) if size > 1 else 0.0)
            precision += relevant / size * float(np.sum(expected / (before + within + 1)))
        before, hits = before + size, hits + relevant
    return min(precision / hits, 1.0)


def expected_precision(n: int, k: int) -> float:
    """Expected average precision of a random order of n sites with k planted ones."""
    harmonic = float(np.sum(1 / np.arange(1, n + 1)))
    slope = (k - 1) / (n - 1) if n > 1 else 0.0
    return slope + (1 - slope) * harmonic / n


def agreement(first: Array, second: Array) -> Estimate:
    """Spearman's correlation of two maps of the same sites.

    Args:
        first: Scores [n].
        second: Scores [n] of the same sites in the same order.
    """
    n = len(first)
    if n < 4 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return Estimate.missing(
            "a map whose scores are all equal, or of fewer than four sites, has no order to "
            "compare",
            n,
        )
    from scipy.stats import spearmanr  # takes a second to import, and few runs rank sites

    value = float(np.clip(spearmanr(first, second).statistic, -1, 1))
    return Estimate.alone(value, n, NO_INTERVAL_OF_SITES)
