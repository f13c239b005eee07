"""Sets of scored sites as treatments and as graft expressions, and their costs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from kgbench.data import Prompt
from kgbench.engine.edits import Treatment
from kgbench.engine.treatment import donor_index, graft_treatments
from kgbench.engine.weights import numel
from kgbench.models.pair import ModelPair
from kgbench.sites import (
    Graft,
    Site,
    parse_graft,
    partition,
    region_order,
    scored_positions,
)


def token_cells(pair: ModelPair, prompt: Prompt) -> tuple[str, ...]:
    """Scored region of each token of a prompt."""
    encoded = pair.encoded(prompt)
    return tuple(partition(encoded.regions, len(encoded.ids)))


def all_sites(pair: ModelPair, prompts: Sequence[Prompt]) -> tuple[Site, ...]:
    """Every default component in every region of the prompts, in the order of computation."""
    present: set[str] = set()
    for prompt in prompts:
        present.update(token_cells(pair, prompt))
    regions = sorted(present, key=region_order)
    slots, sites = pair.slots, list[Site]()
    for slot in slots.default:
        sites += [Site(*slots.sites[slot], region) for region in regions]
    return tuple(sites)


def graft_sites(pair: ModelPair, prompts: Sequence[Prompt], graft: Graft) -> frozenset[Site]:
    """Sites with a donor's weights at all of their tokens in every prompt that has them."""
    slots = pair.slots
    seen: set[tuple[str, Treatment]] = set()
    for prompt, treatments in zip(prompts, graft_treatments(pair, prompts, graft), strict=True):
        seen.update(zip(token_cells(pair, prompt), treatments, strict=True))
    inside: dict[Site, bool] = dict.fromkeys(all_sites(pair, prompts), True)
    for cell, treatment in seen:
        headed = {slot for slot, _, _ in treatment.heads}
        for slot in slots.default:
            is_donor = treatment.weights[slot] != 0 and slot not in headed
            inside[Site(*slots.sites[slot], cell)] &= is_donor
    return frozenset(site for site, is_donor in inside.items() if is_donor)


def site_graft(pair: ModelPair, prompts: Sequence[Prompt], site: Site) -> Graft:
    """One site as a graft expression, for prompts with the same region names."""
    positions = scored_positions(site.region, [pair.encoded(prompt).regions for prompt in prompts])
    layer = "" if site.layer is None else f"@{site.layer}"
    return parse_graft(f"{positions}:{site.component}{layer}")


def site_treatments(
    pair: ModelPair, prompts: Sequence[Prompt], sites: Collection[Site], left_out: bool = False
) -> list[tuple[Treatment, ...]]:
    """Treatments that graft some sites.

    Args:
        pair: The models; the donor is that of the configuration `SFT`.
        prompts: Prompts of any lengths.
        sites: Sites with the donor's weights; all others have the recipient's.
        left_out: Graft the complement of the sites among those of the default components.
    """
    slots, donor = pair.slots, donor_index(pair, "sft")
    inside, outside = (0, donor) if left_out else (donor, 0)
    base = np.zeros(len(slots), dtype=np.uint8)
    base[list(slots.default)] = outside
    by_cell = defaultdict[str, np.ndarray](base.copy)
    for site in sites:
        by_cell[site.region][slots.index[site.layer, site.component]] = inside
    # Prompts whose regions lie alike share one tuple, by which `make_plan` recognises them.
    by_regions: dict[tuple[str, ...], tuple[Treatment, ...]] = {}
    treatments = []
    for prompt in prompts:
        cells = token_cells(pair, prompt)
        if cells not in by_regions:
            by_regions[cells] = tuple(Treatment(by_cell[cell].tobytes()) for cell in cells)
        treatments.append(by_regions[cells])
    return treatments


def site_costs(pair: ModelPair, prompts: Sequence[Prompt]) -> Mapping[Site, int]:
    """Cost of grafting each site: weights × tokens over all prompts.

    Of the embeddings, a token uses one row, so their cost per token is the hidden size.
    """
    counts = Counter[str]()
    for prompt in prompts:
        counts.update(token_cells(pair, prompt))
    sizes = dict(numel(pair))
    for component in ("emb", "pos"):
        if (None, component) in sizes:
            sizes[None, component] = pair.width
    costs = {}
    for site in all_sites(pair, prompts):
        costs[site] = sizes[site.layer, site.component] * counts[site.region]
    return costs
