"""The baseline that guesses."""

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

__all__ = ["Random"]


@dataclass(frozen=True)
class Random(ScoringLocalizer):
    """Scores drawn evenly between 0 and 1: what a ranking is worth that knows nothing."""

    name = "random"
    needs = frozenset()
    cost = "none"
    about = "baseline: scores drawn at random under a seed"
    score_meaning = "random draw between 0 and 1 (no unit)"

    seed: int = 0
    """Of the draws."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """One draw for each site of the default components and each region that a prompt has."""
        sites = all_sites(pair, prompts)
        # Other facts give other draws, so that what one half ranks is not what the other half does.
        facts = crc32("\n".join(sorted({prompt.fact.id for prompt in prompts})).encode())
        return dict(
            zip(
                sites,
                np.random.default_rng([self.seed, facts]).random(len(sites)).tolist(),
                strict=True,
            )
        )
