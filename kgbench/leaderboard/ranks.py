"""Ranks with one error rate for a whole table of methods.

The rank of a method among K is a set, from 1 + the number of methods that are significantly better
to K less the number that are significantly worse: a confidence set for its true rank (M. Mogstad,
J. P. Romano, A. M. Shaikh and D. Wilhelm, Review of Economic Studies 91, 2024). Differences are
tested for all pairs of the table at once: with d the difference of two methods and s its standard
error, both from one bootstrap that all methods share,

    significant    |d| / s > c,    c the 95 % quantile of the largest |d* - d| / s among all pairs

(J. P. Romano and M. Wolf, Econometrica 73, 2005; step-down: significant pairs are left out, and c
is taken again among the rest). A bootstrap of n facts or plants knows s no better than they do: c
is taken from the normal to Student's t with n - 1 degrees of freedom. Of draws within levels these
are Satterthwaite's, of each pair its own, but at most the lower quartile of all pairs: far in the
tail a small s by luck also looks well known. Draws of less than 30 cannot
be far from their mean, and c is then at least Holm's for all pairs that are left (S. Holm,
Scandinavian Journal of Statistics 6, 1979), as if they had nothing in common. The order is closed
under implication: a better than b and b better than c makes a better than c. So on about 95 % of
tables every difference that counts is real, all rank sets hold the true ranks, and no method's set
leaves out 1 that is one of the best. A method that differs from no
other has the set of all ranks, which is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, sqrt
from typing import Any, Protocol, TypeVar

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

from kgbench.estimate import Estimate
from kgbench.stats import LEVEL, Resampled

_C = TypeVar("_C", bound="Comparable")

_Z = float(ndtri((1 + LEVEL) / 2))
"""Standard errors from the middle of a 95 % interval to its end."""

_MANY = 30
"""Of as many facts or plants a bootstrap knows the tails."""

_LOWER = 0.25
"""Share of all pairs whose degrees of freedom are fewer than those that any pair may have."""

_ROUNDING = 1e-9
"""A smaller standard error is rounding: nothing is known of such a difference."""

_ONE_SIDED = float(ndtri(LEVEL))
"""The same of an interval with one end."""


class Comparable(Protocol):
    """Figure that methods are ranked by; higher is better."""

    @property
    def figure(self) -> Estimate:
        """The figure with its interval."""

    def minus(self: _C, other: _C) -> Resampled:
        """Its paired difference from another method's, in draws that all methods share."""


def better(methods: Mapping[str, _C]) -> dict[str, frozenset[str]]:
    """For each method whose figure is defined, those that are significantly better.

    On a share `LEVEL` of tables there is no false difference.

    Args:
        methods: By name, their figures; all on the same cells.
    """
    defined = {}
    for name, method in methods.items():
        if (value := method.figure.value) is not None:
            defined[name] = value
    names = sorted(defined, key=lambda name: (-defined[name], name))
    first, second = np.triu_indices(len(names), 1)
    gaps = [methods[names[i]].minus(methods[names[k]]) for i, k in zip(first, second, strict=True)]
    above = np.zeros((len(names), len(names)), bool)
    if gaps:
        differs, values = _significant(gaps), np.array([gap.value for gap in gaps])
        up, down = differs & (values > 0), differs & (values < 0)
        above[first[up], second[up]] = True
        above[second[down], first[down]] = True
    for i in range(len(names)):  # whoever is above i is above all that i is above
        above |= above[:, i : i + 1] & above[i : i + 1]
    ordered = np.array(names, dtype=object)
    return {name: frozenset(ordered[above[:, k]]) for k, name in enumerate(names)}


def rank_sets(above: Mapping[str, frozenset[str]]) -> dict[str, tuple[int, int]]:
    """First and last rank of each method.

    Args:
        above: For each method, those that are better, see `better`.
    """
    sets = {}
    for name, over in above.items():
        worse = sum(name in each for each in above.values())
        sets[name] = 1 + len(over), len(above) - worse
    return sets


def _significant(gaps: list[Resampled]) -> Bool[np.ndarray, " pairs"]:
    """Which differences are significant, tested all at once."""
    values = np.array([gap.value for gap in gaps])
    draws: Float[np.ndarray, "pairs draws"] = np.stack([gap.draws for gap in gaps])
    spread = _standard_errors(gaps, draws)
    moving = spread > _ROUNDING
    size = np.divide(np.abs(values), spread, out=np.zeros(len(values)), where=moving)
    drawn = np.divide(
        np.abs(draws - values[:, None]),
        spread[:, None],
        out=np.zeros_like(draws),
        where=moving[:, None],
    )
    drawn[np.isnan(drawn)] = np.inf  # a draw without a difference counts against all of them
    freedom, factor = _freedom(gaps, moving)
    # A quantile of some draws is itself uncertain: its upper end is taken.
    share = min(1.0, LEVEL + _ONE_SIDED * sqrt(LEVEL * (1 - LEVEL) / draws.shape[1]))
    differs = np.zeros(len(values), bool)
    while not differs.all():
        largest = float(np.quantile(drawn[~differs].max(axis=0), share, method="higher"))
        if freedom.min() + 1 < _MANY:
            largest = max(largest, -float(ndtri((1 - LEVEL) / 2 / np.count_nonzero(~differs))))
        # Its lower tail: that of a probability of 0 is said to be +inf.
        bound = factor * np.abs(stdtrit(freedom, ndtr(-largest)))
        more = ~differs & (size > bound)
        if not more.any():
            break
        differs |= more
    return differs


def _freedom(
    gaps: list[Resampled], moving: Bool[np.ndarray, " pairs"]
) -> tuple[Float[np.ndarray, " pairs"], float]:
    """Degrees of freedom of the standard errors, and by what factor the draws' are too small.

    Args:
        gaps: The differences.
        moving: Which of them differ between draws.
    """
    n = min(gap.n for gap in gaps)
    degrees = [gap.freedom for gap in gaps if gap.freedom is not None]
    if len(degrees) < len(gaps):
        return np.full(len(gaps), max(n - 1.0, 0.0)), sqrt(n / (n - 1)) if n > 1 else inf
    freedom = np.array(degrees)
    most = float(np.quantile(freedom[moving], _LOWER)) if moving.any() else inf
    return np.minimum(freedom, most), 1.0


def _standard_errors(gaps: list[Resampled], draws: NDArray[Any]) -> Float[np.ndarray, " pairs"]:
    """Standard error of each difference: of its draws, at least that of its floor's 95 % interval."""
    widths = [max(gap.value - gap.floor[0], gap.floor[1] - gap.value) for gap in gaps]
    spread: NDArray[Any] = np.maximum(np.nanstd(draws, axis=1), np.array(widths) / _Z)
    return spread
