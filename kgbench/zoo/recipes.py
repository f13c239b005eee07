"""Recipes of tiny pairs (recipes.toml), as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from kgbench.errors import check_choice
from kgbench.resources import read_toml
from kgbench.runner.training.recipes import Stage, finetuning_recipe


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


@cache
def _pair_recipes() -> Mapping[str, Recipe]:
    tables = read_toml(__package__, "recipes")
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
