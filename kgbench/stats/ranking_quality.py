"""How well a ranking of places agrees with what the planted facts use.

Places are ranked among those whose weights changed: anybody can see which these are. A place counts
as relevant at a threshold t where its relevance r is at least t, and the average precision AP(t) is
the mean, over relevant places, of the precision down to each of them. The graded average precision
is the mean of AP(t) over the thresholds from a to b, each distinct relevance r(1) > r(2) > ...
weighing its gap to the next one:

    graded AP = sum over i of (r(i) - max(r(i+1), a)) AP(r(i)) / (b - a)

with b the largest relevance and a the larger of .05 and the least one, since at lower thresholds
all places are relevant and no order is wrong. Any order by relevance has 1, whatever order equal
ones have.

This is the expected average precision for an unknown threshold of relevance, like the graded
average precision of S. E. Robertson, E. Kanoulas and E. Yilmaz (SIGIR 2010). Theirs weighs grades
by chosen probabilities and is one ratio, of the expected sum of precisions and the expected number
of relevant documents; this one weighs thresholds by the relevances themselves and is the
expectation of the ratio (M. Ferrante, N. Ferro and M. Maistro, ICTIR 2014, compare such variants).

Tied scores leave the order open. AUROC gives ties a half, which is what mid-ranks do; average
precision, and so the graded one, is the expectation over all orders of what is tied (F. McSherry
and M. Najork, ECIR 2008). A map that scores all places alike has what a random order is expected to
have: chance.

They have no intervals, nor has the agreement of two maps: all sites of a pair are there, and none
was drawn. What could come out otherwise is the plant, so that intervals are those of a mean over
plants and seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from kgbench.estimate import Estimate
from kgbench.records import NO_INTERVAL_OF_SITES
from kgbench.stats.intervals import Array

LEAST = 0.05
"""Relevance below which a place never counts as relevant."""


def graded_precision(scores: Array, relevance: Array) -> Estimate:
    """The mean of average precision over thresholds of relevance.

    Args:
        scores: Score of each place [n]; higher is more responsible.
        relevance: Relevance of each place [n], not clamped.
    """
    value, weighed = 0.0, list(_thresholds(relevance))
    if not weighed:
        n = len(relevance)
        reason = (
            f"no place has a relevance above {LEAST:g}, so that there is nothing to find among "
            f"{n} places"
        )
        if not n:
            reason = "no weights changed"
        elif np.ptp(relevance) == 0 and relevance[0] > LEAST:
            reason = f"all {n} places are equally relevant, so that no order is wrong"
        return Estimate.missing(reason, n)
    for threshold, weight in weighed:
        value += weight * _precision(scores, relevance >= threshold)
    return Estimate.alone(min(value, 1.0), len(relevance), NO_INTERVAL_OF_SITES)


def chance_precision(relevance: Array) -> float | None:
    """Expected graded average precision of a random order; None where there is nothing to rank.

    Args:
        relevance: Relevance of each place [n].
    """
    value, weighed = 0.0, list(_thresholds(relevance))
    for threshold, weight in weighed:
        k = int(np.count_nonzero(relevance >= threshold))
        value += weight * expected_precision(len(relevance), k)
    return value if weighed else None


def _thresholds(relevance: Array) -> Iterator[tuple[float, float]]:
    """Distinct relevances that divide the places, each with its share of the thresholds."""
    levels = np.unique(relevance)[::-1] if len(relevance) else np.zeros(0)
    if len(levels) < 2 or levels[0] <= LEAST:
        return
    end = max(LEAST, float(levels[-1]))
    for level, following in pairwise(levels):
        if level > end:
            yield float(level), float(level - max(following, end)) / float(levels[0] - end)


def auroc(scores: Array, truth: Array) -> Estimate:
    """The probability that a planted site ranks above another, ties counting a half (Mann-Whitney).

    Args:
        scores: Score of each site [n].
        truth: Whether the facts were planted there [n].
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    if not 0 < k < n:
        reason = (
            f"{'all' if k else 'none'} of the {n} sites are planted ones, so that there is "
            "nothing to separate"
        )
        return Estimate.missing(reason, n)
    _, group, sizes = np.unique(np.asarray(scores, float), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]  # from the lowest, ties share their mean
    value = float((ranks[np.asarray(truth, bool)].sum() - k * (k + 1) / 2) / (k * (n - k)))
    value = min(max(value, 0.0), 1.0)
    return Estimate.alone(value, n, NO_INTERVAL_OF_SITES)


def _precision(scores: Array, truth: Array) -> float:
    """The expectation of the average precision over the orders that the scores leave open.

    Average precision is the mean, over relevant places, of the precision down to each of them.

    Args:
        scores: Score of each place [n].
        truth: Whether it is relevant [n]; some place is.
    """
    values, group = np.unique(np.asarray(scores, float), return_inverse=True)
    sizes, planted = np.bincount(group), np.bincount(group, weights=np.asarray(truth, float))
    found, before, hits = 0.0, 0, 0
    for tie in reversed(range(len(values))):  # equal scores together, the highest first
        size, relevant = int(sizes[tie]), int(planted[tie])
        if relevant:
            within = np.arange(size)
            expected = hits + 1 + within * ((relevant - 1) / (size - 1) if size > 1 else 0.0)
            found += relevant / size * float(np.sum(expected / (before + within + 1)))
        before, hits = before + size, hits + relevant
    return min(found / hits, 1.0)


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
