"""Contrasts: what cases that are to show a behaviour have beyond their controls.

Of configuration S, with m the mean over the cases of a group,

    contrast(S) = m_on(S) - m_off(S)
    recovery(S) = (contrast(S) - contrast(PRE)) / (contrast(SFT) - contrast(PRE))

Cases and controls are independent samples: variances of the means add up, with degrees of freedom
by Satterthwaite, and the ratio has Fieller's interval. Where groups are paired, as by a person who is
in both, the intervals are too wide rather than too narrow if such pairs score alike.
"""

from __future__ import annotations

from math import inf, isfinite, sqrt

import numpy as np
from jaxtyping import Float

from kgbench.estimate import Estimate
from kgbench.stats.intervals import Array, satterthwaite, student_quantile
from kgbench.stats.ratios import recovery_parts
from kgbench.stats.scores import Scores, numbers

FEW = "an interval needs two cases and two controls"
UNCHANGED = "finetuning does not significantly change the contrast"
ALIKE = "the cases or the controls all score alike, so that their spread is unknown"


def group_contrast(on: Scores, off: Scores, graft: str) -> Estimate:
    """m_on(S) - m_off(S), with Welch's interval.

    Args:
        on: Scores [n] of the cases by configuration.
        off: Scores [n] of the controls.
        graft: The configuration S.
    """
    groups = [np.asarray(numbers(each[graft]), float) for each in (on, off)]
    n, value = sum(map(len, groups)), float(groups[0].mean() - groups[1].mean())
    if min(map(len, groups)) < 2:
        return Estimate.alone(value, n, FEW)
    variances, freedom = _variance([values[None] for values in groups])
    if not isfinite(freedom):
        return Estimate.alone(value, n, ALIKE)
    margin = student_quantile(freedom) * sqrt(variances[0, 0])
    return Estimate.hull(value, n, (value - margin, value + margin))


def contrast_recovery(on: Scores, off: Scores, graft: str) -> Estimate:
    """The share of the contrast that finetuning added which the configuration brings.

    Args:
        on: Scores [n] of the cases by configuration, `PRE` and `SFT` among them.
        off: Those of the controls.
        graft: The configuration.
    """
    parts = [np.array(recovery_parts(each, graft), float) for each in (on, off)]
    n = sum(part.shape[1] for part in parts)
    if min(part.shape[1] for part in parts) < 2:
        return Estimate.missing(FEW, n)
    above, below = parts[0].mean(axis=1) - parts[1].mean(axis=1)
    variances, freedom = _variance(parts)
    if not isfinite(freedom):
        return Estimate.missing(ALIKE, n)
    square = student_quantile(freedom) ** 2
    # (a - r b)² = t² (Vaa - 2 r Vab + r² Vbb) at the ends of the interval of r.
    leading = below**2 - square * variances[1, 1]
    if leading <= 0 or below == 0:
        return Estimate.missing(UNCHANGED, n)
    if graft in ("PRE", "SFT"):
        exact = float(graft == "SFT")
        return Estimate(exact, exact, exact, n)
    middle = above * below - square * variances[0, 1]
    rest = above**2 - square * variances[0, 0]
    root = sqrt(max(0.0, middle**2 - leading * rest))
    ends = (middle - root) / leading, (middle + root) / leading
    return Estimate.hull(float(above / below), n, ends)


def _variance(
    groups: list[Float[np.ndarray, "figure case"]],
) -> tuple[Float[np.ndarray, "figure figure"], float]:
    """Covariance of the differences of means, and degrees of freedom of the last variance.

    They are infinite where a group has no spread.
    """
    total, terms = np.zeros((len(groups[0]), len(groups[0]))), list[tuple[float, float]]()
    for values in groups:
        part: Array = np.atleast_2d(np.cov(values)) / values.shape[1]
        total += part
        terms.append((values.shape[1] - 1, float(part[-1, -1])))
    is_spread = all(variance > 0 for _, variance in terms)
    return total, satterthwaite(terms) if is_spread else inf
