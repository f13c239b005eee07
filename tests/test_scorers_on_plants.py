"""Scoring localizers where the truth is known: weights put where nobody trained them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest

from kgbench.data import Prompt, load_prompts
from kgbench.engine import load_pair
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.weights import parts, tensors
from kgbench.localizers import ScoringLocalizer, create
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores, parse_graft

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


def scores(pair: ModelPair, prompts: Sequence[Prompt], name: str, **given: object) -> Places:
    made = create(name, {key: str(value) for key, value in given.items()}, seed=0)
    assert isinstance(made, ScoringLocalizer)
    return by_place(made.scores(pair, prompts))


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
