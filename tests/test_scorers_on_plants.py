"""Scoring localizers where the truth is known: the shipped plants, and weights put where nobody
trained them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from nightly import nightly

from kgbench.data import Prompt, load_prompts
from kgbench.engine import load_pair
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.weights import parts, tensors
from kgbench.localizers import ScoringLocalizer, create
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores, parse_graft

WEIGHT_PLANTS = [
    name
    for name in catalog.plants()
    if str(catalog.entry(name).plant).startswith("ALL:") and "-seed" not in name
]
"""Of other seeds the same places are planted."""
FEW = 12
"""Prompts enough to tell places apart; of attention's eight the least need `FACTS` facts and more
steps.
"""
FACTS = 12

Places = dict[tuple[int | None, str], float]


def by_place(scores: SiteScores) -> Places:
    """The largest score of the regions of each layer's component."""
    found: Places = {}
    for site, score in scores.items():
        found[site[:2]] = max(score, found.get(site[:2], -np.inf))
    return found


def auroc(places: Places, truth: set[tuple[int | None, str]]) -> float:
    """Probability that a place of the truth scores above another one; ties count half."""
    inside, outside = (
        np.array([v for p, v in places.items() if (p in truth) == which]) for which in (True, False)
    )
    return float(((inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)).mean())


def overlap(places: Places, truth: set[tuple[int | None, str]]) -> float:
    """Intersection over union of the truth and as many of the best places."""
    best = set(sorted(places, key=lambda place: -places[place])[: len(truth)])
    return len(best & truth) / len(best | truth)


@cache
def case(name: str) -> tuple[ModelPair, tuple[Prompt, ...], frozenset[tuple[int | None, str]]]:
    """A plant, prompts of some of its facts, and its places."""
    entry, pair = catalog.entry(name), load_pair(name)
    known = [
        p
        for p in load_prompts(entry.dataset, ["headline", "qa"])
        if p.fact.id in set((entry.facts or ())[:FACTS])
    ]
    return (
        pair,
        tuple(known),
        frozenset(s[:2] for s in graft_sites(pair, known, parse_graft(str(entry.plant)))),
    )


def scores(pair: ModelPair, prompts: Sequence[Prompt], name: str, **given: object) -> Places:
    made = create(name, {key: str(value) for key, value in given.items()}, seed=0)
    assert isinstance(made, ScoringLocalizer)
    return by_place(made.scores(pair, prompts))


def test_there_are_weight_plants() -> None:
    """Else nothing below would be tried."""
    assert len(WEIGHT_PLANTS) >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", nightly(WEIGHT_PLANTS, WEIGHT_PLANTS[::2]))
def test_scan_finds_the_plant(name: str) -> None:
    """The exact scan tells the plant from all other places, and from its decoy's, which changed as
    much; the change itself does not.
    """
    pair, prompts, truth = case(name)
    decoys = {
        s[:2] for s in graft_sites(pair, prompts, parse_graft(str(catalog.entry(name).decoy)))
    }
    scanned, delta = (
        scores(pair, prompts[:FEW], method) for method in ("graft_scan", "weight_delta")
    )
    assert auroc(scanned, set(truth)) >= 0.9
    assert auroc({p: v for p, v in scanned.items() if p in truth | decoys}, set(truth)) >= 0.8
    against = [delta[place] for place in sorted(truth | decoys, key=str)]
    # Stored changes are rounded to whole steps, which 128 weights of a norm do not average out.
    assert max(against) - min(against) < 4e-3 * max(against), (
        "plant and decoy changed by one relative norm"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", nightly(WEIGHT_PLANTS, WEIGHT_PLANTS[-1:]))
def test_mask_is_the_plant(name: str) -> None:
    """A mask of components with room for as many as were planted is the plant."""
    pair, prompts, truth = case(name)
    given: dict[str, object] = {"by_region": False, "budget": len(truth)}
    if len(truth) == 8 and "attn" in name:
        found = scores(pair, prompts, "mask_graft", **given, steps=150, sample=12)
    else:
        found = scores(pair, prompts[:FEW], "mask_graft", **given, steps=100, rate=0.2, sample=8)
    assert overlap(found, set(truth)) >= 0.8


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name", ["graft_scan", "graft_drop", "graft_attribution", "snip", "weight_delta", "mask_graft"]
)
def test_what_alone_changed(name: str) -> None:
    """Where nothing else changed, every method that looks at the change finds its place."""
    pair = load_pair("tiny-gemma")
    prompts = load_prompts("tiny_movies", ["headline"], limit=4)
    truth = {site[:2] for site in graft_sites(pair, prompts, parse_graft("ALL:ffn@second_half"))}
    donor, slots = copy.deepcopy(pair.recipient), pair.slots
    for place in truth:
        for part, tensor in zip(
            parts(pair, slots.index[place]),
            tensors(pair, pair.donors["sft"], slots.index[place]),
            strict=True,
        ):
            donor.get_parameter(part.name).data.copy_(tensor)
    planted = ModelPair("planted", pair.recipient, {"sft": donor}, pair.tokenizer, pair.family)
    given: dict[str, object] = (
        {"steps": 60, "rate": 0.2, "sample": 4, "budget": 0.2} if name == "mask_graft" else {}
    )
    found = scores(planted, prompts, name, **given)
    assert len(found) * len({s.region for s in all_sites(pair, prompts)}) == len(
        all_sites(pair, prompts)
    )
    assert overlap(found, truth) >= 0.8
    assert auroc(found, truth) >= 0.99
