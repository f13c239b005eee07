"""The graded truth of a plant, measured (see `kgbench.models.plant_truth`).

All configurations of a prompt share one token tree: PRE, SFT, the pathways, for each place whose
weights changed the recipient with that place alone and the whole donor without it, and the
beginnings of some orders of all places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from itertools import chain, permutations
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray

from kgbench.data import Dataset, Prompt, load_prompts
from kgbench.engine import Engine
from kgbench.engine.edits import Treatment
from kgbench.engine.site_sets import all_sites, token_cells
from kgbench.engine.treatment import (
    baseline_donor,
    donor_index,
    graft_treatments,
    parse_configuration,
)
from kgbench.engine.weights import changed
from kgbench.estimate import Estimate
from kgbench.metrics import worst_rank
from kgbench.models.pair import ModelPair
from kgbench.models.plant_truth import ALL_TOKENS, Contribution, GradedTruth, Place
from kgbench.progress import Progress
from kgbench.runner.training.hit_rates import PROMPTS, TOP
from kgbench.sites import parse_graft
from kgbench.stats import ratio
from kgbench.stats.ratios import no_gain

PATHWAYS = ("FE", "LT", "FE+LT")
"""Grafts of which the recoveries are measured."""

ORDERS = 4
"""Orders of places over which relevance is averaged, each with its reverse."""
_FEW = 4
"""Most places of which all orders are taken."""

_BASE = ("PRE", "SFT", *PATHWAYS)
_TREATED = 1 << 18
"""Most treatments described at once: configurations × tokens."""

Hits = Bool[np.ndarray, "configuration fact"]


def measure_truth(
    pair: ModelPair, planted: Dataset, plant: str, progress: Progress | None = None
) -> dict[str, Any]:
    """The graded truth of a plant as its card holds it; `undefined` says why there is none.

    Args:
        pair: Recipient and donor.
        planted: The planted facts.
        plant: Graft expression of their location; if it names positions, places have a region.
        progress: Progress callback.
    """
    by_region = any(str(term.positions) != "ALL" for term in parse_graft(plant).terms)
    prompts = {name: load_prompts(planted, [name]) for name in PROMPTS}
    truth = graded_truth(pair, prompts, by_region, progress)
    return {"undefined": truth} if isinstance(truth, str) else truth_card(truth)


def truth_card(truth: GradedTruth) -> dict[str, Any]:
    """A graded truth for `read_truth`.

    By region, component and layer (empty outside the layers), two estimates and the relevance in a
    row.
    """
    nested: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for place, measured in truth.places.items():
        layer, component, region = (*place, ALL_TOKENS)[:3]
        row = [*_short(measured.alone), *_short(measured.left_out)]
        rows = nested.setdefault(region, {}).setdefault(component, {})
        rows["" if layer is None else str(layer)] = [*row, round(measured.relevance, 4)]
    pathways: dict[str, dict[str, list[float | None]]] = {}
    for prompt, estimates in truth.pathways.items():
        pathways[prompt] = {graft: _short(value) for graft, value in estimates.items()}
    return {
        "metric": truth.metric,
        "prompts": list(truth.prompts),
        "n": truth.n,
        "places": nested,
        "pathways": pathways,
    }


def _short(estimate: Estimate) -> list[float | None]:
    """Value, low and high end, to three decimals."""
    return [
        None if x is None else round(x, 3) + 0.0
        for x in (estimate.value, estimate.low, estimate.high)
    ]


def graded_truth(
    pair: ModelPair,
    prompts: Mapping[str, Sequence[Prompt]],
    by_region: bool,
    progress: Progress | None = None,
) -> GradedTruth | str:
    """The contribution of each changed place, over all prompts; or why it is undefined.

    Args:
        pair: Recipient and donor.
        prompts: By name, prompts of the same facts in the same order.
        by_region: Whether a place is a (layer, component, region) or a (layer, component).
        progress: Progress callback.
    """
    places = changed_places(pair, list(chain.from_iterable(prompts.values())), by_region)
    if not places:
        return "donor and recipient have equal weights"
    hits: dict[str, Hits] = {}
    for done, (name, some) in enumerate(prompts.items()):
        if progress is not None:
            progress(done, len(prompts), f"{pair.name}: truth, {name}")
        hits[name] = _hits(pair, some, places)
    pooled: NDArray[np.int64] = np.sum([counts.astype(np.int64) for counts in hits.values()], 0)
    for counts in (pooled, *hits.values()):
        reason = no_gain({"PRE": counts[0], "SFT": counts[1]})
        if reason is not None and reason.undefined:
            return reason.undefined
    alone, left_out, begun = np.split(pooled[len(_BASE) :], [len(places), 2 * len(places)])
    pre, sft = pooled[0], pooled[1]
    relevance = _relevance(pooled, begun, len(places))
    contributions = {}
    for i, place in enumerate(places):
        contributions[place] = Contribution(
            ratio(alone[i] - pre, sft - pre).rounded(),
            ratio(sft - left_out[i], sft - pre).rounded(),
            float(relevance[i]),
        )
    pathways: dict[str, dict[str, Estimate]] = {}
    for name, reached in hits.items():
        counts = reached.astype(np.int64)
        pathways[name] = {}
        for graft in PATHWAYS:
            brought = counts[_BASE.index(graft)] - counts[0]
            pathways[name][graft] = ratio(brought, counts[1] - counts[0]).rounded()
    return GradedTruth("top5", tuple(prompts), pooled.shape[1], contributions, pathways)


def changed_places(
    pair: ModelPair, prompts: Sequence[Prompt], by_region: bool
) -> tuple[Place, ...]:
    """Places whose weights differ, in the order of computation.

    These are default components; by region, one for each region that occurs in the prompts.
    """
    slots, moved = pair.slots, changed(pair)
    places: dict[Place, None] = {}
    for site in all_sites(pair, prompts):
        place = (site.layer, site.component)
        if slots.index[place] in moved:
            places[(*place, site.region) if by_region else place] = None
    return tuple(places)


def orders(count: int) -> NDArray[np.int64]:
    """Orders of places [order, place]: all for at most four places.

    For more places, seeded random orders, each followed by its reverse.
    """
    if count <= _FEW:
        return np.array(list(permutations(range(count))))
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(ORDERS):
        order = rng.permutation(count)
        drawn += [order, order[::-1]]
    return np.array(drawn)


def _relevance(
    pooled: NDArray[np.int64], begun: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """What each place adds to those before it, as a share of the gain, over all orders.

    Args:
        pooled: Hits by configuration and fact, PRE and SFT first.
        begun: Hits of the beginnings of the orders, 1 to `count` places long, order after order.
        count: Number of places.
    """
    hits = begun.sum(axis=1).reshape(-1, count)
    pre, sft = int(pooled[0].sum()), int(pooled[1].sum())
    added = np.diff(hits, axis=1, prepend=pre) / (sft - pre)
    relevance = np.zeros(count)
    for order, steps in zip(orders(count), added, strict=True):
        relevance[order] += steps / len(added)
    return relevance


def _hits(pair: ModelPair, prompts: Sequence[Prompt], places: Sequence[Place]) -> Hits:
    """Top-5 hits of each configuration.

    These are `_BASE`, each place alone, the donor without each place, and beginnings of orders.
    """
    engine, of_places = Engine(pair), cache(partial(_place_treatments, pair, places))
    count = len(_BASE) + (2 + len(orders(len(places)))) * len(places)
    step = max(1, _TREATED // (count * max(len(pair.encoded(prompt).ids) for prompt in prompts)))
    hits = np.zeros((count, len(prompts)), bool)
    for start in range(0, len(prompts), step):
        some = prompts[start : start + step]
        treatments = [graft_treatments(pair, some, parse_configuration(label)) for label in _BASE]
        by_prompt = [of_places(token_cells(pair, prompt)) for prompt in some]
        treatments += map(list, zip(*by_prompt, strict=True))
        targets = torch.tensor([pair.encoded(prompt).target for prompt in some], device=pair.device)
        for chunk in engine.run(engine.plan_treatments(some, treatments)):
            target = chunk.logits.gather(1, targets[chunk.prompt.to(pair.device)][:, None])
            rank = worst_rank(chunk.logits, target).cpu().numpy()
            hits[chunk.configuration.cpu().numpy(), start + chunk.prompt.cpu().numpy()] = (
                rank <= TOP
            )
    return hits


def _place_treatments(
    pair: ModelPair, places: Sequence[Place], cells: tuple[str, ...]
) -> list[tuple[Treatment, ...]]:
    """Treatments of tokens of these regions, by configuration of places as in `_hits`.

    A configuration has one weight set at some places, and another one elsewhere, including final
    norm and head.
    """
    slots, donor = pair.slots, donor_index(pair, baseline_donor(pair))
    configurations = [([place], donor, 0) for place in places]
    configurations += [([place], 0, donor) for place in places]
    for order in orders(len(places)):
        for length in range(1, len(places) + 1):
            configurations.append(([places[i] for i in order[:length]], donor, 0))
    treatments = []
    for chosen, inside, outside in configurations:
        by_cell = {}
        for cell in dict.fromkeys(cells):
            sets = bytearray([outside]) * len(slots)
            for place in chosen:
                if len(place) == 2 or place[2] == cell:
                    sets[slots.index[place[0], place[1]]] = inside
            by_cell[cell] = Treatment(bytes(sets))
        treatments.append(tuple(by_cell[cell] for cell in cells))
    return treatments
