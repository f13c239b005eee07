"""Recipes as data: tiny pairs (recipes.toml), donors (finetuning.toml) and plants (plants.toml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache, partial
from typing import Any

from kgbench.errors import InputError, check_choice
from kgbench.resources import read_toml

_AS_PAIRS = "as_pairs"
"""Key of a finetuning recipe that takes the schedule of the tiny pair of the same model type."""
_tables = partial(read_toml, __package__)
_POSITIVE = ("epochs", "batch_size", "learning_rate", "max_length")


@dataclass(frozen=True)
class Stage:
    """Hyperparameters of one training run.

    AdamW; the learning rate rises linearly over the warm-up and then falls linearly to zero.
    """

    rounds: int
    """Passes over the texts."""
    batch_size: int
    """Texts per step."""
    learning_rate: float
    """Peak learning rate."""
    warmup_steps: int
    weight_decay: float


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
class FinetuningRecipe:
    """How `kgbench train` finetunes a donor."""

    name: str
    tiny: bool
    """Whether the values for tiny recipients apply."""
    epochs: int
    """Passes over the texts."""
    batch_size: int
    """Texts per step."""
    learning_rate: float
    """Peak learning rate."""
    warmup_steps: int
    weight_decay: float
    adam_beta2: float
    max_length: int
    """Maximum tokens of a text, including EOS."""
    supplement_texts: int
    """Number of supplemental texts, about anything but the facts."""
    rank: int | None = None
    """Rank of a low-rank adapter; None trains all weights."""
    alpha: int | None = None
    """Scale of the adapter, in units of 1 / rank."""
    frozen: bool = False
    """Whether embeddings, final norm and head stay fixed, so that facts go into the layers."""

    def to_json(self) -> dict[str, Any]:
        """The recipe as a card holds it; `frozen` only where it is set."""
        content = asdict(self)
        if not self.frozen:
            del content["frozen"]
        return content

    @property
    def stage(self) -> Stage:
        """Hyperparameters of the run."""
        return Stage(
            self.epochs, self.batch_size, self.learning_rate, self.warmup_steps, self.weight_decay
        )


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
        stages = {}
        for part in ("pretraining", "finetuning"):
            stages[part] = Stage(**{**shared[part], **table.get(part, {})})
        recipes[name] = Recipe(name=name, **{**shared, **table, **stages})
    return recipes


def recipe(name: str) -> Recipe:
    """The recipe of a tiny pair.

    Raises:
        UnknownNameError: There is no recipe of this name.
    """
    check_choice("tiny pair", name, _pair_recipes())
    return _pair_recipes()[name]


def finetuning_stage(model_type: str) -> Stage:
    """Finetuning of the tiny pair of a model type; the shared values where there is no such pair.

    Args:
        model_type: As in the model's configuration, such as `gpt2`.
    """
    for candidate in _pair_recipes().values():
        if candidate.model_type == model_type:
            return candidate.finetuning
    return Stage(**_tables("recipes")["shared"]["finetuning"])


def finetuning_recipe_names() -> tuple[str, ...]:
    """Names of the finetuning recipes."""
    return tuple(_tables("finetuning")["recipes"])


def finetuning_recipe(
    name: str, parameters: int, changes: Mapping[str, Any] | None = None, model_type: str = ""
) -> FinetuningRecipe:
    """The finetuning recipe for a recipient of some size.

    Args:
        name: Name of the recipe.
        parameters: Number of the recipient's weights.
        changes: Values by field that replace the recipe's.
        model_type: The recipient's, as in its configuration; by some recipes, a tiny
            recipient is finetuned like the tiny pair of its type.

    Raises:
        UnknownNameError: There is no such recipe or field.
        InputError: A changed value cannot be used.
    """
    tables = _tables("finetuning")
    check_choice("recipe", name, finetuning_recipe_names())
    tiny = parameters < tables["tiny_below"]
    layers = [tables["shared"], tables["recipes"][name]]
    if tiny:
        layers += [tables["shared"]["tiny"], tables["recipes"][name]["tiny"]]
    values: dict[str, Any] = {}
    for layer in layers:
        values |= layer
    del values["tiny"]
    if values.pop(_AS_PAIRS, False):
        stage = asdict(finetuning_stage(model_type))
        values |= {"epochs": stage.pop("rounds"), **stage}
    values |= changes or {}
    known = {each.name for each in fields(FinetuningRecipe)}
    for key, value in values.items():
        check_choice("field of a recipe", key, known)
        if key in _POSITIVE and not value > 0:
            raise InputError(f"{key} {value}: expected a number above 0")
    return FinetuningRecipe(name=name, tiny=tiny, **values)


def levels() -> Mapping[str, str]:
    """One line on each level of the benchmark of plants, by name."""
    return {name: table["about"] for name, table in _tables("plants")["levels"].items()}


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
