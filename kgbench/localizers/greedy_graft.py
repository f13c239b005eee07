"""Greedy forward selection of sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites
from kgbench.errors import InputError
from kgbench.localizers._base import ScoringLocalizer
from kgbench.localizers._measure import site_logprobs
from kgbench.models.pair import ModelPair
from kgbench.sites import Site, SiteScores


@dataclass(frozen=True)
class GreedyGraft(ScoringLocalizer):
    """Adds the site with the largest gain of mean log-probability until no site has a gain.

    The score of a selected site is the gain of it and of all later ones, so that selected sites
    rank first, in their order. The score of any other site is its gain at the last step.
    """

    name = "greedy_graft"
    cost = "scan"
    about = "sites added one by one, each time the one that adds most"
    score_meaning = "log-probability gained by the site and those chosen later (nats)"

    steps: int = 8
    """Most sites that are chosen; each takes a scan of all that are left."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            InputError: There are no steps.
        """
        if self.steps < 1:
            raise InputError(
                "greedy_graft chooses at least one site: "
                f"expected steps of 1 or more, not {self.steps}"
            )

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """Total gain from a site's selection on; for other sites, the gain at the last step."""
        candidates = list(all_sites(pair, prompts))
        selection: list[Site] = []
        increments: list[float] = []
        while True:
            sets = [selection, *([*selection, site] for site in candidates)]
            means = site_logprobs(pair, prompts, sets).mean(axis=1)
            gains = dict(zip(candidates, (means[1:] - means[0]).tolist(), strict=True))
            best = max(candidates, key=gains.__getitem__)  # ties: the first
            if gains[best] <= 0:
                break
            selection.append(best)
            increments.append(gains[best])
            candidates.remove(best)
            if len(selection) == self.steps or not candidates:
                break
        scores = {**gains, **{site: sum(increments[i:]) for i, site in enumerate(selection)}}
        return {site: scores[site] for site in all_sites(pair, prompts)}
