"""Boards of methods whose true figures are known, for what their ranks are worth.

`python -m tests.equal_methods 1000` prints the share of boards of equal methods that have more than
one rank.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.stats import norm

from kgbench.estimate import Estimate
from kgbench.leaderboard.boards.planted import ALL_TOKENS, PlantScores, group_of
from kgbench.leaderboard.entries import ENTRIES, read_entries
from kgbench.leaderboard.ranks import Comparable, better
from kgbench.models import catalog
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


BLOCKS = 16
"""Among which one is planted."""

PLACES = tuple(
    Counter(
        catalog.entry(name).level for name in catalog.plants() if group_of(name) is ALL_TOKENS
    ).values()
)
"""Plants of each level over which the planted board has its first mean."""


def over_places(
    seed: int, precisions: Sequence[float], places: Sequence[int] = PLACES
) -> dict[str, PlantScores]:
    """Methods of these true average precisions, in expectation over places.

    At each level a method has its own chance to rank the planted block first, often near 0 or 1, and
    ranks it anywhere below otherwise. Places are as hard for one method as for another in part.

    Args:
        seed: Of the board.
        precisions: True mean of each method.
        places: Number of plants of each level.
    """
    random = np.random.default_rng(seed)
    level_of = np.repeat(np.arange(len(places)), places)
    hard, made = random.normal(size=len(level_of)), {}
    below = float(np.mean(1 / np.arange(2, BLOCKS + 1)))
    for i, precision in enumerate(precisions):
        chances = _with_mean((precision - below) / (1 - below), random, len(places))
        latent = np.sqrt(0.5) * hard + np.sqrt(0.5) * random.normal(size=hard.shape)
        first = latent < norm.ppf(chances)[level_of]
        values = np.where(first, 1.0, 1 / random.integers(2, BLOCKS + 1, hard.shape))
        scores = {}
        for place, (level, value) in enumerate(zip(level_of, values, strict=True)):
            scores[str(level), str(place)] = float(value)
        made[f"m{i:02d}"] = PlantScores(scores)
    return made


def _with_mean(mean: float, random: np.random.Generator, n: int) -> Float[np.ndarray, " n"]:
    """Probabilities, some near 0 and some near 1, of this mean."""
    drawn = 2 * random.normal(size=n)
    shift = brentq(lambda x: float(norm.cdf(drawn + x).mean()) - mean, -20, 20)
    return norm.cdf(drawn + shift)


def at_one_level(seed: int, methods: int, seeds: Sequence[int]) -> dict[str, PlantScores]:
    """Equal methods whose scores vary at one level, and hardly at the others."""
    random = np.random.default_rng(seed)
    made = {}
    for i in range(methods):
        scores = {}
        for level, n in enumerate(seeds):
            for k, value in enumerate(0.5 + (0.004 if level else 0.1) * random.normal(size=n)):
                scores[str(level), f"{level}-{k}"] = float(value)
        made[f"m{i:02d}"] = PlantScores(scores)
    return made


def wrong_over_plants(boards: int, methods: int, plants: int, level: float = 0.0) -> int:
    """How many boards of equal methods have more than one rank where plants are the unit."""
    return sum(
        len(set(ranks(over_plants(seed, [level] * methods, plants)).values())) > 1
        for seed in range(boards)
    )


def as_on_the_board(
    seed: int, scores: Mapping[str, Sequence[float]], methods: int, more: float = 0.0
) -> dict[str, PlantScores]:
    """Equal methods, whose scores on the plants of a level are drawn from those of a real method.

    Args:
        seed: Of the board.
        scores: By level, the average precisions of the real method.
        methods: Number of methods.
        more: How much better the first is: as many of its scores below 1 are made 1.
    """
    random, made = np.random.default_rng(seed), {}
    lacks = 1 - float(np.mean([np.mean(own) for own in scores.values()]))
    for i in range(methods):
        values = {}
        for level, own in scores.items():
            drawn = random.choice(np.array(own), len(own))
            raised = random.random(len(own)) < (more / lacks if i == 0 and lacks else 0.0)
            for place, value in enumerate(np.where(raised, 1.0, drawn)):
                values[level, f"{level}-{place}"] = float(value)
        made[f"m{i:02d}"] = PlantScores(values)
    return made


def split(boards: int, methods: int, precision: float = 0.5, first: int = 0) -> int:
    """How many planted boards of equal methods have more than one rank."""
    count = 0
    for seed in range(first, first + boards):
        count += len(set(ranks(over_places(seed, [precision] * methods)).values())) > 1
    return count


def told(boards: Sequence[Mapping[str, PlantScores]]) -> float:
    """Share of pairs in which the first method, which is better, is significantly better."""
    pairs = [("m00" in above) for made in boards for above in better(made).values()]
    methods = len(boards[0])
    return sum(pairs) / len(boards) / (methods - 1)


def held(boards: int, precision: float) -> float:
    """Share of planted boards on which a method's interval holds its true mean."""
    count = 0
    for seed in range(boards):
        figure = over_places(seed, [precision])["m00"].figure
        assert figure.low is not None
        assert figure.high is not None
        count += figure.low <= precision <= figure.high
    return count / boards


def board_scores() -> dict[str, dict[str, list[float]]]:
    """By method of the board and level, average precision on the plants."""
    scores: dict[str, dict[str, list[float]]] = {}
    for entry in read_entries(Path(__file__).parent.parent / ENTRIES):
        planted = entry.record.planted
        if planted is None or planted.average_precision.value is None:
            continue
        if group_of(entry.pair) is not ALL_TOKENS:
            continue
        level = catalog.entry(entry.pair).level
        by_level = scores.setdefault(entry.method, {})
        by_level.setdefault(str(level), []).append(planted.average_precision.value)
    return scores


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
        share = split(many, methods) / many
        print(f"{methods} methods, {sum(PLACES)} plants of {len(PLACES)} levels: {share:.3f}")
        for more in (0.1, 0.2, 0.3):
            levels = [0.5 + more, *[0.5] * (methods - 1)]
            share = told([over_places(seed, levels) for seed in range(many // 5)])
            print(f"  {more} better: told {share:.2f}", flush=True)
    for name, scores in board_scores().items():
        equal = [as_on_the_board(seed, scores, 12) for seed in range(many)]
        share = sum(len(set(ranks(made).values())) > 1 for made in equal) / many
        line = f"12 methods like {name}: {share:.3f} of boards"
        lacks = 1 - np.mean([np.mean(own) for own in scores.values()])
        for more, times in ((0.1, 1), (0.2, 1), (0.1, 4), (0.1, 8)):
            if more < lacks:
                larger = {level: list(own) * times for level, own in scores.items()}
                boards = range(many // 10)
                found = told([as_on_the_board(seed, larger, 12, more) for seed in boards])
                line += f"; {more} better, {times} x as many plants: told {found:.2f}"
        print(line, flush=True)
    for precision in (0.2, 0.5, 0.8, 0.95):
        print(f"mean {precision}: the interval holds it on {held(many, precision):.3f} of boards")
