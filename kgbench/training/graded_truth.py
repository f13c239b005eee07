"""Measurement of the graded truth of a plant (see `kgbench.models.plant_truth`).

All configurations of a prompt share one token tree: PRE, SFT, the pathways, for each place whose
weights changed the recipient with that place alone and the whole donor without it, and the
beginnings of some orders of all places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray

from kgbench.data import Dataset, Prompt, load_dataset, load_prompts
from kgbench.engine import Engine, load_pair
from kgbench.engine.site_sets import token_cells
from kgbench.engine.treatment import (
    Slots,
    Treatment,
    baseline_donor,
    donor_index,
    graft_treatments,
    parse_configuration,
)
from kgbench.engine.weights import changed
from kgbench.errors import InputError, OutputError
from kgbench.estimate import Estimate
from kgbench.metrics import worst_rank
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.models.plant_truth import Contribution, GradedTruth, Place
from kgbench.sites import GROUPS, SCORED_REGIONS, parse_graft
from kgbench.stats import ratio
from kgbench.stats.ratios import no_gain
from kgbench.training.builds import Progress, read_card, write_card
from kgbench.training.hit_rates import PROMPTS, TOP

__all__ = [
    "PATHWAYS",
    "changed_places",
    "graded_truth",
    "measure_truth",
    "orders",
    "store_truth",
    "truth_card",
]

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


def store_truth(plant: str, progress: Progress | None = None) -> GradedTruth:
    """Measure the graded truth of a plant that was built, and put it on its card.

    Args:
        plant: Name of a shipped plant, or the path of one's folder.
        progress: Progress callback.

    Raises:
        InputError: The pair is no plant, or there is no truth to measure.
        OutputError: The card cannot be written.
    """
    entry = catalog.entry(plant)
    if entry.plant is None or entry.facts is None:
        raise InputError(
            f"{plant!r} is no plant: "
            "expected a folder made by `kgbench zoo build NAME --plant EXPR`"
        )
    found = measure_truth(
        load_pair(plant), load_dataset(entry.dataset).subset(entry.facts), entry.plant, progress
    )
    if isinstance(found, str):
        raise InputError(f"{plant}: there is no graded truth: {found}")
    path = (catalog.zoo_path(entry.donors["sft"]) or Path(plant).expanduser()) / catalog.CARD
    try:
        write_card({**read_card(path), "truth": found.to_card()}, path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    return found


def truth_card(pair: ModelPair, planted: Dataset, plant: str) -> dict[str, Any]:
    """The graded truth for a card, or why there is none (`undefined`); see `measure_truth`."""
    found = measure_truth(pair, planted, plant)
    return {"undefined": found} if isinstance(found, str) else found.to_card()


def measure_truth(
    pair: ModelPair, planted: Dataset, plant: str, progress: Progress | None = None
) -> GradedTruth | str:
    """The graded truth of a plant, or why there is none.

    Args:
        pair: Recipient and donor.
        planted: The planted facts.
        plant: Graft expression of their location; if it names positions, places have a region.
        progress: Progress callback.
    """
    by_region = any(str(term.positions) != "ALL" for term in parse_graft(plant).terms)
    return graded_truth(
        pair, {name: load_prompts(planted, [name]) for name in PROMPTS}, by_region, progress
    )


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
    places = changed_places(
        pair, [prompt for some in prompts.values() for prompt in some], by_region
    )
    if not places:
        return "donor and recipient have equal weights"
    hits: dict[str, Hits] = {}
    for done, (name, some) in enumerate(prompts.items()):
        if progress is not None:
            progress(done, len(prompts), f"{pair.name}: truth, {name}")
        hits[name] = _hits(pair, some, places)
    pooled: NDArray[np.int64] = np.sum([own.astype(np.int64) for own in hits.values()], axis=0)
    reasons = [no_gain({"PRE": own[0], "SFT": own[1]}) for own in (pooled, *hits.values())]
    if undefined := next((reason.undefined for reason in reasons if reason is not None), None):
        return undefined
    single, without, begun = np.split(pooled[len(_BASE) :], [len(places), 2 * len(places)])
    relevance = _relevance(pooled, begun, len(places))
    found = {
        place: _contribution(pooled, *both)
        for place, *both in zip(places, single, without, relevance, strict=True)
    }
    pathways = {
        name: {graft: _recovery(own, _BASE.index(graft)) for graft in PATHWAYS}
        for name, own in hits.items()
    }
    return GradedTruth("top5", tuple(prompts), pooled.shape[1], found, pathways)


def changed_places(
    pair: ModelPair, prompts: Sequence[Prompt], by_region: bool
) -> tuple[Place, ...]:
    """Places whose weights differ, in the order of computation.

    These are default components; by region, one for each region that occurs in the prompts.
    """
    slots = Slots(pair.family, pair.n_layers)
    moved = changed(pair)
    where = [
        site for slot, site in enumerate(slots.sites) if slot in moved and site[1] in GROUPS["all"]
    ]
    if not by_region:
        return tuple(where)
    present = {cell for prompt in prompts for cell in token_cells(pair, prompt)}
    return tuple(
        (*place, region) for place in where for region in SCORED_REGIONS if region in present
    )


def orders(count: int) -> NDArray[np.int64]:
    """Orders of places [order, place]: all for at most four places.

    For more places, seeded random orders, each followed by its reverse.
    """
    if count <= _FEW:
        return np.array(list(permutations(range(count))))
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(count) for _ in range(ORDERS)]
    return np.array([order for one in drawn for order in (one, one[::-1])])


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
    found = np.zeros(count)
    for order, steps in zip(orders(count), added, strict=True):
        found[order] += steps / len(added)
    return found


def _contribution(
    pooled: NDArray[np.int64],
    single: NDArray[np.int64],
    without: NDArray[np.int64],
    relevance: float,
) -> Contribution:
    pre, sft = pooled[0], pooled[1]
    return Contribution(
        _share(single - pre, sft - pre), _share(sft - without, sft - pre), float(relevance)
    )


def _recovery(hits: Hits, row: int) -> Estimate:
    pre, sft, treated = (hits[i].astype(np.int64) for i in (0, 1, row))
    return _share(treated - pre, sft - pre)


def _share(part: NDArray[np.int64], gain: NDArray[np.int64]) -> Estimate:
    return ratio(part, gain).rounded()


def _hits(pair: ModelPair, prompts: Sequence[Prompt], places: Sequence[Place]) -> Hits:
    """Top-5 hits of each configuration.

    These are `_BASE`, each place alone, the donor without each place, and beginnings of orders.
    """
    engine, known = Engine(pair), _Treatments(pair, places)
    count = len(_BASE) + (2 + len(orders(len(places)))) * len(places)
    step = max(1, _TREATED // (count * max(len(pair.encoded(prompt).ids) for prompt in prompts)))
    hits = np.zeros((count, len(prompts)), bool)
    for start in range(0, len(prompts), step):
        some = prompts[start : start + step]
        targets = torch.tensor([pair.encoded(prompt).target for prompt in some], device=pair.device)
        for chunk in engine.run(engine.plan_treatments(some, known.of(some))):
            own = chunk.logits.gather(1, targets[chunk.prompt.to(pair.device)][:, None])
            rank = worst_rank(chunk.logits, own).cpu().numpy()
            hits[chunk.configuration.cpu().numpy(), start + chunk.prompt.cpu().numpy()] = (
                rank <= TOP
            )
    return hits


class _Treatments:
    """Treatments of all configurations, described once for prompts whose regions lie alike."""

    def __init__(self, pair: ModelPair, places: Sequence[Place]) -> None:
        self.pair, self.places = pair, places
        self.slots, self.donor = (
            Slots(pair.family, pair.n_layers),
            donor_index(pair, baseline_donor(pair)),
        )
        self.known: dict[tuple[str, ...], list[tuple[Treatment, ...]]] = {}

    def of(self, prompts: Sequence[Prompt]) -> list[list[tuple[Treatment, ...]]]:
        """Treatments [configuration][prompt][token]."""
        base = [graft_treatments(self.pair, prompts, parse_configuration(label)) for label in _BASE]
        by_prompt = [self._of_places(tuple(token_cells(self.pair, prompt))) for prompt in prompts]
        return [*base, *(list(rows) for rows in zip(*by_prompt, strict=True))]

    def _of_places(self, cells: tuple[str, ...]) -> list[tuple[Treatment, ...]]:
        if cells not in self.known:
            alone, without = (
                [self._row([place], cells, *sets) for place in self.places]
                for sets in ((self.donor, 0), (0, self.donor))
            )
            begun = [
                self._row([self.places[i] for i in order[: length + 1]], cells, self.donor, 0)
                for order in orders(len(self.places))
                for length in range(len(order))
            ]
            self.known[cells] = [*alone, *without, *begun]
        return self.known[cells]

    def _row(
        self, places: Sequence[Place], cells: tuple[str, ...], inside: int, outside: int
    ) -> tuple[Treatment, ...]:
        """One weight set at some places, another one elsewhere, including final norm and head."""
        known = {cell: self._at(places, cell, inside, outside) for cell in dict.fromkeys(cells)}
        return tuple(known[cell] for cell in cells)

    def _at(self, places: Sequence[Place], cell: str, inside: int, outside: int) -> Treatment:
        sets = bytearray([outside]) * len(self.slots)
        for place in places:
            if len(place) == 2 or place[2] == cell:
                sets[self.slots.index[place[0], place[1]]] = inside
        return Treatment(bytes(sets))
