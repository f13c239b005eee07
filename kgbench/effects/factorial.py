"""Effects of a two-level fractional factorial whose runs are repeated under several training seeds.

The model of a run's value is

    y = mean + sum over effects of (sign × effect / 2) + seed + error,

seed random and shared by all cells, as its world of pretraining is, error independent with one
variance. An effect is the difference between the means at + and at −. In a balanced design a seed's
deviation is the same at both levels and drops out, so that the estimate of the mixed model is the
least-squares one with a column per seed, and Student's interval with the residual degrees of
freedom is exact (H. Scheffé, The Analysis of Variance, 1959, chapter 8: blocks of complete
replicates). Where runs are missing the same least squares are taken, seeds as fixed columns, which
is exact too and uses what is within seeds alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import t

from kgbench.estimate import Estimate
from kgbench.stats import LEVEL

__all__ = ["Contrast", "contrasts", "effects", "log_odds", "seed_deviation"]

Signs = Int[np.ndarray, "run factor"]
Values = Float[np.ndarray, " run"]


@dataclass(frozen=True)
class Contrast:
    """One column of signs, and the effects that have it."""

    names: tuple[str, ...]
    """A main effect, or the interactions of two factors that share this column."""
    factors: tuple[int, ...]
    """The columns whose product it is, of the first name."""

    @property
    def name(self) -> str:
        """The effects in words."""
        return " = ".join(self.names)

    def column(self, signs: Signs) -> Int[np.ndarray, " run"]:
        """Signs of runs."""
        column: np.ndarray = np.prod(signs[:, list(self.factors)], axis=1)
        return column


def contrasts(names: Sequence[str], signs: Signs) -> tuple[Contrast, ...]:
    """Main effects and interactions of two factors, those that share a column as one.

    Args:
        names: Of the factors.
        signs: Of all cells of the design [cell, factor].

    Raises:
        ValueError: A main effect shares a column with another effect: the resolution is below IV.
    """
    found: dict[bytes, list[tuple[int, ...]]] = {}
    singles = [(i,) for i in range(len(names))]
    for factors in (*singles, *combinations(range(len(names)), 2)):
        column = np.prod(signs[:, list(factors)], axis=1).astype(np.int64)
        found.setdefault(column.tobytes(), []).append(factors)
    for same in found.values():
        if len(same) > 1 and len(same[0]) == 1:
            raise ValueError(f"the main effect of {names[same[0][0]]} is aliased with others")
    return tuple(
        Contrast(tuple(" × ".join(names[i] for i in factors) for factors in same), same[0])
        for same in found.values()
    )


def _model(
    chosen: Sequence[Contrast], signs: Signs, seeds: Int[np.ndarray, " run"]
) -> Float[np.ndarray, "run column"]:
    """Half the signs of each contrast, then a column per seed."""
    halves = [contrast.column(signs) / 2 for contrast in chosen]
    blocks = [(seeds == seed).astype(float) for seed in np.unique(seeds)]
    return np.stack([*halves, *blocks], axis=1)


def effects(
    values: Values,
    signs: Signs,
    seeds: Int[np.ndarray, " run"],
    chosen: Sequence[Contrast],
    level: float = LEVEL,
) -> list[Estimate]:
    """The effect of each contrast, with Student's interval.

    Args:
        values: Of the runs.
        signs: Levels of the runs.
        seeds: Training seeds of the runs.
        chosen: What is asked for, all effects of the model.
        level: Confidence of each interval.
    """
    n = len(values)
    model = _model(chosen, signs, seeds) if n else np.empty((0, 1))
    if n == 0 or np.linalg.matrix_rank(model) < model.shape[1]:
        reason = f"{n} runs do not tell the design's effects from each other and from the seeds"
        return [Estimate.missing(reason, n) for _ in chosen]
    inverse = np.linalg.inv(model.T @ model)
    solution = inverse @ model.T @ values
    freedom = n - model.shape[1]
    if freedom < 1:
        reason = f"{n} runs leave no degrees of freedom for the error: a cell needs a second seed"
        return [Estimate.alone(solution[i], n, reason) for i in range(len(chosen))]
    variance = float(np.sum((values - model @ solution) ** 2)) / freedom
    quantile = float(t.ppf((1 + level) / 2, freedom))
    margins = [quantile * sqrt(variance * inverse[i, i]) for i in range(len(chosen))]
    return [
        Estimate.hull(solution[i], n, (solution[i] - margin, solution[i] + margin))
        for i, margin in enumerate(margins)
    ]


def seed_deviation(
    values: Values, signs: Signs, seeds: Int[np.ndarray, " run"], chosen: Sequence[Contrast]
) -> tuple[float, float] | None:
    """Standard deviations between seeds and of the error, by mean squares; None where runs are missing.

    That between seeds is 0 where the mean square of seeds is below that of the error.
    """
    cells = len(np.unique(signs, axis=0))
    several = len(np.unique(seeds)) > 1
    if not several or len(values) != cells * len(np.unique(seeds)):
        return None
    model = _model(chosen, signs, seeds)
    solution = np.linalg.lstsq(model, values, rcond=None)[0]
    freedom = len(values) - int(np.linalg.matrix_rank(model))
    error = float(np.sum((values - model @ solution) ** 2)) / freedom
    means = [values[seeds == seed].mean() for seed in np.unique(seeds)]
    between = cells * float(np.var(means, ddof=1))
    return sqrt(max(0.0, (between - error) / cells)), sqrt(error)


def log_odds(hits: int, n: int) -> float:
    """Log-odds of hits among n, half a count added on either side (F. J. Anscombe, 1956)."""
    return float(np.log((hits + 0.5) / (n - hits + 0.5)))
