"""Which plant: where its facts are planted, and what a level of the benchmark asks of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.catalog import CARD
from kgbench.sites import Graft, complement_graft, parse_graft
from kgbench.zoo.recipes import level_table

REGIONS = ("FE", "LT", "BOS")
"""Regions that every text has; a plant can name no others."""
_UNPLANTABLE = ("ln_f", "head")


@dataclass(frozen=True)
class PlantSpec:
    """Choice of a plant, except the recipe.

    A plant is a list of groups of facts, each with one or several places. A *union* of places is
    written with their names: `first+second`.
    """

    base: str
    """A pair of the catalog, in whose recipient the facts are planted."""
    groups: tuple[Mapping[str, str], ...]
    """For each group of facts, graft expressions of its places by name.

    The facts of a group whose only place is called `decoy` are decoys; all others are planted.
    """
    seed: int = 0
    """Seed of the order of texts."""
    level: str | None = None
    """Level of the benchmark; None for a custom plant."""
    enough: tuple[str, ...] = ()
    """Unions of the first group's places that each answer alone; empty where only all do."""
    never: tuple[str, ...] = ()
    """Unions of its places that do not answer alone."""
    needed: bool = False
    """Whether the plant must lose its answers without any one place (layer, component)."""

    @classmethod
    def at(cls, base: str, plant: str, decoy: str | None = None, seed: int = 0) -> PlantSpec:
        """A custom plant, by the graft expressions of its place and of its decoy's, if any."""
        groups = [{"plant": plant}, *([{"decoy": decoy}] if decoy else [])]
        return cls(base, tuple(groups), seed)

    @classmethod
    def of_level(cls, base: str, level: str, seed: int = 0) -> PlantSpec:
        """A plant of a level of the benchmark.

        Raises:
            UnknownNameError: There is no such level.
        """
        table = level_table(level)
        return cls(
            base,
            tuple(table["groups"]),
            seed,
            level,
            tuple(table.get("enough", ())),
            tuple(table.get("never", ())),
            table.get("needed", False),
        )

    @property
    def name(self) -> str:
        """Base with level or place, such as `tiny-gemma.o-ffn-second-half`; without `ALL`.

        A seed other than 0 follows, as in `tiny-gemma.tight-seed1`.
        """
        place = self.plant.removeprefix("ALL:").lower()
        what = self.level or "-".join(re.findall(r"[a-z0-9]+", place))
        seed = f"-seed{self.seed}" if self.seed else ""
        return f"{self.base}.{what}{seed}"

    @property
    def wholes(self) -> Mapping[str, str]:
        """Graft expression of all places of each group, by the group's name.

        A group is called like its only place, or `plant`.
        """
        wholes = {}
        for places in self.groups:
            name = "plant" if len(places) > 1 else next(iter(places))
            wholes[name] = _canonical(places)
        return wholes

    @property
    def places(self) -> Mapping[str, str]:
        """Graft expressions of all places of planted facts, by name."""
        places: dict[str, str] = {}
        for group in self.groups:
            places |= group
        places.pop("decoy", None)
        return places

    @property
    def plant(self) -> str:
        """Graft expression of all places of planted facts."""
        return _canonical(self.places)

    @property
    def decoy(self) -> str | None:
        """Graft expression of the decoys' place, if any."""
        return self.wholes.get("decoy")

    @property
    def shares(self) -> Mapping[str, str]:
        """Where there are several groups of planted facts, their wholes by name."""
        planted = {name: whole for name, whole in self.wholes.items() if name != "decoy"}
        return planted if len(planted) > 1 else {}

    @property
    def unions(self) -> Mapping[str, str]:
        """Graft expressions of the unions that `enough` and `never` name."""
        expressions = {}
        for union in (*self.enough, *self.never):
            expressions[union] = "; ".join(self.places[place] for place in union.split("+"))
        return expressions

    @property
    def chosen(self) -> Mapping[str, Any]:
        """What identities are hashes of: choices that differ from their default.

        They keep the form that a plant first had: the first group, and perhaps a `decoy`, whose
        facts a `mixture` counts as planted.
        """
        plant, *others = self.wholes.values()
        places = self.groups[0] if len(self.groups[0]) > 1 else {"plant": plant}
        chosen: dict[str, Any] = {"base": self.base, "plant": plant}
        chosen |= {"decoy": "; ".join(others) or None, "seed": self.seed}
        if self.level is not None:
            chosen |= {"level": self.level, "places": places}
        return {**chosen, **self.conditions}

    @property
    def conditions(self) -> Mapping[str, Any]:
        """What the level asks of the plant, as far as it differs from the default."""
        conditions = {
            "enough": self.enough,
            "never": self.never,
            "needed": self.needed,
            "mixture": bool(self.shares),
        }
        return {name: value for name, value in conditions.items() if value}

    def grafts(self) -> Mapping[str, Graft]:
        """Grafts by name: the wholes of groups, and the unions that `enough` and `never` name.

        Of a single group also `rest`, everything but its whole.

        Raises:
            GraftSyntaxError: An expression does not parse.
            InputError: It names a place where nothing can be planted.
        """
        grafts = {}
        for part, text in {**self.wholes, **self.unions}.items():
            grafts[part] = graft = parse_graft(text)
            donors = {term.donor for term in graft.terms}
            if donors != {"sft"}:
                raise InputError(
                    f"the {part} '{graft}' names {', '.join(sorted(donors - {'sft'}))}; "
                    "it is where the donor 'sft' is trained, so name no other"
                )
            if graft.has_heads:
                raise InputError(
                    f"the {part} '{graft}' names single heads; plant in whole components"
                )
            for component in _UNPLANTABLE:
                if any(component in term.component_names() for term in graft.terms):
                    raise InputError(
                        f"the {part} '{graft}' names {component}, which a graft leaves to the "
                        "recipient; plant elsewhere"
                    )
            if unknown := sorted(graft.regions() - set(REGIONS)):
                raise InputError(
                    f"the {part} '{graft}' names {', '.join(unknown)}, which not every text of "
                    f"training has; use {', '.join(REGIONS)} or ALL"
                )
        if len(self.groups) == 1 and (rest := complement_graft(grafts["plant"])) is not None:
            grafts["rest"] = rest
        return grafts

    def check(self) -> catalog.Entry:
        """Check what needs no model.

        Returns:
            The catalog's entry of the base.

        Raises:
            GraftSyntaxError: An expression does not parse.
            InputError: The base or an expression cannot be used.
        """
        self.grafts()
        base = catalog.entry(self.base)
        if base.plant is not None:
            raise InputError(
                f"{self.base!r} is a plant itself; "
                "name the pair in whose recipient facts are to be planted"
            )
        return base


def _canonical(places: Mapping[str, str]) -> str:
    return str(parse_graft("; ".join(places.values())))


def built_replicas(directory: Path) -> Mapping[str, Path]:
    """Folders of replicas that were built in a directory, by the replica's name.

    A folder holds one where its card has the identity of the card that is shipped.

    Args:
        directory: A folder with folders of plants in it; others are left out.

    Raises:
        ModelError: A card does not read.
    """
    places = {}
    for card in sorted(directory.glob(f"*/{CARD}")):
        if not catalog.is_plant(card.parent):
            continue
        built = catalog.read_plant(card.parent)
        if built["name"] in catalog.replicas():
            shipped = catalog.zoo_path(f"zoo:plants/{built['name']}")
            assert shipped is not None
            if built.get("identity") == json.loads((shipped / CARD).read_text("utf-8"))["identity"]:
                places[built["name"]] = card.parent
    return places
