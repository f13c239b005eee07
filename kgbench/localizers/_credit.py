"""Aggregate effects per token, or values per weight matrix, into scores of sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites, token_cells
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores

Place = tuple[int | None, str]
"""Layer and component."""


def by_token(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    effects: Sequence[Float[np.ndarray, "row token"]],
    rows: Mapping[Place, int],
) -> SiteScores:
    """Mean over prompts of the sum of effects over a site's tokens; 0 where the region is missing.

    Args:
        pair: The models.
        prompts: The prompts.
        effects: Effects [row, token] of each prompt.
        rows: Row of the effects that each (layer, component) is credited with.
    """
    sums: dict[str, np.ndarray] = {}
    for prompt, effect in zip(prompts, effects, strict=True):
        cells = np.array(token_cells(pair, prompt))
        for region in sorted({*cells}):
            sums[region] = sums.get(region, 0.0) + effect[:, cells == region].sum(axis=1)
    credits = {}
    for site in all_sites(pair, prompts):
        total = sums[site.region][rows[site.layer, site.component]]
        credits[site] = float(total / len(prompts))
    return credits


def by_weight(
    pair: ModelPair, prompts: Sequence[Prompt], figure: Callable[[int], float]
) -> SiteScores:
    """Score each site by the value of its slot: equal in all regions, since tokens share weights.

    Args:
        pair: The models.
        prompts: The prompts, whose regions are scored.
        figure: Value of a slot.
    """
    slots = pair.slots
    figures = {slots.sites[slot]: figure(slot) for slot in slots.default}
    return {site: figures[site.layer, site.component] for site in all_sites(pair, prompts)}
