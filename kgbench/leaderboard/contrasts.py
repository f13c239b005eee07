"""What methods are compared by: shares of the donor's gain over facts, and scores over plants.

All methods share one resample of the facts of a cell, and one of the plants, so that their
differences are paired. A plant with its seed is the unit where methods are scored on plants, since
sites of one plant are no sample of anything.

Levels are fixed by design, and seeds are sampled. So a mean over plants is the mean over levels,
which weigh the same, of the mean over seeds; its interval and the resample are stratified by level.
That needs two seeds of every level. Until then the level is the unit, by the mean of its seeds,
and intervals treat levels as a sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.leaderboard.hits import PromptHits
from kgbench.sites import BASELINES
from kgbench.stats import (
    Parts,
    Resampled,
    apart,
    mean_of,
    resample,
    resampled_ratios,
    resampled_strata,
    stratified_mean,
)
from kgbench.stats.ratios import no_gain

__all__ = [
    "Contrast",
    "Means",
    "Plant",
    "PlantScores",
    "contrast",
    "mean_over_plants",
    "on_plant",
]

Array = NDArray[Any]

DRAWS = 2000


@lru_cache(maxsize=4)
def _counts(n: int, seed: int) -> Array:
    """A resample of n facts [draws, n], the same for every method."""
    return resample(n, DRAWS, seed)


@dataclass(frozen=True, eq=False)
class Contrast:
    """A method's figure on a cell: a weighted sum of configurations over the donor's gain."""

    facts: tuple[str, ...]
    """Ids of the facts."""
    numerator: Array
    """The weighted sum, of each fact [n]; integers where the weights are."""
    denominator: Array
    """The donor's gain, of each fact [n]."""
    anchors: tuple[int, ...] = (0, 1)
    """Ratios that facts can take exactly."""

    @property
    def parts(self) -> Parts:
        """Numerator and denominator."""
        return self.numerator, self.denominator

    @cached_property
    def resampled(self) -> Resampled:
        """The ratio under the resample of its facts."""
        counts = _counts(len(self.facts), crc32("\n".join(self.facts).encode()))
        return resampled_ratios([self.parts], counts, self.anchors)[0]

    def minus(self, other: Contrast) -> Resampled:
        """The paired difference; both are of the same facts."""
        return apart((other.parts, other.resampled), (self.parts, self.resampled), self.anchors)


def contrast(
    prompt: PromptHits, weights: Mapping[str, float], anchors: tuple[int, ...] = (0, 1)
) -> Contrast | str:
    """Share of the donor's gain that a weighted sum of configurations has, or why there is none.

    Args:
        prompt: One prompt's hits.
        weights: Of each configuration; whole numbers where the sum is of hits.
        anchors: Ratios that facts can take exactly.
    """
    hits = prompt.hits
    if missing := [graft for graft in (*BASELINES, *weights) if graft not in hits]:
        return f"{' and '.join(dict.fromkeys(missing))} was not run"
    if (undefined := no_gain(hits)) is not None:
        return undefined.undefined or ""
    whole = all(weight == int(weight) for weight in weights.values())
    kind: type = np.int64 if whole else np.float64
    parts = [kind(weight) * hits[graft].astype(kind) for graft, weight in weights.items()]
    total = np.sum(parts, axis=0)
    if not whole:
        # Rounded, so that facts tie exactly where nothing but the order of the sum differs.
        total = np.round(total, 12)
    return Contrast(prompt.facts, total, hits["SFT"].astype(kind) - hits["PRE"], anchors)


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of a figure over cells, of one method."""

    cells: Mapping[Any, Contrast]
    """By cell."""

    @property
    def n(self) -> int:
        """Number of facts behind it, each counted once."""
        facts: set[str] = set()
        return len(facts.union(*(own.facts for own in self.cells.values())))

    @cached_property
    def figure(self) -> Estimate:
        """The mean with its interval."""
        return mean_of([own.resampled for own in self.cells.values()], self.n).figure()

    def minus(self, other: Means) -> Resampled:
        """Its paired difference from another method on the same cells."""
        return mean_of([own.minus(other.cells[cell]) for cell, own in self.cells.items()], self.n)


Plant = tuple[str, str]
"""A level, and a plant of it: all seeds of a level share its name."""


@dataclass(frozen=True, eq=False)
class PlantScores:
    """A method's score on each of some plants; higher is better."""

    values: Mapping[Plant, float]
    """By plant."""
    support: tuple[float, float] = (0.0, 1.0)
    """Bounds of a score."""

    @cached_property
    def figure(self) -> Estimate:
        """The mean with its interval; of one plant the value alone."""
        return _mean(self.values, self.support)

    def minus(self, other: PlantScores) -> Resampled:
        """Its paired difference from another method on the same plants.

        Raises:
            DataError: The two are not of the same plants.
        """
        if set(self.values) != set(other.values):
            raise DataError("two methods have figures of other plants, and cannot be compared")
        gaps = {plant: own - other.values[plant] for plant, own in self.values.items()}
        return resampled_strata(_strata(gaps), DRAWS)


def _strata(values: Mapping[Plant, float]) -> list[Array]:
    """Values by level, or the means of levels as one stratum where a level has one seed."""
    levels: dict[str, list[float]] = {}
    for (level, _), value in sorted(values.items()):
        levels.setdefault(level, []).append(value)
    if len(levels) > 1 and min(map(len, levels.values())) < 2:
        return [np.array([float(np.mean(own)) for own in levels.values()])]
    return [np.array(own) for own in levels.values()]


def _mean(values: Mapping[Plant, float], support: tuple[float, float]) -> Estimate:
    if len(values) == 1:
        return on_plant(next(iter(values.values())))
    return stratified_mean(_strata(values), support)


def on_plant(value: float, n: int = 1) -> Estimate:
    """A figure on one plant, which has no interval."""
    return Estimate.alone(value, n, "one plant")


def mean_over_plants(
    figures: Mapping[Plant, Estimate], support: tuple[float, float] = (0.0, 1.0)
) -> Estimate:
    """The mean over levels of the mean over seeds, as of `PlantScores`.

    It is undefined where the figure of a plant is; of one plant it is the figure.

    Args:
        figures: By plant.
        support: Bounds of a figure.
    """
    if not figures:
        return Estimate.missing("no plant has such a figure")
    if len(figures) == 1:
        return next(iter(figures.values()))
    values = {}
    for plant, figure in figures.items():
        if figure.value is None:
            return Estimate.missing(f"{figure.undefined} (on {plant[1]})")
        values[plant] = figure.value
    return _mean(values, support).rounded()
