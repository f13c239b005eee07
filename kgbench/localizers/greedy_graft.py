"""Sites added one after another, each time the one that helps most."""

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

__all__ = ["GreedyGraft"]


@dataclass(frozen=True)
class GreedyGraft(ScoringLocalizer):
    """Adds to the graft, again and again, the site that adds most to the targets' mean log-probability, until none adds anything.

    A chosen site scores what it and those chosen after it added, so the chosen stand first and in their order; the others score what each
    would have added at the last choice.
    """

    name = "greedy_graft"
    cost = "scan"
    about = "sites added one by one, each time the one that adds most"
    score_meaning = "log-probability gained by the site and those chosen later (nats)"

    steps: int = 8
    """Most sites that are chosen; each takes a scan of all that are left."""

    def __post_init__(self) -> None:
        """Refuse a number of steps that is none."""
        if self.steps < 1:
            raise InputError(
                f"greedy_graft chooses at least one site: expected steps of 1 or more, not {self.steps}"
            )

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """The total gain from the choice of a site on; for those not chosen, the gain at the last choice."""
        left = list(all_sites(pair, prompts))
        chosen: list[Site] = []
        added: list[float] = []
        while True:
            means = site_logprobs(
                pair, prompts, [chosen, *([*chosen, site] for site in left)]
            ).mean(axis=1)
            gains = dict(zip(left, (means[1:] - means[0]).tolist(), strict=True))
            best = max(left, key=gains.__getitem__)  # the first of several
            if gains[best] <= 0:
                break
            chosen.append(best)
            added.append(gains[best])
            left.remove(best)
            if len(chosen) == self.steps or not left:
                break
        found = {**gains, **{site: sum(added[i:]) for i, site in enumerate(chosen)}}
        return {site: found[site] for site in all_sites(pair, prompts)}
