"""How well a ranking of sites separates those where facts were planted from the others.

Tied scores leave the order open. AUROC gives ties a half, which is what mid-ranks do; average precision and recall@k are their
expectations over all orders of what is tied (McSherry and Najork, ECIR 2008).

Intervals treat sites as draws of their kind. They say how far so few sites can tell, not how other facts would turn out. Where a method
scores several sites at once, such as a component in all regions alike, `share` says how many it told apart of each that there are, and
intervals are those of so many fewer sites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm, rankdata, spearmanr

from kgbench.stats import LEVEL, Figure, wilson_interval

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


def rank_figures(scores: Array, truth: Array, share: float = 1.0) -> RankingFigures:
    """All figures of a ranking.

    Args:
        scores: Score of each site [n]; higher is more responsible.
        truth: Whether the facts were planted there [n].
        share: Of the sites, how many the method told apart.
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    expected = {"auroc": 0.5, "average_precision": expected_precision(n, k), "recall_at_k": k / n} if k else {}
    area, precision, recall = (figure(scores, truth, share) for figure in (auroc, average_precision, recall_at_k))
    return RankingFigures(area, precision, recall, expected)


def auroc(scores: Array, truth: Array, share: float = 1.0) -> Figure:
    """The probability that a planted site is ranked above another, ties counting a half (the Mann-Whitney statistic).

    The interval is method 5 of R. G. Newcombe, Statistics in Medicine 25 (2006) 559-573: the values t with |t - AUROC| <= z sqrt(V(t)),

        V(t) = t (1 - t) / (k m) * [1 + N ((1 - t) / (2 - t) + t / (1 + t))],   N = (k + m) / 2 - 1,

    k planted and m other sites, which is Hanley and McNeil's variance with both sample sizes in the bracket replaced by their mean. It is
    solved as a score interval is, so that an AUROC of 1 has a lower end below 1.

    Args:
        scores: Score of each site [n].
        truth: Whether the facts were planted there [n].
        share: Of the sites, how many the method told apart.
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    if not 0 < k < n:
        return Figure.missing(_one_kind(n, k), n)
    ranks = rankdata(scores)
    value = float((ranks[np.asarray(truth, bool)].sum() - k * (k + 1) / 2) / (k * (n - k)))
    value = min(max(value, 0.0), 1.0)
    return Figure.hull(value, n, _newcombe(value, max(1.0, k * share), max(1.0, (n - k) * share)))


def _newcombe(value: float, k: float, m: float) -> tuple[float, float]:
    z, larger = float(norm.ppf((1 + LEVEL) / 2)), (k + m) / 2 - 1

    def excess(t: float) -> float:
        variance = t * (1 - t) / (k * m) * (1 + larger * ((1 - t) / (2 - t) + t / (1 + t)))
        return (t - value) ** 2 - z * z * variance

    # At 0 and 1 the variance is 0, at the value itself the distance is: the ends lie between.
    low = 0.0 if value == 0 else float(brentq(excess, 0.0, min(value, 1 - 1e-12)))
    high = 1.0 if value == 1 else float(brentq(excess, max(value, 1e-12), 1.0))
    return low, high


def average_precision(scores: Array, truth: Array, share: float = 1.0) -> Figure:
    """The mean, over planted sites, of the precision down to each of them.

    The interval is the binomial one on the number of planted sites (Boyd, Eng and Page, ECML PKDD 2013), in Wilson's form.

    Args:
        scores: Score of each site [n].
        truth: Whether the facts were planted there [n].
        share: Of the sites, how many the method told apart.
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
    return Figure.hull(value, n, wilson_interval(value, max(1.0, k * share)))


def expected_precision(n: int, k: int) -> float:
    """The average precision that a random order of n sites with k planted ones is expected to have."""
    harmonic = float(np.sum(1 / np.arange(1, n + 1)))
    slope = (k - 1) / (n - 1) if n > 1 else 0.0
    return slope + (1 - slope) * harmonic / n


def recall_at_k(scores: Array, truth: Array, share: float = 1.0) -> Figure:
    """The share of the k planted sites that are among the k best, with Wilson's interval on their number.

    Args:
        scores: Score of each site [n].
        truth: Whether the facts were planted there [n].
        share: Of the sites, how many the method told apart.
    """
    n, k = len(truth), int(np.count_nonzero(truth))
    if not 0 < k < n:
        return Figure.missing(_one_kind(n, k), n)
    hits, left = 0.0, k
    for size, planted in _ties(scores, truth):
        taken = min(size, left)
        hits, left = hits + planted * taken / size, left - taken
    value = min(hits / k, 1.0)
    return Figure.hull(value, n, wilson_interval(value, max(1.0, k * share)))


def _ties(scores: Array, truth: Array) -> Iterator[tuple[int, int]]:
    """Groups of equal scores, the highest first: how many sites, and how many of them planted."""
    values, group = np.unique(np.asarray(scores, float), return_inverse=True)
    sizes, planted = np.bincount(group), np.bincount(group, weights=np.asarray(truth, float))
    for i in reversed(range(len(values))):
        yield int(sizes[i]), int(planted[i])


def _one_kind(n: int, k: int) -> str:
    return f"{'all' if k else 'none'} of the {n} sites are planted ones, so that there is nothing to separate"


def agreement(first: Array, second: Array, share: float = 1.0) -> Figure:
    """Spearman's correlation of two maps of the same sites, with the interval of Bonett and Wright (Psychometrika 65, 2000).

    The interval of maps of one order is that of maps which differ by one exchange of neighbours, since of a 1 it would be a point.

    Args:
        first: Scores [n].
        second: Scores [n] of the same sites in the same order.
        share: Of the sites, how many the methods told apart.
    """
    n = len(first)
    if n < 4 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return Figure.missing("a map whose scores are all equal, or of fewer than four sites, has no order to compare", n)
    value = float(np.clip(spearmanr(first, second).statistic, -1, 1))
    sites = max(4.0, n * share)
    near = float(np.clip(value, 12 / (n**3 - n) - 1, 1 - 12 / (n**3 - n)))
    margin = float(norm.ppf((1 + LEVEL) / 2)) * sqrt((1 + near**2 / 2) / (sites - 3))
    centre = float(np.arctanh(near))
    return Figure.hull(value, n, (float(np.tanh(centre - margin)), float(np.tanh(centre + margin))))
