"""How well a ranking of sites separates those where facts were planted from the others.

Tied scores leave the order open. AUROC gives ties a half, which is what mid-ranks do; average precision and recall@k are their
expectations over all orders of what is tied (McSherry and Najork, ECIR 2008).

They have no intervals, nor has the agreement of two maps: all sites of a pair are there, and none was drawn. What could come out
otherwise is the plant, so that intervals are those of a mean over plants and seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata, spearmanr

from kgbench.records import NO_INTERVAL_OF_SITES
from kgbench.stats import Figure

__all__ = ["RankingFigures", "agreement", "auroc", "average_precision", "expected_precision", "rank_figures", "recall_at_k"]

Array = NDArray[Any]


@dataclass(frozen=True)
class RankingFigures:
    """A ranking against the truth."""

    auroc: Figure
    average_precision: Figure
    recall_at_k: Figure
    expected: dict[str, float]
    """What a ranking at random is expected to get."""


def rank_figures(scores: Array, truth: Array) -> RankingFigures:
    """All figures of a ranking.

    Args:
        scores: Score of each site [n]; higher is more responsible.
        truth: Whether the facts were planted there [n].
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    expected = {"auroc": 0.5, "average_precision": expected_precision(n, k), "recall_at_k": k / n} if k else {}
    area, precision, recall = (figure(scores, truth) for figure in (auroc, average_precision, recall_at_k))
    return RankingFigures(area, precision, recall, expected)


def auroc(scores: Array, truth: Array) -> Figure:
    """The probability that a planted site is ranked above another, ties counting a half (the Mann-Whitney statistic).

    Args:
        scores: Score of each site [n].
        truth: Whether the facts were planted there [n].
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    if not 0 < k < n:
        return Figure.missing(_one_kind(n, k), n)
    ranks = rankdata(scores)
    value = float((ranks[np.asarray(truth, bool)].sum() - k * (k + 1) / 2) / (k * (n - k)))
    value = min(max(value, 0.0), 1.0)
    return Figure.alone(value, n, NO_INTERVAL_OF_SITES)


def average_precision(scores: Array, truth: Array) -> Figure:
    """The mean, over planted sites, of the precision down to each of them.

    Args:
        scores: Score of each site [n].
        truth: Whether the facts were planted there [n].
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    if not 0 < k < n:
        return Figure.missing(_one_kind(n, k), n)
    found, before, hits = 0.0, 0, 0
    for size, planted in _ties(scores, truth):
        within = np.arange(size)
        expected = hits + 1 + within * ((planted - 1) / (size - 1) if size > 1 else 0.0)
        found += planted / size * float(np.sum(expected / (before + within + 1)))
        before, hits = before + size, hits + planted
    value = min(found / k, 1.0)
    return Figure.alone(value, n, NO_INTERVAL_OF_SITES)


def expected_precision(n: int, k: int) -> float:
    """The average precision that a random order of n sites with k planted ones is expected to have."""
    harmonic = float(np.sum(1 / np.arange(1, n + 1)))
    slope = (k - 1) / (n - 1) if n > 1 else 0.0
    return slope + (1 - slope) * harmonic / n


def recall_at_k(scores: Array, truth: Array) -> Figure:
    """The share of the k planted sites that are among the k best.

    Args:
        scores: Score of each site [n].
        truth: Whether the facts were planted there [n].
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    if not 0 < k < n:
        return Figure.missing(_one_kind(n, k), n)
    hits, left = 0.0, k
    for size, planted in _ties(scores, truth):
        taken = min(size, left)
        hits, left = hits + planted * taken / size, left - taken
    value = min(hits / k, 1.0)
    return Figure.alone(value, n, NO_INTERVAL_OF_SITES)


def _ties(scores: Array, truth: Array) -> Iterator[tuple[int, int]]:
    """Groups of equal scores, the highest first: how many sites, and how many of them planted."""
    values, group = np.unique(np.asarray(scores, float), return_inverse=True)
    sizes, planted = np.bincount(group), np.bincount(group, weights=np.asarray(truth, float))
    for i in reversed(range(len(values))):
        yield int(sizes[i]), int(planted[i])


def _one_kind(n: int, k: int) -> str:
    return f"{'all' if k else 'none'} of the {n} sites are planted ones, so that there is nothing to separate"


def agreement(first: Array, second: Array) -> Figure:
    """Spearman's correlation of two maps of the same sites.

    Args:
        first: Scores [n].
        second: Scores [n] of the same sites in the same order.
    """
    n = len(first)
    if n < 4 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return Figure.missing("a map whose scores are all equal, or of fewer than four sites, has no order to compare", n)
    value = float(np.clip(spearmanr(first, second).statistic, -1, 1))
    return Figure.alone(value, n, NO_INTERVAL_OF_SITES)
