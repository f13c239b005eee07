"""Recipes of finetuning (finetuning.toml), as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from kgbench.errors import InputError, check_choice
from kgbench.resources import read_toml

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
    stored: str | None = None
    """Type in which an adapter is stored, and scored; None for that of its training."""

    def to_json(self) -> dict[str, Any]:
        """The recipe as a card holds it; `frozen` and `stored` only where they are set."""
        content = asdict(self)
        for name in ("frozen", "stored"):
            if not content[name]:
                del content[name]
        return content

    @property
    def stage(self) -> Stage:
        """Hyperparameters of the run."""
        return Stage(
            self.epochs, self.batch_size, self.learning_rate, self.warmup_steps, self.weight_decay
        )


def finetuning_recipe_names() -> tuple[str, ...]:
    """Names of the finetuning recipes."""
    return tuple(_tables("finetuning")["recipes"])


def least_steps() -> int:
    """Steps of a training for which no epochs are chosen, at least."""
    return int(_tables("finetuning")["least_steps"])


def finetuning_recipe(
    name: str, parameters: int, changes: Mapping[str, Any] | None = None, model_type: str = ""
) -> FinetuningRecipe:
    """The finetuning recipe for a recipient of some size.

    Args:
        name: Name of the recipe.
        parameters: Number of the recipient's weights.
        changes: Values by field that replace the recipe's.
        model_type: The recipient's, as in its configuration, such as `gpt2`.

    Raises:
        UnknownNameError: There is no such recipe or field.
        InputError: A changed value cannot be used.
    """
    tables = _tables("finetuning")
    check_choice("recipe", name, finetuning_recipe_names())
    size = next((each for each in ("tiny", "small") if parameters < tables[f"{each}_below"]), "")
    shared, recipe = tables["shared"], tables["recipes"][name]
    by_type = recipe.get("tiny_types", {}) if size == "tiny" else {}
    values: dict[str, Any] = {}
    for layer in (shared, recipe, shared.get(size), recipe.get(size), by_type.get(model_type)):
        values |= layer or {}
    values |= changes or {}
    names = {each.name for each in fields(FinetuningRecipe)}
    for key in changes or {}:
        check_choice("field of a recipe", key, names)
    for key in _POSITIVE:
        if not values[key] > 0:
            raise InputError(f"{key} {values[key]}: expected a number above 0")
    values |= {"name": name, "tiny": size == "tiny"}
    return FinetuningRecipe(**{key: values[key] for key in names & values.keys()})
