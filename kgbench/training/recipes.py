"""Recipes of the tiny pairs, as data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kgbench.errors import UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Recipe", "Stage", "finetuning_stage", "recipe", "recipe_names"]


@dataclass(frozen=True)
class Stage:
    """One training run: AdamW, the learning rate rising over the warm-up, then falling to zero in a straight line."""

    rounds: int
    """Passes over the texts."""
    batch_size: int
    """Texts per step."""
    learning_rate: float
    """Its peak."""
    warmup_steps: int
    weight_decay: float


@dataclass(frozen=True)
class Recipe:
    """All that makes a pair, but the seed."""

    name: str
    model_type: str
    config: Mapping[str, Any] = field(hash=False)
    """Arguments of the model's configuration, but those that follow from the tokenizer."""
    bos: bool
    """Whether the tokenizer puts BOS before every text."""
    dataset: str
    """The facts that the donor learns: a shipped data set, the same for every seed and every version of Faker."""
    seed: int
    """Of the pair that is shipped."""
    vocabulary: int
    """Number of tokens."""
    tokenizer_movies: int
    """Movies in whose texts the tokenizer is trained."""
    lasting_movies: int
    """Movies that every round of pretraining tells."""
    passing_movies: int
    """Movies that are drawn for one round."""
    pretraining: Stage
    finetuning: Stage
    frozen: bool = True
    """Whether finetuning leaves embeddings, final norm and head as they are; the donor is stored as its changed weights then."""

    def to_json(self) -> dict[str, Any]:
        """The recipe on a card."""
        return asdict(self)


@cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parent / "recipes.toml").read_text(encoding="utf-8"))


@cache
def _recipes() -> Mapping[str, Recipe]:
    tables = _tables()
    return {name: _read(name, tables["shared"], own) for name, own in tables["pairs"].items()}


def _read(name: str, shared: Mapping[str, Any], own: Mapping[str, Any]) -> Recipe:
    stages = {
        part: Stage(**{**shared[part], **own.get(part, {})})
        for part in ("pretraining", "finetuning")
    }
    return Recipe(name=name, **{**shared, **own, **stages})


def finetuning_stage(model_type: str) -> Stage:
    """How the donor of the tiny pair of a model type is finetuned; without such a pair, as all are.

    Args:
        model_type: As in the model's configuration, such as `gpt2`.
    """
    own = [one.finetuning for one in _recipes().values() if one.model_type == model_type]
    return own[0] if own else Stage(**_tables()["shared"]["finetuning"])


def recipe_names() -> tuple[str, ...]:
    """Names of the pairs that can be made."""
    return tuple(_recipes())


def recipe(name: str) -> Recipe:
    """The recipe of a pair.

    Raises:
        UnknownNameError: There is none of this name.
    """
    if name not in _recipes():
        raise UnknownNameError("tiny pair", name, recipe_names())
    return _recipes()[name]
