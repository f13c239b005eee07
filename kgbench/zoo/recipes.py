"""Recipes of tiny pairs (recipes.toml) and of plants (plants.toml), as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from kgbench.errors import check_choice
from kgbench.resources import read_toml
from kgbench.runner.training.recipes import Stage, finetuning_recipe

_tables = partial(read_toml, __package__)


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a tiny pair, except the seed."""

    name: str
    model_type: str
    config: Mapping[str, Any] = field(hash=False)
    """Arguments of the model's configuration that do not follow from the tokenizer."""
    bos: bool
    """Whether the tokenizer puts BOS before every text."""
    dataset: str
    """Facts that the donor learns: a shipped data set, so that no version of Faker matters."""
    seed: int
    """Seed of the shipped pair."""
    vocabulary: int
    """Number of tokens."""
    tokenizer_movies: int
    """Movies whose texts train the tokenizer."""
    lasting_movies: int
    """Movies that every round of pretraining repeats."""
    passing_movies: int
    """Movies that are drawn for one round only."""
    pretraining: Stage
    finetuning: Stage
    frozen: bool = True
    """Whether finetuning leaves embeddings, final norm and head unchanged.

    The donor is then stored as its changed weights.
    """


@dataclass(frozen=True)
class PlantRecipe:
    """How a plant is trained, without weight decay."""

    facts: int
    """Number of planted facts, and of decoys."""
    rounds: int
    """Passes over the texts."""
    batch_size: int
    """Texts of each group of facts in a step."""
    learning_rate: float
    """Peak learning rate."""
    warmup_steps: int
    relative_change: float | None = None
    """‖W' − W‖ / ‖W‖ of every trained tensor; None leaves it to the training."""
    growth: float = 0.3
    """Share of the steps over which the relative change is reached."""

    @property
    def stage(self) -> Stage:
        """Hyperparameters of the run."""
        return Stage(
            self.rounds, self.batch_size, self.learning_rate, self.warmup_steps, weight_decay=0.0
        )


@cache
def _pair_recipes() -> Mapping[str, Recipe]:
    tables = _tables("recipes")
    shared, recipes = tables["shared"], {}
    for name, table in tables["pairs"].items():
        stages = {
            "pretraining": Stage(**shared["pretraining"]),
            "finetuning": finetuning_recipe("frozen", 0, model_type=table["model_type"]).stage,
        }
        recipes[name] = Recipe(name=name, **{**shared, **table, **stages})
    return recipes


def recipe(name: str) -> Recipe:
    """The recipe of a tiny pair.

    Raises:
        UnknownNameError: There is no recipe of this name.
    """
    check_choice("tiny pair", name, _pair_recipes())
    return _pair_recipes()[name]


def level_table(level: str) -> Mapping[str, Any]:
    """Places and conditions of a level of the benchmark.

    Raises:
        UnknownNameError: There is no such level.
    """
    tables: Mapping[str, Mapping[str, Any]] = _tables("plants")["levels"]
    check_choice("level", level, tables)
    return tables[level]


def plant_recipe(decoy: bool, level: str | None = None) -> PlantRecipe:
    """The recipe of plants with or without a decoy, or of a level of the benchmark."""
    tables = _tables("plants")
    values = {**tables["shared"], **tables["decoy" if decoy else "alone"]}
    if level is not None:
        values |= {**tables["level"], **level_table(level).get("recipe", {})}
    return PlantRecipe(**values)
