"""Rankings of sites: each half of the facts ranks, and the other half is measured.

Sites of equal scores stand in an order drawn at random, another one for each half: any order of computation would favour one end of the
model, and a method that knows nothing would seem to know a plant that lies there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from kgbench.data import Prompt
from kgbench.effects import agreement
from kgbench.engine.site_sets import all_sites, site_costs, site_treatments
from kgbench.errors import InputError
from kgbench.localizers import Treatments
from kgbench.models.pair import ModelPair
from kgbench.records import rounded
from kgbench.sites import Site, SiteScores
from kgbench.sites.configurations import Top
from kgbench.stats import Figure

__all__ = ["RANKING_VERSION", "Halves", "SiteRanking", "split_facts"]

RANKING_VERSION = "1"
"""Raised whenever halves, order or budgets are made otherwise, so that records made before are told apart."""

Halves = tuple[frozenset[str], frozenset[str]]
"""Ids of facts."""


def split_facts(prompts: Mapping[str, Sequence[Prompt]], seed: int) -> Halves:
    """The facts of a job in two halves, the same for all of its prompts, by a seeded permutation of their ids.

    Raises:
        InputError: There is but one fact.
    """
    ids = sorted({prompt.fact.id for some in prompts.values() for prompt in some})
    if len(ids) < 2:
        raise InputError(
            f"a ranking is made from one half of the facts and measured on the other, so it needs two or more, not {len(ids)}"
        )
    order = np.random.default_rng(seed).permutation(len(ids)).tolist()
    first = frozenset(ids[i] for i in order[: (len(ids) + 1) // 2])
    return first, frozenset(ids) - first


@dataclass(frozen=True)
class SiteRanking:
    """The scores of both halves, and what they put first."""

    pair: ModelPair
    prompts: Mapping[str, Sequence[Prompt]]
    halves: Halves
    scores: tuple[SiteScores, SiteScores]
    """From the prompts of each half."""
    k: int | None = None
    """Sites of the truth, where it is known."""
    seed: int = 0
    """Of the order of equal scores."""

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """All sites, in the order of computation."""
        return all_sites(self.pair, [prompt for some in self.prompts.values() for prompt in some])

    @cached_property
    def orders(self) -> tuple[tuple[Site, ...], tuple[Site, ...]]:
        """All sites by each half's scores, the highest first; a site in a region that a half's prompts lack comes last."""
        first, second = (self._order(half, scores) for half, scores in enumerate(self.scores))
        return first, second

    def _order(self, half: int, scores: SiteScores) -> tuple[Site, ...]:
        drawn = np.random.default_rng([self.seed, half]).permutation(len(self.sites)).tolist()
        keys = {
            site: (-scores.get(site, -np.inf), place)
            for site, place in zip(self.sites, drawn, strict=True)
        }
        return tuple(sorted(self.sites, key=keys.__getitem__))

    @cached_property
    def mean(self) -> SiteScores:
        """The localization map: the mean of the halves' scores, or the only one, as it is stored and judged."""
        known = {
            site: [scores[site] for scores in self.scores if site in scores] for site in self.sites
        }
        return {site: rounded(float(np.mean(values))) for site, values in known.items()}

    @cached_property
    def agreement(self) -> Figure:
        """Spearman's correlation of the halves' scores, over the sites that both have."""
        shared = [site for site in self.sites if all(site in scores for scores in self.scores)]
        first, second = (np.array([scores[site] for site in shared]) for scores in self.scores)
        return agreement(first, second)

    def treatments(self, top: Top, prompts: Sequence[Prompt]) -> Treatments:
        """Treatments of some prompts of one template, each by the ranking of the half that its fact is not of."""
        found: dict[Prompt, Sequence[object]] = {}
        for half, facts in enumerate(self.halves):
            own = [prompt for prompt in prompts if prompt.fact.id in facts]
            sites = self.best(top, prompts[0].name, 1 - half)
            found |= dict(
                zip(own, site_treatments(self.pair, own, sites, top.left_out), strict=True)
            )
        return [found[prompt] for prompt in prompts]  # type: ignore[misc]

    def best(self, top: Top, prompt: str, half: int) -> tuple[Site, ...]:
        """The sites that one half's ranking puts first, up to a budget on one prompt, or as many as the truth has."""
        order = self.orders[half]
        if top.percent is None:
            assert self.k is not None
            return order[: self.k]
        costs = self._costs[prompt]
        spent = np.cumsum([costs.get(site, 0) for site in order])
        # Exact, since the last site of a budget of 100 % must be in it.
        allowed = int(Fraction(str(top.percent)) / 100 * int(spent[-1]))
        return order[: int(np.searchsorted(spent, allowed, side="right"))]

    def n_sites(self, top: Top, prompt: str) -> tuple[int, int]:
        """How many of a prompt's sites each half's ranking puts first."""
        first, second = (
            sum(site in self._costs[prompt] for site in self.best(top, prompt, half))
            for half in (0, 1)
        )
        return first, second

    @cached_property
    def _costs(self) -> Mapping[str, Mapping[Site, int]]:
        """By prompt: weights × tokens of each site."""
        return {name: site_costs(self.pair, prompts) for name, prompts in self.prompts.items()}
