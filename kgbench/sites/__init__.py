"""The vocabulary of places in a model and a prompt, and the grammar of graft expressions."""

from __future__ import annotations

from kgbench.sites.graft import Atom, Graft, Layers, Positions, Term
from kgbench.sites.grammar import complement, complement_graft, parse_graft, split_grafts
from kgbench.sites.vocabulary import (
    BASELINES,
    COMPONENTS,
    CONFIGURATIONS,
    GROUPS,
    HEADED,
    LAYER_GROUPS,
    OUTSIDE,
    PATHWAYS,
    PER_LAYER,
    RECIPIENT,
    REGIONS,
    SCORED_REGIONS,
    SYNONYMS,
    Site,
    SiteScores,
    head_of,
    partition,
    scored_positions,
)

__all__ = [
    "BASELINES",
    "COMPONENTS",
    "CONFIGURATIONS",
    "GROUPS",
    "HEADED",
    "LAYER_GROUPS",
    "OUTSIDE",
    "PATHWAYS",
    "PER_LAYER",
    "RECIPIENT",
    "REGIONS",
    "SCORED_REGIONS",
    "SYNONYMS",
    "Atom",
    "Graft",
    "Layers",
    "Positions",
    "Site",
    "SiteScores",
    "Term",
    "complement",
    "complement_graft",
    "head_of",
    "parse_graft",
    "partition",
    "scored_positions",
    "split_grafts",
]
