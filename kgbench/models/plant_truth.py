"""Graded truth of a plant: how far each place whose weights changed carries the planted facts.

A plant's card holds, for every such place, the share of the donor's gain that the place brings
alone into the recipient, and the share that is lost where the whole donor lacks it. Both are
measured, so that truth is what the model uses and not what was trainable.

Neither is the relevance of a place. Alone, one of three matrices that are all needed brings
nothing, and nothing is lost without it where the same facts are at a second place too. So the
relevance is the mean of what a place adds over orders in which all places are grafted one after the
other: the value of L. S. Shapley (1953), estimated from seeded orders, each with its reverse. Two
places of which either suffices have .5 each, and so have two places of which neither does; all
relevances together are the recovery of all places. None is clamped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kgbench.errors import InputError
from kgbench.estimate import Estimate
from kgbench.stats.ranking_quality import chance_precision

Place = tuple[int | None, str] | tuple[int | None, str, str]
"""A (layer, component), or a (layer, component, region)."""

_ITEM = re.compile(
    r"(?P<region>[A-Z]+):(?P<component>\w+)(@(?P<layer>\d+))?=(?P<value>-?[\d.]+(e-?\d+)?)"
)

ALL_TOKENS = "ALL"
"""In the place of a region, for a (layer, component) at all tokens."""


@dataclass(frozen=True)
class Contribution:
    """What one place adds to nothing, and to everything else."""

    alone: Estimate
    """Recovery where the place alone is grafted into the recipient."""
    left_out: Estimate
    """Share of the gain that is lost where the whole donor lacks the place."""
    relevance: float
    """Mean share that the place adds to those before it, over orders of all places."""


@dataclass(frozen=True)
class GradedTruth:
    """What was measured of a plant, over its planted facts and some prompts together."""

    metric: str
    prompts: tuple[str, ...]
    n: int
    """Number of facts."""
    places: Mapping[Place, Contribution]
    """Every place whose weights changed."""
    pathways: Mapping[str, Mapping[str, Estimate]]
    """By prompt and graft (`FE`, `LT`, `FE+LT`), the recovery of the graft of all components."""

    @property
    def relevance(self) -> Mapping[Place, float]:
        """Relevance of each place."""
        return {place: measured.relevance for place, measured in self.places.items()}

    @property
    def chance(self) -> float | None:
        """The graded average precision that a random order is expected to have.

        None where all orders are as good.
        """
        return chance_precision(np.array(list(self.relevance.values())))

    @property
    def by_region(self) -> bool:
        """Whether places have a region."""
        return any(len(place) == 3 for place in self.places)

    @property
    def relevance_text(self) -> str:
        """The relevances that are not 0, for `parse_relevance`.

        `ALL:down@1=0.181 ALL:gate@1=0.156`.
        """
        items = []
        for place, value in self.relevance.items():
            if round(value, 4):
                items.append(f"{_name(place)}={round(value, 4)}")
        return " ".join(items)


def read_truth(card: Mapping[str, Any]) -> GradedTruth | None:
    """The graded truth on a plant's card; None where it was not measured.

    Raises:
        KeyError, TypeError, ValueError: The card's `truth` is none.
    """
    truth = card.get("truth")
    if truth is None or "undefined" in truth:
        return None
    n, places = int(truth["n"]), {}
    for region, components in truth["places"].items():
        for component, layers in components.items():
            for layer, row in layers.items():
                place = _place(int(layer) if layer else None, component, region)
                places[place] = Contribution(
                    _estimate(row[:3], n), _estimate(row[3:6], n), float(row[6])
                )
    pathways = {}
    for prompt, rows in truth["pathways"].items():
        pathways[prompt] = {graft: _estimate(row, n) for graft, row in rows.items()}
    return GradedTruth(truth["metric"], tuple(truth["prompts"]), n, places, pathways)


def parse_relevance(text: str) -> dict[Place, float]:
    """Relevance of each place, from `GradedTruth.relevance_text`.

    Raises:
        InputError: The text is none.
    """
    relevance: dict[Place, float] = {}
    for item in text.split():
        match = _ITEM.fullmatch(item)
        if match is None:
            raise InputError(
                f"{item!r} is no place with its relevance: expected such as LT:down@3=0.25"
            )
        layer = None if match["layer"] is None else int(match["layer"])
        place = _place(layer, match["component"], match["region"])
        relevance[place] = float(match["value"])
    return relevance


def _place(layer: int | None, component: str, region: str) -> Place:
    return (layer, component) if region == ALL_TOKENS else (layer, component, region)


def _name(place: Place) -> str:
    layer, component, region = (*place, ALL_TOKENS)[:3]
    return f"{region}:{component}" + ("" if layer is None else f"@{layer}")


def _estimate(row: list[float | None], n: int) -> Estimate:
    value, low, high = row
    if value is None:
        raise ValueError("a recovery without a value")
    if low is None or high is None:
        return Estimate.alone(value, n, "the gain is so near 0 that luck may have told it from 0")
    return Estimate(value, low, high, n)
