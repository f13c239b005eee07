"""Plants in a real language model: they are what their cards say, and an own entry is computed
anew on a processor, whatever computed it.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from entries_again import SEED, all_own_entries, is_the_same

from kgbench.data import load_dataset
from kgbench.engine import load_pair
from kgbench.leaderboard.entries import Entry
from kgbench.models import catalog
from kgbench.runner.training.hit_rates import configuration_hits

PLANTS = sorted({*catalog.plants()} - {*catalog.plants_in_shipped_pairs()})
CHEAP = ("oracle", "prior", "graft_attribution", "attribution_patch")
"""Methods of a few forwards."""


def test_a_plant_is_what_its_card_says(home: None) -> None:
    """Weights and answers of one that is drawn."""
    name = Random(SEED).choice(PLANTS)
    folder = catalog.zoo_path(f"zoo:plants/{name}")
    assert folder is not None
    card = json.loads((Path(folder) / "card.json").read_text("utf-8"))
    pair, whole = load_pair(name), load_dataset(card["data"]["name"])
    assert card["donor_hash"] == pair.weight_hashes["sft"]
    for group, scores in card["scores"].items():
        facts = whole.subset(card["data"][group])
        for prompt, rates in scores.items():
            measured = configuration_hits(pair, facts, prompt, tuple(rates))
            assert measured == pytest.approx(rates, abs=1.5 / len(facts.facts)), name


def test_an_own_entry_on_one(home: None) -> None:
    """Of the methods of a few forwards, one that is drawn."""
    entries: list[Entry] = []
    for entry in all_own_entries():
        if entry.pair in PLANTS and entry.localizer in CHEAP:
            entries.append(entry)
    is_the_same(Random(SEED).choice(entries))
