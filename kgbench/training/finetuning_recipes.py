"""Recipes of `kgbench train`, as data: finetuning.toml, and what a user changes in them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from kgbench.errors import InputError, UnknownNameError
from kgbench.training.recipes import Stage, finetuning_stage

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FinetuningRecipe", "finetuning_recipe", "finetuning_recipe_names"]


_AS_PAIRS = "as_pairs"


@dataclass(frozen=True)
class FinetuningRecipe:
    """How a donor is finetuned; see finetuning.toml."""

    name: str
    tiny: bool
    """Whether the values for tiny recipients were taken."""
    epochs: int
    """Passes over the texts."""
    batch_size: int
    """Texts per step."""
    learning_rate: float
    """Its peak."""
    warmup_steps: int
    weight_decay: float
    adam_beta2: float
    max_length: int
    """Most tokens of a text, EOS counted."""
    supplement_texts: int
    """Texts about anything else."""
    rank: int | None = None
    """Of a low-rank adapter; None trains all weights."""
    alpha: int | None = None
    """Scale of the adapter, in units of 1 / rank."""
    frozen: bool = False
    """Whether embeddings, final norm and head stay as they are, so that facts go into the layers."""

    def to_json(self) -> dict[str, Any]:
        """What a card says of the recipe; `frozen` only where it is."""
        return {key: value for key, value in asdict(self).items() if key != "frozen" or value}

    @property
    def stage(self) -> Stage:
        """The training run."""
        return Stage(
            self.epochs, self.batch_size, self.learning_rate, self.warmup_steps, self.weight_decay
        )


@cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parent / "finetuning.toml").read_text(encoding="utf-8"))


def finetuning_recipe_names() -> tuple[str, ...]:
    """Names of the recipes."""
    return tuple(_tables()["recipes"])


def finetuning_recipe(
    name: str, parameters: int, changes: Mapping[str, Any] | None = None, model_type: str = ""
) -> FinetuningRecipe:
    """A recipe for a recipient of some size.

    Args:
        name: Its name.
        parameters: Number of the recipient's weights.
        changes: Values by field, in place of the recipe's.
        model_type: The recipient's, as in its configuration; a tiny one is finetuned as the tiny
            pair of its type where the recipe says so.

    Raises:
        UnknownNameError: There is no such recipe.
        InputError: A changed value cannot be used.
    """
    if name not in finetuning_recipe_names():
        raise UnknownNameError("recipe", name, finetuning_recipe_names())
    shared, own = _tables()["shared"], _tables()["recipes"][name]
    tiny = parameters < _tables()["tiny_below"]
    values = {**shared, **own, **({**shared["tiny"], **own["tiny"]} if tiny else {})}
    del values["tiny"]
    if values.pop(_AS_PAIRS, False):
        values.update(_of_stage(finetuning_stage(model_type)))
    values.update(changes or {})
    _check(values)
    return FinetuningRecipe(name=name, tiny=tiny, **values)


def _of_stage(stage: Stage) -> dict[str, Any]:
    return {"epochs" if name == "rounds" else name: value for name, value in asdict(stage).items()}


def _check(values: Mapping[str, Any]) -> None:
    known = {field.name for field in fields(FinetuningRecipe)}
    for key, value in values.items():
        if key not in known:
            raise UnknownNameError("field of a recipe", key, known)
        if key in ("epochs", "batch_size", "learning_rate", "max_length") and not value > 0:
            raise InputError(f"{key} {value}: expected a number above 0")
