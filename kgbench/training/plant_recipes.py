"""What a plant is: its place, its facts and its recipe, checked before anything is trained."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kgbench.engine.treatment import Slots
from kgbench.errors import InputError, UnknownNameError
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

__all__ = ["PlantRecipe", "PlantSpec", "levels", "plant_recipe", "trained_slots"]

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
        return Stage(
            self.rounds, self.batch_size, self.learning_rate, self.warmup_steps, weight_decay=0.0
        )


@cache
def _tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = tomllib.loads(
        (Path(__file__).parent / "plants.toml").read_text(encoding="utf-8")
    )
    return tables


def levels() -> Mapping[str, str]:
    """What each level of plants is, by name."""
    tables = _tables()["levels"]
    return {name: table["about"] for name, table in tables.items() if isinstance(table, Mapping)}


def plant_recipe(decoy: bool, level: str | None = None) -> PlantRecipe:
    """The recipe of plants with a decoy or without, or of a level of the benchmark."""
    tables = _tables()
    chosen = {**tables["shared"], **tables["decoy" if decoy else "alone"]}
    if level is not None:
        common = {key: value for key, value in tables["levels"].items() if key not in levels()}
        chosen |= common | tables["levels"][level].get("recipe", {})
    return PlantRecipe(**chosen)


@dataclass(frozen=True)
class PlantSpec:
    """Which plant: all that is chosen but the recipe.

    A plant may have several named places; a *union* of them is written with their names, as in `first+second`.
    """

    base: str
    """A pair of the catalog, in whose recipient the facts are planted."""
    plant: str
    """Graft expression: all places together."""
    decoy: str | None = None
    """Graft expression; None for no decoy facts."""
    seed: int = 0
    """Of the order of texts."""
    level: str | None = None
    """The level of the benchmark; None for a plant of one's own."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Graft expressions of the parts of the plant, by name."""
    enough: tuple[str, ...] = ()
    """Unions of places, each of which answers by itself; empty where only the whole plant does."""
    never: tuple[str, ...] = ()
    """Unions of places that do not answer by themselves."""
    needed: bool = False
    """Whether the plant must lose its answers without any one of its places (layer, component)."""

    @classmethod
    def of_level(cls, base: str, level: str, seed: int = 0) -> PlantSpec:
        """A plant of a level of the benchmark.

        Raises:
            UnknownNameError: There is no such level.
        """
        if level not in levels():
            raise UnknownNameError("level", level, list(levels()))
        table = _tables()["levels"][level]
        places: Mapping[str, str] = table["places"]
        return cls(
            base,
            plant="; ".join(places.values()),
            decoy=table.get("decoy"),
            seed=seed,
            level=level,
            places=places,
            enough=tuple(table.get("enough", ())),
            never=tuple(table.get("never", ())),
            needed=table.get("needed", False),
        )

    @property
    def name(self) -> str:
        """Base and level, or base and place, such as `tiny-gemma.o-ffn-second-half`; `ALL` is left out."""
        if self.level is not None:
            return f"{self.base}.{self.level}"
        words = re.findall(r"[a-z0-9]+", str(parse_graft(self.plant)).removeprefix("ALL:").lower())
        return f"{self.base}.{'-'.join(words)}"

    @property
    def chosen(self) -> Mapping[str, Any]:
        """All fields that are not at their default, which later versions may add to; `decoy` and `seed` always."""
        fields = asdict(self)
        return {key: fields[key] for key in fields if key in ("decoy", "seed") or fields[key]}

    @property
    def alone(self) -> tuple[str, ...]:
        """Names of the grafts that answer by themselves."""
        return self.enough or ("plant",)

    def grafts(self) -> Mapping[str, Graft]:
        """The grafts `plant` and `decoy`, or `plant` and `rest`, all but the plant; then the unions that `enough` and `never` name.

        Raises:
            GraftSyntaxError: An expression does not parse.
            InputError: It names what cannot be planted.
        """
        texts = {"plant": self.plant, "decoy": self.decoy, **self.unions()}
        named = {part: _plantable(part, text) for part, text in texts.items() if text is not None}
        rest = None if self.decoy is not None else complement_graft(named["plant"])
        return {**named, "rest": rest} if rest is not None else named

    def unions(self) -> Mapping[str, str]:
        """Graft expressions of the unions that `enough` and `never` name."""
        return {union: self._union(union.split("+")) for union in (*self.enough, *self.never)}

    def _union(self, places: Sequence[str]) -> str:
        return "; ".join(self.places[place] for place in places)

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
            raise InputError(
                f"{self.base!r} is a plant itself; name the pair in whose recipient facts are to be planted"
            )
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
            raise InputError(
                f"the {part} '{graft}' names {component}, which a graft leaves to the recipient; plant elsewhere"
            )
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
                raise InputError(
                    f"the {part} '{grafts[part]}' names nothing in a model of {pair.n_layers} layers"
                )
    if "decoy" in grafts and _meet(grafts["plant"], grafts["decoy"]):
        shared = [slots.sites[slot] for slot in found["plant"] if slot in found["decoy"]]
        if shared:
            layer, component = shared[0]
            where = component if layer is None else f"{component}@{layer}"
            raise InputError(
                f"plant '{grafts['plant']}' and decoy '{grafts['decoy']}' both train {where}; give a decoy of other weights"
            )
    return sorted({slot for named in found.values() for slot in named})


def _meet(plant: Graft, decoy: Graft) -> bool:
    """Whether the two may have a token in common; FE and LT never have."""
    first, second = ({str(term.positions) for term in graft.terms} for graft in (plant, decoy))
    return not (first | second <= {"FE", "LT"} and first.isdisjoint(second))
