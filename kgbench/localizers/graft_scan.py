"""Scan of single-site grafts."""

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
class GraftScan(ScoringLocalizer):
    """Gain of the targets' mean log-probability (nats) from the graft of a single site.

    All grafts of a prompt share one token tree, so a graft costs only the tokens from its site on.
    The scan is blind to effects that need two sites at once.
    """

    name = "graft_scan"
    cost = "scan"
    scan_of = "dynamic_graft"
    about = "exact effect of grafting each site alone"
    score_meaning = "log-probability gained by grafting the site (nats)"

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """m(site) - m(nothing)."""
        sites = all_sites(pair, prompts)
        means = site_logprobs(pair, prompts, [(), *((site,) for site in sites)]).mean(axis=1)
        return dict(zip(sites, (means[1:] - means[0]).tolist(), strict=True))
