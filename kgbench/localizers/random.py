"""The baseline that guesses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.localizers._base import ScoringLocalizer
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores

__all__ = ["Random"]


@dataclass(frozen=True)
class Random(ScoringLocalizer):
    """Scores drawn evenly between 0 and 1: what a ranking is worth that knows nothing."""

    name = "random"
    needs = frozenset()
    cost = "none"
    about = "baseline: scores drawn at random under a seed"

    seed: int = 0
    """Of the draws."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """One draw for each site of the default components and each region that a prompt has."""
        sites = all_sites(pair, prompts)
        return dict(zip(sites, np.random.default_rng(self.seed).random(len(sites)).tolist(), strict=True))
