"""Effects of the study's factors on its runs.

The model of a run's value in the two-level factorial is

    y = mean + sum over effects of (sign × effect / 2) + seed + error,

seed random and shared by all cells, as its world of pretraining is, error independent with one
variance. An effect is the difference between the means at + and at −. In a balanced design a seed's
deviation is the same at both levels and drops out, so that the estimate of the mixed model is the
least-squares one with a column per seed, and Student's interval with the residual degrees of
freedom is exact (H. Scheffé, The Analysis of Variance, 1959, chapter 8: blocks of complete
replicates). Where runs are missing the same least squares are taken, seeds as fixed columns, which
is exact too and uses the variation within seeds alone. The effects are as many as cells but one, so
that the error is that between runs of a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit

from kgbench.estimate import Estimate
from kgbench.paper.architectures.design import Study
from kgbench.paper.architectures.run_rows import RunFigures, RunRows
from kgbench.stats import LEVEL


@dataclass(frozen=True)
class FarCell:
    """The cell whose mean outcome is farthest from those of the others."""

    name: str
    mean: float
    others: tuple[float, float]
    """The least and the largest mean of the others."""
    share: float
    """Its distance from the mean of the others, as far as it is a part of every effect."""


@dataclass(frozen=True)
class Findings:
    """Figures of all runs that are in."""

    study: Study
    runs: tuple[RunFigures, ...]

    @property
    def contrasts(self) -> tuple[FactorContrast, ...]:
        """Main effects and interactions of the design's factors."""
        return factor_contrasts([factor.name for factor in self.study.factors])

    def cell_means(self, outcome: str) -> dict[str, float]:
        """The mean over seeds of one of `OUTCOMES`, by cell; cells without it are left out."""
        values: dict[str, list[float]] = {cell.name: [] for cell in self.study.cells}
        for run in self.runs:
            if (value := run.outcome(outcome)) is not None:
                values[run.cell].append(value)
        return {name: float(np.mean(own)) for name, own in values.items() if own}

    def far_cell(self, outcome: str) -> FarCell | None:
        """The cell farthest from the others; None where a cell has no value.

        An effect is 2 / cells of a sum of means with signs: this cell moves all of them by the same
        share of its distance.
        """
        means = self.cell_means(outcome)
        if len(means) < len(self.study.cells):
            return None
        total, distances = sum(means.values()), {}
        for name, mean in means.items():
            distances[name] = abs(mean - (total - mean) / (len(means) - 1))
        name = max(distances, key=distances.__getitem__)
        others = [mean for cell, mean in means.items() if cell != name]
        share = distances[name] * 2 / len(means)
        return FarCell(name, means[name], (min(others), max(others)), share)

    def main_effects(self, outcome: str, without: str = "") -> dict[str, Estimate]:
        """Effects of the factors by name, in a model without interactions.

        Args:
            outcome: One of `OUTCOMES`.
            without: A cell that is left out.
        """
        chosen = factor_contrasts([factor.name for factor in self.study.factors], most=1)
        found = effects(*self._columns(outcome, without=without), chosen)
        return dict(zip((one.name for one in chosen), found, strict=True))

    def effects(
        self,
        outcome: str,
        prompts: Sequence[str] = (),
        complete: bool = False,
        level: float = LEVEL,
    ) -> list[Estimate]:
        """The effect of each contrast on one of `OUTCOMES`.

        Args:
            outcome: Its name.
            prompts: By default all.
            complete: Only runs that reach all criteria.
            level: Confidence of each interval.
        """
        values, signs, seeds = self._columns(outcome, prompts, complete)
        return effects(values, signs, seeds, self.contrasts, level)

    def deviations(self, outcome: str) -> tuple[float, float] | None:
        """Standard deviations between seeds and of the error."""
        return seed_deviation(*self._columns(outcome), self.contrasts)

    def _columns(
        self,
        outcome: str,
        prompts: Sequence[str] = (),
        complete: bool = False,
        without: str = "",
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        cells = {cell.name: cell.signs for cell in self.study.cells}
        values, signs, seeds = [], [], []
        for run in self.runs:
            left_out = run.cell == without or (complete and run.shortfalls)
            value = None if left_out else run.outcome(outcome, prompts)
            if value is not None:
                values.append(value)
                signs.append(cells[run.cell])
                seeds.append(run.rows.about.seed)
        shape = (len(values), len(self.study.factors))
        return np.array(values), np.array(signs, int).reshape(shape), np.array(seeds, int)


def findings(study: Study, rows: Sequence[RunRows]) -> Findings:
    """Figures of all runs that are in."""
    return Findings(study, tuple(RunFigures(study, one) for one in rows))


Signs = Int[np.ndarray, "run factor"]
Values = Float[np.ndarray, " run"]


@dataclass(frozen=True)
class FactorContrast:
    """A main effect or an interaction."""

    name: str
    factors: tuple[int, ...]
    """The columns of signs whose product is its own."""

    def column(self, signs: Signs) -> Int[np.ndarray, " run"]:
        """Signs of runs."""
        column: np.ndarray = np.prod(signs[:, list(self.factors)], axis=1)
        return column


def factor_contrasts(names: Sequence[str], most: int | None = None) -> tuple[FactorContrast, ...]:
    """All main effects of these factors, then all interactions of two, of three and so on.

    Args:
        names: Of the factors.
        most: Factors in an interaction at most; by default all.
    """
    contrasts = []
    for n in range(1, (most or len(names)) + 1):
        for factors in combinations(range(len(names)), n):
            name = " × ".join(names[i] for i in factors)
            contrasts.append(FactorContrast(name, factors))
    return tuple(contrasts)


def _model(
    chosen: Sequence[FactorContrast], signs: Signs, seeds: Int[np.ndarray, " run"]
) -> Float[np.ndarray, "run column"]:
    """Half the signs of each contrast, then a column per seed."""
    halves = [contrast.column(signs) / 2 for contrast in chosen]
    blocks = [(seeds == seed).astype(float) for seed in np.unique(seeds)]
    return np.stack([*halves, *blocks], axis=1)


def effects(
    values: Values,
    signs: Signs,
    seeds: Int[np.ndarray, " run"],
    chosen: Sequence[FactorContrast],
    level: float = LEVEL,
) -> list[Estimate]:
    """The effect of each contrast, with Student's interval.

    Args:
        values: Of the runs.
        signs: Levels of the runs.
        seeds: Training seeds of the runs.
        chosen: All effects of the model.
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
    quantile = float(stdtrit(freedom, (1 + level) / 2))
    estimates = []
    for i in range(len(chosen)):
        value, margin = solution[i], quantile * sqrt(variance * inverse[i, i])
        estimates.append(Estimate.hull(value, n, (value - margin, value + margin)))
    return estimates


def seed_deviation(
    values: Values, signs: Signs, seeds: Int[np.ndarray, " run"], chosen: Sequence[FactorContrast]
) -> tuple[float, float] | None:
    """Standard deviations between seeds and of the error.

    None where runs of the cells or seeds are missing, or none is left over to estimate an error.

    That between seeds is 0 where the mean square of seeds is below that of the error.
    """
    cells, drawn = len(np.unique(signs, axis=0)), np.unique(seeds)
    if len(drawn) < 2 or len(values) != cells * len(drawn):
        return None
    model = _model(chosen, signs, seeds)
    solution = np.linalg.lstsq(model, values, rcond=None)[0]
    freedom = len(values) - int(np.linalg.matrix_rank(model))
    if not freedom:
        return None
    error = float(np.sum((values - model @ solution) ** 2)) / freedom
    means = [values[seeds == seed].mean() for seed in drawn]
    between = cells * float(np.var(means, ddof=1))
    return sqrt(max(0.0, (between - error) / cells)), sqrt(error)
