"""What is finetuned into which recipient: read and checked before anything heavy is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kgbench.data import Dataset, ImportOptions, load_dataset
from kgbench.errors import InputError, UnknownNameError
from kgbench.models import catalog
from kgbench.training.finetuning_models import needs_peft
from kgbench.training.finetuning_recipes import (
    FinetuningRecipe,
    finetuning_recipe,
    finetuning_recipe_names,
)
from kgbench.training.finetuning_supplement import Supplement, read_supplement
from kgbench.training.finetuning_texts import Wordings

__all__ = ["FinetuneSpec", "Plan", "make_plan"]

_LARGE = 10**9
"""Parameters of a recipient whose size is not known yet; what can be wrong with a recipe does not depend on it."""


@dataclass(frozen=True)
class FinetuneSpec:
    """Which donor: all that is chosen but where it goes and on which device it is trained."""

    dataset: str
    """A data set by name, or a file."""
    recipe: str
    model: str | None = None
    """A pair of the catalog, whose recipient is finetuned; otherwise `recipient` is given."""
    recipient: str | None = None
    """A checkpoint, a Hub id or a trained donor."""
    direction: str = "both"
    """Which of subject (a) and object (b) comes first in the texts: "both", "a2b" or "b2a"."""
    split: str | None = None
    """Half of the data set: "task" or "relation"."""
    templates: tuple[str, ...] = ()
    """Training wordings in place of the data set's own."""
    imports: ImportOptions | None = None
    """What to make of the columns of a file."""
    supplement: str | None = None
    """A file of texts, or the id of a data set on the Hub."""
    seed: int = 0
    """Of the order of texts, the wordings held out, the supplement's sample and whatever the model draws."""
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Values in place of the recipe's, by field of `FinetuningRecipe`."""

    def changed(self) -> dict[str, Any]:
        """All that is not as the recipe and the data set have it."""
        return {**self.changes, **({"templates": list(self.templates)} if self.templates else {})}


@dataclass(frozen=True)
class Plan:
    """A specification, with the texts that follow from it."""

    spec: FinetuneSpec
    name: str
    """`<model>/<data set, direction, recipe and seed>`, see `keyed`."""
    source: str
    """The recipient's checkpoint."""
    facts: Dataset
    wordings: Wordings

    def keyed(self, weights: str) -> Plan:
        """The plan with the recipient's weights in the name, where it is no pair's: folders of one name are many.

        Args:
            weights: Their hash.
        """
        if self.spec.model is not None:
            return self
        owner, _, donor = self.name.partition("/")
        return replace(self, name=f"{owner}-{weights[:8]}/{donor}")

    def recipe(self, parameters: int, model_type: str = "") -> FinetuningRecipe:
        """The recipe for a recipient of this size and type.

        Args:
            parameters: Number of the recipient's weights.
            model_type: As in its configuration.

        Raises:
            InputError: It takes supplemental texts and none are given.
        """
        spec = self.spec
        changes = dict(spec.changes)
        if spec.supplement is None:
            wanted = finetuning_recipe(spec.recipe, parameters, changes).supplement_texts
            if wanted:
                raise InputError(
                    f"the recipe {spec.recipe!r} reads {wanted:,} texts about anything else among the facts: give --supplement FILE "
                    "or a Hub data set, or go without them by --supplement-n 0"
                )
        elif not finetuning_recipe(spec.recipe, parameters, changes).supplement_texts:
            raise InputError(
                "--supplement: give --supplement-n N too; this recipe itself takes no supplemental texts"
            )
        return finetuning_recipe(spec.recipe, parameters, changes, model_type)

    def supplement(self, recipe: FinetuningRecipe) -> Supplement | None:
        """The supplemental texts.

        Raises:
            InputError: They cannot be had.
        """
        return (
            read_supplement(self.spec.supplement, recipe.supplement_texts, self.spec.seed)
            if self.spec.supplement
            else None
        )

    def data(self) -> dict[str, Any]:
        """What a card says of the facts."""
        return {
            "name": self.facts.name,
            "direction": self.spec.direction,
            "facts": len(self.facts.facts),
            "hash": self.facts.content_hash,
        }


def make_plan(spec: FinetuneSpec) -> Plan:
    """Read and check a specification as far as that needs no checkpoint.

    Raises:
        UnknownNameError: A model, data set, part, direction or recipe does not exist.
        InputError: Something else is wrong with it.
    """
    if spec.recipe not in finetuning_recipe_names():
        raise UnknownNameError("recipe", spec.recipe, finetuning_recipe_names())
    owner, source = _recipient(spec)
    facts = load_dataset(
        spec.dataset if spec.split is None else f"{spec.dataset}:{spec.split}", spec.imports
    )
    wordings = Wordings.of(facts, spec.direction, spec.templates, spec.seed)
    seed = f"-seed{spec.seed}" if spec.seed else ""
    name = f"{_slug(owner)}/{_slug(facts.name)}-{spec.direction}-{spec.recipe}{seed}"
    plan = Plan(spec, name, source, facts, wordings)
    needs_peft(plan.recipe(_LARGE))
    return plan


def _recipient(spec: FinetuneSpec) -> tuple[str, str]:
    """What to call it, and where it is."""
    if (spec.model is None) == (spec.recipient is None):
        raise InputError(
            "which model is finetuned? Give --model NAME (see `kgbench ls models`) or --recipient PATH, one of them"
        )
    if spec.model is None:
        assert spec.recipient is not None
        return spec.recipient.rstrip("/").rpartition("/")[2], spec.recipient
    entry = catalog.entry(spec.model)
    if entry.plant is not None:
        raise InputError(
            f"{spec.model!r} is a plant; name the pair in whose recipient it grew, or its recipient: {entry.recipient}"
        )
    return entry.name, entry.recipient


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "model"
