"""Rows of the study's runs, one small file a run; their figures, and the effects of its factors.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import sqrt
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int
from scipy.special import stdtrit

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.paper.architectures.design import Criteria, Study
from kgbench.paper.measurements import read_stored, write_stored
from kgbench.records import Strict
from kgbench.stats import LEVEL, difference, hit_rate, resample
from kgbench.stats.intervals import outwards
from kgbench.stats.ratios import recovery

# ------------------------------------------------------------------------------ rows of a run

BOTH = "FE+LT"

PATHWAYS = ("PRE", "SFT", "FE", "LT", BOTH, "(FE+LT)^C")
"""Configurations of every run; those with cuts follow."""

KNOWN = "KNOWN"
"""Configuration of the recipient's rows about movies of pretraining."""

SCHEMA = pa.schema(
    [
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("configuration", pa.string(), nullable=False),
        pa.field("fact", pa.uint16(), nullable=False),
        pa.field("rank", pa.uint16(), nullable=False),
    ]
)
"""`fact` counts the facts of the data set or the movies of pretraining; `rank` 1 is the best."""

_ABOUT = b"kgbench_study"


def cut_in(layer: int) -> str:
    """Name of FE+LT where LT does not attend to FE in one layer."""
    return f"{BOTH}, cut in {layer}"


def cut_from(layer: int) -> str:
    """Name of FE+LT where LT does not attend to FE from one layer on."""
    return f"{BOTH}, cut from {layer}"


class RunAbout(Strict):
    """Provenance of the rows of a run."""

    run: str
    levels: dict[str, str]
    """Level by factor."""
    seed: int
    identity: str
    """Hash of design, recipe and facts."""
    layers: int
    layer_weights: int
    """Weights inside the layers, which are what finetuning changes."""
    weights: int
    """All weights."""
    finetunings: int
    """Trainings of the donor, one after the other."""
    steps: dict[str, int]
    """By stage."""
    seconds: dict[str, float]
    """By stage."""
    kgbench: str
    packages: dict[str, str]
    platform: str


@dataclass(frozen=True)
class RunRows:
    """The rows of a run."""

    about: RunAbout
    table: pa.Table

    def ranks(self, prompt: str, configuration: str) -> np.ndarray:
        """Ranks [fact] of one configuration on one prompt, facts in order.

        Raises:
            DataError: The run holds no such rows.
        """
        names = (self.table["prompt"].to_numpy(), self.table["configuration"].to_numpy())
        chosen = (names[0] == prompt) & (names[1] == configuration)
        facts = self.table["fact"].to_numpy()[chosen]
        if not np.array_equal(facts, np.arange(len(facts))) or not len(facts):
            raise DataError(
                f"{self.about.run}: the rows of {configuration} on {prompt} are not one per fact; "
                "remove the file, and kgbench reproduce study makes it again"
            )
        ranks: np.ndarray = self.table["rank"].to_numpy()[chosen]
        return ranks


def rows_path(folder: Path, run: str) -> Path:
    """The file of a run."""
    return folder / "runs" / f"{run}.parquet"


