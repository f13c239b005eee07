"""The baseline of a fixed table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.localizers._base import ScoringLocalizer
from kgbench.models.pair import ModelPair
from kgbench.sites import GROUPS, Site, SiteScores

REGIONS: Mapping[str, float] = {"LT": 2.0, "FE": 1.0}
"""Score of a region; 0 for all others."""

UPPER = 0.5
"""Bonus for O and the FFN in the upper half of the layers."""


@dataclass(frozen=True)
class Prior(ScoringLocalizer):
    """A fixed table, independent of models and prompts.

    LT ranks before FE and FE before other tokens; within each, O and the FFN of the upper half of
    the layers rank first. This is the headline result of arXiv 2506.20746 as a rule: FE and LT
    together carry finetuned facts, LT through O and the FFN of the upper layers. A method adds
    information about the models only if it beats this table.
    """

    name = "prior"
    needs = frozenset()
    cost = "none"
    paper = "arXiv 2506.20746"
    about = (
        "baseline: the paper's finding as a fixed table, "
        "LT over FE, O and FFN of the upper half first"
    )
    score_meaning = "rank in a fixed table (no unit)"

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """Scores from the table."""
        middle = pair.n_layers // 2
        return {site: _score(site, middle) for site in all_sites(pair, prompts)}


def _score(site: Site, middle: int) -> float:
    upper = (
        site.layer is not None and site.layer >= middle and site.component in ("o", *GROUPS["ffn"])
    )
    return REGIONS.get(site.region, 0.0) + UPPER * upper
