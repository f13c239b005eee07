"""A localization map against where the facts were planted, and against what they use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.effects.ranking import auroc, chance_precision, graded_precision
from kgbench.estimate import Estimate, rounded
from kgbench.records import NOT_APPLICABLE
from kgbench.sites import Graft, Site, SiteScores, parse_graft
from kgbench.sites.configurations import canonical

__all__ = ["Ground", "against_truth", "by_place"]

Place = tuple[object, ...]
"""A site, or a (layer, component)."""

UNMEASURED = "the plant's card has no graded truth: `kgbench zoo truth PLANT` measures it"


@dataclass(frozen=True)
class Ground:
    """What is known of a plant's sites."""

    plant: str
    """Graft expression."""
    decoy: str | None
    """Graft expression of where other facts were planted."""
    sites: Collection[Site]
    """All sites of the pair on the prompts."""
    planted: Collection[Site]
    decoys: Collection[Site]
    changed: Collection[tuple[int | None, str]]
    """(layer, component) whose weights differ between recipient and donor."""
    relevance: Mapping[Any, float] | None = None
    """Relevance of changed places, as on the plant's card; None where it was not measured. Those in regions that the prompts lack are
    left out."""

    @property
    def graft(self) -> Graft:
        """The plant as a graft."""
        return canonical(parse_graft(self.plant))

    @property
    def everywhere(self) -> bool:
        """Whether facts were planted at all tokens, so that a place is a layer and component."""
        return all(str(term.positions) == "ALL" for term in self.graft.terms)


def against_truth(ground: Ground, scores: SiteScores | None, why_none: str = "") -> dict[str, Any]:
    """The fields of `Planted` that a map of scores gives, by name; all are among places whose weights changed.

    Args:
        ground: What is known of the plant.
        scores: The map; None where the method does not rank.
        why_none: Why it does not.
    """
    everywhere = ground.everywhere
    changed = set(ground.changed)
    moved, true, decoy = (
        {_place(site, everywhere) for site in sites if (site.layer, site.component) in changed}
        for sites in (ground.sites, ground.planted, ground.decoys)
    )
    known = (
        None
        if ground.relevance is None
        else {place: r for place, r in ground.relevance.items() if place in moved}
    )
    found = by_place(scores or {}, everywhere)
    against = (
        [place for place in found if place in true | decoy]
        if ground.decoy and scores is not None
        else []
    )
    planted = np.array([place in true for place in against])
    chance = None if known is None else chance_precision(_values(known))
    return {
        "plant": ground.plant,
        "decoy": ground.decoy,
        "units": "layer and component" if everywhere else "site",
        "n_units": len(moved),
        "n_true": len(true),
        "k": len(ground.planted),
        "graded_precision": _graded(
            found if scores is not None else None, known, why_none
        ).rounded(),
        "chance": None if chance is None else rounded(chance),
        "auroc_decoy": auroc(np.array([found[place] for place in against]), planted).rounded()
        if against
        else None,
    }


def _graded(
    found: Mapping[Place, float] | None, relevance: Mapping[Place, float] | None, why_none: str
) -> Estimate:
    if found is None:
        return Estimate.missing(NOT_APPLICABLE + why_none, 0)
    if relevance is None:
        return Estimate.missing(UNMEASURED, 0)
    return graded_precision(np.array([found[place] for place in relevance]), _values(relevance))


def _values(relevance: Mapping[Place, float]) -> NDArray[np.float64]:
    """Rounded, so that what is equal on the card ties."""
    return np.array([rounded(value) for value in relevance.values()])


def by_place(scores: SiteScores, everywhere: bool) -> dict[Place, float]:
    """Where whole weights were planted, a (layer, component) takes the largest score of its regions.

    Args:
        scores: The map.
        everywhere: Whether whole weights were planted.
    """
    found: dict[Place, float] = {}
    for site, score in scores.items():
        place = _place(site, everywhere)
        found[place] = max(score, found.get(place, -np.inf))
    return found


def _place(site: Site, everywhere: bool) -> Place:
    return (site.layer, site.component) if everywhere else tuple(site)
