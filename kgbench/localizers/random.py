"""The baseline of random scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.localizers._base import ScoringLocalizer
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores


@dataclass(frozen=True)
class Random(ScoringLocalizer):
    """Scores drawn uniformly from [0, 1): a ranking at chance level."""

    name = "random"
    needs = frozenset()
    cost = "none"
    about = "baseline: scores drawn at random under a seed"
    score_meaning = "random draw between 0 and 1 (no unit)"

    seed: int = 0
    """Of the draws."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """One draw for each default component in each region of the prompts."""
        sites = all_sites(pair, prompts)
        # The draws depend on the facts, so that rankings of two halves of the facts differ.
        facts = crc32("\n".join(sorted({prompt.fact.id for prompt in prompts})).encode())
        draws = np.random.default_rng([self.seed, facts]).random(len(sites)).tolist()
        return dict(zip(sites, draws, strict=True))
