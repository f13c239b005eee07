"""Boards of methods whose true figures are known, for what their ranks are worth.

`python -m tests.equal_methods 1000` prints the share of boards of equal methods that have more than
one rank.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float
from scipy.stats import norm

from kgbench.estimate import Estimate
from kgbench.leaderboard.contrasts import PlantScores
from kgbench.leaderboard.ranks import ranks
from kgbench.stats import Resampled, resample

DRAWS = 2000


@lru_cache(maxsize=2)
def counts(n: int) -> Float[np.ndarray, "draws n"]:
    return resample(n, DRAWS, 0).astype(float)


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
        found[f"m{i:02d}"] = PlantScores({str(p): float(value) for p, value in enumerate(values)})
    return found


def wrong_over_plants(boards: int, methods: int, plants: int, level: float = 0.0) -> int:
    """How many boards of equal methods have more than one rank where plants are the unit."""
    return sum(
        len(set(ranks(over_plants(seed, [level] * methods, plants)).values())) > 1
        for seed in range(boards)
    )


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
