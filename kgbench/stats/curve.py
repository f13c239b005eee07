"""The budget curve: recovery where the best-ranked sites are grafted, as their budget grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.estimate import Estimate
from kgbench.stats.intervals import ratio
from kgbench.stats.ratios import no_gain, recovery

__all__ = ["area", "contrasts", "points", "weights"]

Array = NDArray[Any]

FIRST, LAST = 0.1, 100.0
"""Per cent: the ends of the area; a budget of 0 is drawn, not integrated."""


def weights(budgets: Array) -> NDArray[np.float64]:
    """What each budget's recovery counts in the area.

    The area is the trapezoid over log10(budget) from .1 to 100 %, divided by the width, 3; it is
    thus a weighted mean of recoveries.

    Args:
        budgets: Per cent, ascending; .1 and 100 are among them.

    Returns:
        Weights [n] that sum to 1; 0 outside of .1 to 100.

    Raises:
        ValueError: If the budgets do not reach from .1 to 100.
    """
    inside = (budgets >= FIRST) & (budgets <= LAST)
    logs = np.log10(budgets[inside])
    if (
        len(logs) < 2
        or np.any(np.diff(logs) <= 0)
        or budgets[inside][0] != FIRST
        or budgets[inside][-1] != LAST
    ):
        raise ValueError(
            f"the area needs ascending budgets from {FIRST} to {LAST} %, not {budgets.tolist()}"
        )
    widths = np.diff(logs) / (logs[-1] - logs[0])
    found = np.zeros(len(budgets))
    found[inside] = (np.append(widths, 0) + np.append(0, widths)) / 2
    return found


def points(scores: Mapping[str, Array], budgets: Mapping[str, float]) -> dict[str, Estimate]:
    """Recovery at each budget.

    Args:
        scores: Per-fact scores [n] of each configuration, `PRE` and `SFT` among them.
        budgets: Configurations and their budgets in per cent.
    """
    return {label: recovery(scores, label) for label in budgets}


def area(scores: Mapping[str, Array], budgets: Mapping[str, float]) -> Estimate:
    """The area under the curve, as one ratio of means.

    Args:
        scores: Per-fact scores [n] of each configuration.
        budgets: Configurations and their budgets in per cent, ascending.
    """
    if (reason := no_gain(scores)) is not None:
        return reason
    return ratio(*contrasts(scores, budgets))


def contrasts(scores: Mapping[str, Array], budgets: Mapping[str, float]) -> tuple[Array, Array]:
    """Numerator and denominator of the area, of each fact.

    Args:
        scores: Per-fact scores [n] of each configuration.
        budgets: Configurations and their budgets in per cent, ascending.
    """
    pre, sft = (np.asarray(scores[name], float) for name in ("PRE", "SFT"))
    shares = weights(np.array(list(budgets.values())))
    gained = np.stack([np.asarray(scores[label], float) - pre for label in budgets])
    # Rounded, so that a fact whose every budget gives what the donor gives ties exactly with it.
    return np.round(shares @ gained, 12), sft - pre