def write_rows(rows: RunRows, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_stored(rows.about, rows.table, _ABOUT, path)


def read_rows(path: Path) -> RunRows:
    """Read the file of a run.

    Raises:
        DataError: The file is not one of `write_rows`.
    """
    expected = (
        "the rows that `kgbench reproduce study` writes; remove it to have the run made again"
    )
    return RunRows(*read_stored(RunAbout, SCHEMA, _ABOUT, path, expected))


def table_of(blocks: Sequence[tuple[str, str, np.ndarray]]) -> pa.Table:
    """Rows from (prompt, configuration, ranks [fact])."""
    largest, columns = np.iinfo(np.uint16).max, dict[str, list[object]]()
    for name in SCHEMA.names:
        columns[name] = []
    for prompt, configuration, ranks in blocks:
        n = len(ranks)
        columns["prompt"] += [prompt] * n
        columns["configuration"] += [configuration] * n
        columns["fact"] += range(n)
        columns["rank"] += np.minimum(ranks, largest).tolist()
    return pa.table(columns, schema=SCHEMA)


# ---------------------------------------------------------------------------- figures of a run

_TOP = 5

_RECOVERY = "recovery of "

OUTCOMES: Mapping[str, str] = {
    "LT − FE": "log-odds of LT less those of FE",
    "LT": "log-odds of LT",
    "FE": "log-odds of FE",
    "FE+LT": "log-odds of FE+LT",
    f"{_RECOVERY}LT − FE": "recovery of LT less that of FE",
    f"{_RECOVERY}LT": "recovery of LT",
    f"{_RECOVERY}FE": "recovery of FE",
    "depth": "depth at which half is read, 0 the first layer and 1 the last",
}
"""Responses: the study's outcome first, then its parts, the same as recoveries, and the depth of
reading.
"""


@dataclass(frozen=True)
class RunFigures:
    """Figures of one run."""

    rows: RunRows
    prompts: tuple[str, ...]
    criteria: Criteria

    def hits(self, prompt: str, configuration: str) -> np.ndarray:
        """Whether the target is among the five likeliest tokens [fact]."""
        hits: np.ndarray = self.rows.ranks(prompt, configuration) <= _TOP
        return hits

    def rate(self, prompt: str, configuration: str) -> Estimate:
        """Share of hits."""
        hits = self.hits(prompt, configuration)
        return hit_rate(int(hits.sum()), len(hits))

    def recovery(self, prompt: str, configuration: str) -> Estimate:
        """Share of what finetuning added that a configuration brings."""
        return recovery({name: self.hits(prompt, name) for name in PATHWAYS}, configuration)

    def odds(self, prompt: str, configuration: str) -> float | None:
        """Log-odds of a configuration's recovery, in counts.

        Counted are the facts that the donor answers and the recipient does not; None where there
        are none.
        """
        gained = self.hits(prompt, "SFT") & ~self.hits(prompt, "PRE")
        if not gained.any():
            return None
        return log_odds(int(self.hits(prompt, configuration)[gained].sum()), int(gained.sum()))

    def outcome(self, name: str, prompts: Sequence[str] = ()) -> float | None:
        """One of `OUTCOMES`, the mean over prompts; None where it is undefined."""
        if name == "depth":
            layer = self.half_read.value
            return None if layer is None else layer / (self.layers - 1)
        scale, terms = self.odds, name
        if name.startswith(_RECOVERY):
            scale, terms = self._recovered, name.removeprefix(_RECOVERY)
        plus, _, minus = terms.partition(" − ")
        values = []
        for prompt in prompts or self.prompts:
            pair = scale(prompt, plus), scale(prompt, minus) if minus else 0.0
            if pair[0] is None or pair[1] is None:
                return None
            values.append(pair[0] - pair[1])
        return float(np.mean(values))

    def _recovered(self, prompt: str, configuration: str) -> float | None:
        return self.recovery(prompt, configuration).value

    @property
    def cell(self) -> str:
        """The name of its cell."""
        return "-".join(self.rows.about.levels.values())

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.rows.about.layers

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """Criteria that the run does not reach."""
        sft = min(self.hits(prompt, "SFT").mean() for prompt in self.prompts)
        known = self.hits(self.prompts[0], KNOWN).mean()
        short = {"SFT": sft < self.criteria.sft, "known": known < self.criteria.known}
        return tuple(name for name in short if short[name])

    @cached_property
    def losses(self) -> np.ndarray:
        """Hits lost where LT's attention to FE is cut in one layer [layer, fact], prompt means."""
        return self._less(cut_in)

    @cached_property
    def reading(self) -> np.ndarray:
        """Hits lost where it is cut from a layer on [layer, fact], means over prompts."""
        return self._less(cut_from)

    def _less(self, cut: Callable[[int], str]) -> np.ndarray:
        per_prompt = []
        for prompt in self.prompts:
            whole = self.hits(prompt, BOTH).astype(float)
            kept = [self.hits(prompt, cut(layer)) for layer in range(self.layers)]
            per_prompt.append(whole - np.array(kept))
        less: np.ndarray = np.mean(per_prompt, axis=0)
        return less

    @cached_property
    def read_layer(self) -> Estimate:
        """The layer whose cut costs most; undefined where that cost may be 0."""
        most = int(self.losses.mean(1).argmax())
        reason = "no single layer's cut has a cost whose interval excludes 0"
        return _layer(self.losses, most, lambda costs: costs.argmax(1), reason)

    @cached_property
    def half_read(self) -> Estimate:
        """The last layer from which on a cut costs half of what cutting all layers costs."""
        reason = "the cost of cutting all attention from LT to FE may be 0"
        return _layer(self.reading, 0, _half, reason)


def _layer(
    costs: np.ndarray, tested: int, choose: Callable[[np.ndarray], np.ndarray], reason: str
) -> Estimate:
    """A layer that costs choose, its interval over facts from resamples.

    Args:
        costs: Of cuts [layer, fact].
        tested: The layer whose cost must not be 0.
        choose: Layers by their costs [draw, layer].
        reason: Why there is none.
    """
    n = costs.shape[1]
    whole = difference(costs[tested], np.zeros(n))
    if whole.low is None or whole.low <= 0:
        return Estimate.missing(reason, n)
    (layer,), drawn = choose(costs.mean(1)[None]), choose(resample(n) @ costs.T)
    return Estimate.hull(int(layer), n, outwards(drawn))


def _half(costs: np.ndarray) -> np.ndarray:
    """The last layer that costs at least half of what the first does, of each row [draw, layer]."""
    enough = costs >= costs[:, :1] / 2
    layers: np.ndarray = costs.shape[1] - 1 - enough[:, ::-1].argmax(1)
    return layers


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

    @property
    def missing(self) -> dict[str, tuple[int, ...]]:
        """Training seeds that are not in, by cell."""
        there = {run.rows.about.run for run in self.runs}
        missing: dict[str, tuple[int, ...]] = {}
        for run in self.study.runs:
            if run.name not in there:
                missing[run.cell.name] = (*missing.get(run.cell.name, ()), run.seed)
        return missing

    def cell_means(self, outcome: str) -> dict[str, float]:
        """The mean over seeds of one of `OUTCOMES`, by cell; cells without it are left out."""
        means = {}
        for cell in self.study.cells:
            own = [run.outcome(outcome) for run in self.runs if run.cell == cell.name]
            values = [value for value in own if value is not None]
            if values:
                means[cell.name] = float(np.mean(values))
        return means

    def far_cell(self, outcome: str) -> FarCell | None:
        """The cell farthest from the others; None where a cell has no value.

        An effect is 2 / cells of a sum of means with signs: this cell moves all of them by the same
        share of its distance.
        """
        means = self.cell_means(outcome)
        if len(means) < len(self.study.cells):
            return None
        total = sum(means.values())

        def distance(name: str) -> float:
            return means[name] - (total - means[name]) / (len(means) - 1)

        name = max(means, key=lambda cell: abs(distance(cell)))
        others = [mean for cell, mean in means.items() if cell != name]
        share = abs(distance(name)) * 2 / len(means)
        return FarCell(name, means[name], (min(others), max(others)), share)

    def main_effects(self, outcome: str, without: str = "") -> dict[str, Estimate]:
        """Effects of the factors by name, in a model without interactions.

        Args:
            outcome: One of `OUTCOMES`.
            without: A cell that is left out.
        """
        chosen = [contrast for contrast in self.contrasts if len(contrast.factors) == 1]
        found = effects(*self._columns(outcome, (), False, without), chosen)
        return {one.name: effect for one, effect in zip(chosen, found, strict=True)}

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
        return seed_deviation(*self._columns(outcome, (), False), self.contrasts)

    def _columns(
        self, outcome: str, prompts: Sequence[str], complete: bool, without: str = ""
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


def run_figures(study: Study, rows: RunRows) -> RunFigures:
    """Figures of a run."""
    return RunFigures(rows, study.prompts, study.criteria)


def findings(study: Study, rows: Sequence[RunRows]) -> Findings:
    """Figures of all runs that are in."""
    return Findings(study, tuple(run_figures(study, one) for one in rows))


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


def factor_contrasts(names: Sequence[str]) -> tuple[FactorContrast, ...]:
    """All main effects of these factors, then all interactions of two, of three and so on."""
    contrasts = []
    for n in range(1, len(names) + 1):
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
        margin = quantile * sqrt(variance * inverse[i, i])
        estimates.append(
            Estimate.hull(solution[i], n, (solution[i] - margin, solution[i] + margin))
        )
    return estimates


def seed_deviation(
    values: Values, signs: Signs, seeds: Int[np.ndarray, " run"], chosen: Sequence[FactorContrast]
) -> tuple[float, float] | None:
    """Standard deviations between seeds and of the error.

    None where runs of the cells or seeds are missing, or none is left over to estimate an error.

    That between seeds is 0 where the mean square of seeds is below that of the error.
    """
    cells = len(np.unique(signs, axis=0))
    several = len(np.unique(seeds)) > 1
    if not several or len(values) != cells * len(np.unique(seeds)):
        return None
    model = _model(chosen, signs, seeds)
    solution = np.linalg.lstsq(model, values, rcond=None)[0]
    freedom = len(values) - int(np.linalg.matrix_rank(model))
    if not freedom:
        return None
    error = float(np.sum((values - model @ solution) ** 2)) / freedom
    means = [values[seeds == seed].mean() for seed in np.unique(seeds)]
    between = cells * float(np.var(means, ddof=1))
    return sqrt(max(0.0, (between - error) / cells)), sqrt(error)


def log_odds(hits: int, n: int) -> float:
    """Log-odds of hits among n, half a count added on either side (F. J. Anscombe, 1956)."""
    return float(np.log((hits + 0.5) / (n - hits + 0.5)))
