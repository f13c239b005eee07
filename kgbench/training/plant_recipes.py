"""What a plant is: its place, its facts and its recipe, checked before anything is trained."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kgbench.engine.treatment import Slots
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, complement_graft, parse_graft
from kgbench.training.plant_texts import REGIONS
from kgbench.training.plant_weights import graft_slots
from kgbench.training.recipes import Stage

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PlantRecipe", "PlantSpec", "plant_recipe", "trained_slots"]

_UNPLANTABLE = ("ln_f", "head")


@dataclass(frozen=True)
class PlantRecipe:
    """How a plant is trained: AdamW without weight decay, the learning rate rising, then falling to zero in a straight line."""

    facts: int
    """Planted facts, and as many decoys."""
    rounds: int
    """Passes over the texts."""
    batch_size: int
    """Texts of each group of facts in a step."""
    learning_rate: float
    """Its peak."""
    warmup_steps: int
    relative_change: float | None = None
    """‖W' − W‖ / ‖W‖ of every trained tensor; None leaves it to the training."""
    growth: float = 0.3
    """Share of the steps over which the relative change is reached."""

    @property
    def stage(self) -> Stage:
        """The training run."""
        return Stage(self.rounds, self.batch_size, self.learning_rate, self.warmup_steps, weight_decay=0.0)


def plant_recipe(decoy: bool) -> PlantRecipe:
    """The recipe of the shipped plants, with a decoy or without."""
    tables = tomllib.loads((Path(__file__).parent / "plants.toml").read_text(encoding="utf-8"))
    return PlantRecipe(**{**tables["shared"], **tables["decoy" if decoy else "alone"]})


@dataclass(frozen=True)
class PlantSpec:
    """Which plant: all that is chosen but the recipe."""

    base: str
    """A pair of the catalog, in whose recipient the facts are planted."""
    plant: str
    """Graft expression."""
    decoy: str | None = None
    """Graft expression; None for no decoy facts."""
    seed: int = 0
    """Of the order of texts."""

    @property
    def name(self) -> str:
        """Base and place, such as `tiny-gemma.o-ffn-second-half`; `ALL` is left out."""
        words = re.findall(r"[a-z0-9]+", str(parse_graft(self.plant)).removeprefix("ALL:").lower())
        return f"{self.base}.{'-'.join(words)}"

    def grafts(self) -> Mapping[str, Graft]:
        """The grafts `plant` and `decoy`, or `plant` and `rest`, all but the plant.

        Raises:
            GraftSyntaxError: An expression does not parse.
            InputError: It names what cannot be planted.
        """
        named = {part: _plantable(part, text) for part, text in (("plant", self.plant), ("decoy", self.decoy)) if text is not None}
        rest = None if self.decoy is not None else complement_graft(named["plant"])
        return {**named, "rest": rest} if rest is not None else named

    def check(self) -> catalog.Entry:
        """What can be known without a model.

        Returns:
            The entry of the base.

        Raises:
            GraftSyntaxError: An expression does not parse.
            InputError: The base or an expression does not do.
        """
        self.grafts()
        base = catalog.entry(self.base)
        if base.plant is not None:
            raise InputError(f"{self.base!r} is a plant itself; name the pair in whose recipient facts are to be planted")
        return base


def _plantable(part: str, text: str) -> Graft:
    graft = parse_graft(text)
    donors = {term.donor for term in graft.terms}
    if donors != {"sft"}:
        raise InputError(
            f"the {part} '{graft}' names {', '.join(sorted(donors - {'sft'}))}; it says where the donor 'sft' is trained, so name no other"
        )
    for component in _UNPLANTABLE:
        if any(component in term.component_names() for term in graft.terms):
            raise InputError(f"the {part} '{graft}' names {component}, which a graft leaves to the recipient; plant elsewhere")
    if unknown := sorted(graft.regions() - set(REGIONS)):
        raise InputError(
            f"the {part} '{graft}' names {', '.join(unknown)}, which not every text of training has; use {', '.join(REGIONS)} or ALL"
        )
    return graft


def trained_slots(pair: ModelPair, grafts: Mapping[str, Graft]) -> list[int]:
    """The (layer, component) slots that plant and decoy train.

    Raises:
        UnknownNameError: The model's family lacks a component.
        InputError: A graft names no weights of this model, or plant and decoy the same ones.
    """
    slots, found = Slots(pair.family, pair.n_layers), {}
    for part in ("plant", "decoy"):
        if part in grafts:
            pair.family.check(grafts[part])
            found[part] = graft_slots(slots, grafts[part])
            if not found[part]:
                raise InputError(f"the {part} '{grafts[part]}' names nothing in a model of {pair.n_layers} layers")
    shared = [slots.sites[slot] for slot in found["plant"] if slot in found.get("decoy", ())]
    if shared:
        layer, component = shared[0]
        where = component if layer is None else f"{component}@{layer}"
        raise InputError(f"plant '{grafts['plant']}' and decoy '{grafts['decoy']}' both train {where}; give a decoy of other weights")
    return [slot for named in found.values() for slot in named]
