"""Boards of methods whose true figures are known, for what their ranks are worth.

`python -m tests.equal_methods 1000` prints the share of boards of equal methods that have more than
one rank.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from kgbench.estimate import Estimate
from kgbench.leaderboard.boards.planted import PlantScores
from kgbench.leaderboard.ranks import Comparable, better
from kgbench.stats import Resampled, resample

DRAWS = 2000


def ranks(methods: Mapping[str, Comparable]) -> dict[str, int]:
    """The rank of each method: 1 + the number of better methods."""
    return {name: 1 + len(above) for name, above in better(methods).items()}


@lru_cache(maxsize=2)
def counts(n: int) -> Float[np.ndarray, "draws n"]:
    return resample(n, DRAWS, 0)


@dataclass(frozen=True, eq=False)
class Scored:
    """A method by its score of each fact [n], the mean over cells."""

    scores: Float[np.ndarray, " n"]

    @property
    def figure(self) -> Estimate:
        value = float(self.scores.mean())
        return Estimate(value, value - 1, value + 1, len(self.scores))

    def minus(self, other: Scored) -> Resampled:
        apart = self.scores - other.scores
        value = float(apart.mean())
        return Resampled(value, counts(len(apart)) @ apart / len(apart), (value, value), len(apart))


def board(
    seed: int, rates: Sequence[float], facts: int = 150, cells: int = 8, budgets: int = 8
) -> dict[str, Scored]:
    """Methods of these hit rates on the same facts, each of its own difficulty, which all methods
    and cells share in part.

    Args:
        seed: Of the board.
        rates: True hit rate of each method, in every cell and at every budget.
        facts: Number of facts.
        cells: Pairs and prompts.
        budgets: Configurations whose hits a figure averages; 1 for a hit rate.
    """
    rng = np.random.default_rng(seed)
    known = rng.normal(size=(facts, 1, 1))
    asked = 0.7 * known + np.sqrt(0.51) * rng.normal(size=(facts, cells, 1))
    found = {}
    for i, rate in enumerate(rates):
        own = np.sqrt(0.5) * asked + np.sqrt(0.5) * rng.normal(size=(facts, cells, 1))
        levels = norm.ppf(rate) + np.linspace(-1, 1, budgets) * (budgets > 1)
        found[f"m{i:02d}"] = Scored((own < levels).mean(axis=(1, 2)))
    return found


def wrong(boards: int, methods: int, first: int = 0, **how: int) -> int:
    """How many boards of equal methods have more than one rank."""
    return sum(
        len(set(ranks(board(seed, [0.5] * methods, **how)).values())) > 1
        for seed in range(first, first + boards)
    )


def over_plants(seed: int, levels: Sequence[float], plants: int) -> dict[str, PlantScores]:
    """Methods of these true levels on the same plants, each of its own difficulty; scores lie
    between 0 and 1, and some at the ends.

    Args:
        seed: Of the board.
        levels: Of each method, in standard deviations; 0 is a median score of .75.
        plants: Number of plants.
    """
    rng = np.random.default_rng(seed)
    hard = rng.normal(size=plants)
    found = {}
    for i, level in enumerate(levels):
        latent = level + np.sqrt(0.5) * hard + np.sqrt(0.5) * rng.normal(size=plants)
        values = np.minimum(1.0, 0.75 + 0.25 * latent).clip(0)
        scores = {(str(p), str(p)): float(value) for p, value in enumerate(values)}
        found[f"m{i:02d}"] = PlantScores(scores)
    return found


def over_levels(
    seed: int, methods: Sequence[float], seeds: Sequence[int], apart: float = 0.1
) -> dict[str, PlantScores]:
    """Methods of these true means over levels, each of its own strengths at some levels and
    weaknesses at others, and of its own variance at each.

    Args:
        seed: Of the board.
        methods: True mean of each.
        seeds: Number of seeds of each level.
        apart: Standard deviation of what a method is better or worse at a level.
    """
    rng = np.random.default_rng(seed)
    found = {}
    for i, mean in enumerate(methods):
        strengths = apart * rng.normal(size=len(seeds))
        strengths += mean - strengths.mean()
        spread = 0.05 * np.exp(0.8 * rng.normal(size=len(seeds)))
        scores = {}
        for level, n in enumerate(seeds):
            values = strengths[level] + spread[level] * rng.normal(size=n)
            for k, value in enumerate(values):
                scores[str(level), f"{level}-seed{k}"] = float(value)
        found[f"m{i:02d}"] = PlantScores(scores)
    return found


def at_one_level(seed: int, methods: int, seeds: Sequence[int]) -> dict[str, PlantScores]:
    """Equal methods whose scores vary at one level, and hardly at the others."""
    rng = np.random.default_rng(seed)
    found = {}
    for i in range(methods):
        scores = {}
        for level, n in enumerate(seeds):
            for k, value in enumerate(0.5 + (0.004 if level else 0.1) * rng.normal(size=n)):
                scores[str(level), f"{level}-seed{k}"] = float(value)
        found[f"m{i:02d}"] = PlantScores(scores)
    return found


def wrong_over_plants(boards: int, methods: int, plants: int, level: float = 0.0) -> int:
    """How many boards of equal methods have more than one rank where plants are the unit."""
    return sum(
        len(set(ranks(over_plants(seed, [level] * methods, plants)).values())) > 1
        for seed in range(boards)
    )


def wrong_over_levels(
    boards: int, methods: int, seeds: Sequence[int], one: bool = False, first: int = 0
) -> int:
    """How many boards of equal methods have more than one rank where seeds are sampled.

    Args:
        boards: How many boards.
        methods: How many methods.
        seeds: Number of seeds of each level.
        one: Whether scores vary at one level alone.
        first: Seed of the first board.
    """
    count = 0
    for seed in range(first, first + boards):
        equal = [0.5] * methods
        made = at_one_level(seed, methods, seeds) if one else over_levels(seed, equal, seeds)
        count += len(set(ranks(made).values())) > 1
    return count


SEEDS = ((5,) * 4, (5, 5, 5, 4), (5, 5, 3, 2), (3,) * 4, (2,) * 4, (5,), (5,) * 8)
"""Numbers of seeds of each level."""


if __name__ == "__main__":
    many = int(sys.argv[1])
    for methods in (3, 6, 12, 20):
        for cells, budgets in ((8, 8), (8, 1), (1, 1)):
            found = wrong(many, methods, cells=cells, budgets=budgets)
            print(
                f"{methods} methods, {cells} cells, {budgets} budgets: {found} of {many} boards"
                f" ({found / many:.3f})",
                flush=True,
            )
        for plants in (4, 8, 12, 40):
            found = wrong_over_plants(many, methods, plants)
            print(
                f"{methods} methods, {plants} plants: {found} of {many} boards"
                f" ({found / many:.3f})",
                flush=True,
            )
        for seeds in SEEDS:
            for one in (False, True):
                found = wrong_over_levels(many, methods, seeds, one)
                where = "one level varies" if one else "all levels vary"
                print(
                    f"{methods} methods, {seeds} seeds of levels, {where}: {found} of {many}"
                    f" boards ({found / many:.3f})",
                    flush=True,
                )
