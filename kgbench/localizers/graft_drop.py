"""Leave-one-site-out scan of the full graft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.localizers._base import ScoringLocalizer
from kgbench.localizers._measure import site_logprobs
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores


@dataclass(frozen=True)
class GraftDrop(ScoringLocalizer):
    """Loss of the targets' mean log-probability (nats) when all sites but one are grafted.

    The scan is blind to redundancy: of two copies of a fact, either can be left out.
    """

    name = "graft_drop"
    cost = "scan"
    about = "exact effect of leaving each site out of the full graft"
    score_meaning = "log-probability lost by leaving the site out (nats)"

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """m(all) - m(all but the site)."""
        sites = all_sites(pair, prompts)
        means = site_logprobs(
            pair, prompts, [(), *((site,) for site in sites)], left_out=True
        ).mean(axis=1)
        return dict(zip(sites, (means[0] - means[1:]).tolist(), strict=True))
