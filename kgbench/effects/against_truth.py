"""A localization map against where the facts were planted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kgbench.effects.ranking import RankingFigures, rank_figures
from kgbench.records import NOT_APPLICABLE, Estimate
from kgbench.sites import Graft, Site, SiteScores, parse_graft
from kgbench.sites.configurations import canonical
from kgbench.stats import Figure

__all__ = ["Ground", "against_truth"]

Unit = tuple[object, ...]
"""A site, or a (layer, component)."""


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

    @property
    def graft(self) -> Graft:
        """The plant as a graft."""
        return canonical(parse_graft(self.plant))

    @property
    def everywhere(self) -> bool:
        """Whether whole weights were planted, so that a layer and component is what can be found."""
        return all(str(term.positions) == "ALL" for term in self.graft.terms)


def against_truth(ground: Ground, scores: SiteScores | None, why_none: str = "") -> dict[str, Any]:
    """The fields of `Planted` that a map of scores gives, by name.

    Args:
        ground: What is known of the plant.
        scores: The map; None where the method does not rank.
        why_none: Why it does not.
    """
    everywhere = ground.everywhere
    true, decoy, units = (_units(sites, everywhere) for sites in (ground.planted, ground.decoys, ground.sites))
    by_unit = _by_unit(scores or {}, everywhere)
    figures = _unranked(why_none) if scores is None else _figures(by_unit, true)
    against = {unit: score for unit, score in by_unit.items() if ground.decoy and unit in true | decoy}
    return {
        "plant": ground.plant,
        "decoy": ground.decoy,
        "units": "layer and component" if everywhere else "site",
        "n_units": len(units),
        "n_true": len(true),
        "k": len(ground.planted),
        "auroc": _store(figures.auroc),
        "average_precision": _store(figures.average_precision),
        "recall_at_k": _store(figures.recall_at_k),
        "expected": {**figures.expected, **_by_change(ground, units, true)},
        "auroc_decoy": _store(_figures(against, true).auroc) if against else None,
    }


def _units(sites: Collection[Site], everywhere: bool) -> set[Unit]:
    return {_unit(site, everywhere) for site in sites}


def _unit(site: Site, everywhere: bool) -> Unit:
    return (site.layer, site.component) if everywhere else tuple(site)


def _by_unit(scores: SiteScores, everywhere: bool) -> dict[Unit, float]:
    """Where whole weights were planted, a (layer, component) takes the largest score of its regions."""
    found: dict[Unit, float] = {}
    for site, score in scores.items():
        unit = _unit(site, everywhere)
        found[unit] = max(score, found.get(unit, -np.inf))
    return found


def _figures(scores: Mapping[Unit, float], true: Collection[Unit]) -> RankingFigures:
    return rank_figures(np.array(list(scores.values())), np.array([unit in true for unit in scores]))


def _by_change(ground: Ground, units: Collection[Unit], true: Collection[Unit]) -> dict[str, float]:
    """The AUROC of knowing no more than which weights changed."""
    found = _figures({unit: float((unit[0], unit[1]) in ground.changed) for unit in units}, true).auroc.value
    return {} if found is None else {"changed": found}


def _unranked(why: str) -> RankingFigures:
    nothing = Figure.missing(NOT_APPLICABLE + why, 0)
    return RankingFigures(nothing, nothing, nothing, {})


def _store(figure: Figure) -> Estimate:
    return Estimate(**figure.to_json())
