"""Plants that were never trained: some weights of a shipped donor at a known place, for tests of
what is made of the truth; and replicas of which there is no more than a card.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from kgbench.data import Dataset, load_dataset, load_prompts
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.weights import parts
from kgbench.estimate import Estimate
from kgbench.leaderboard import cells
from kgbench.leaderboard.validate import known
from kgbench.models import catalog
from kgbench.models.catalog import CARD, DELTA, zoo_path
from kgbench.models.loading import read_pair
from kgbench.models.pair import ModelPair
from kgbench.models.plant_truth import Contribution, GradedTruth
from kgbench.models.tensors import stored_hash, write_delta
from kgbench.runner.training.hit_rates import PROMPTS
from kgbench.sites import Term, parse_graft
from kgbench.zoo.truth import truth_card


def _truth(pair: ModelPair, planted: Dataset, terms: Sequence[Term], plant: str) -> GradedTruth:
    """A truth that nobody measured: .5 at each planted place, 0 at all others that changed."""
    prompts = load_prompts(planted, list(PROMPTS))
    moved = {site for term in terms for site in term.sites(pair.n_layers)}
    inside = graft_sites(pair, prompts, parse_graft(plant))
    everywhere = plant.startswith("ALL")
    places = {}
    for site in all_sites(pair, prompts):
        if (site.layer, site.component) in moved:
            value = Estimate(value=0.5 * (site in inside), low=-1, high=1, n=len(planted.facts))
            places[(site.layer, site.component) if everywhere else tuple(site)] = Contribution(
                value, value, 0.5 * (site in inside)
            )
    half = Estimate(value=0.5, low=0, high=1, n=len(planted.facts))
    return GradedTruth(
        "top5",
        PROMPTS,
        len(planted.facts),
        places,
        {p: dict.fromkeys(("FE", "LT", "FE+LT"), half) for p in PROMPTS},
    )


def write_plant(
    folder: Path, plant: str, decoy: str | None = None, facts: int = 6, base: str = "tiny-gemma"
) -> Path:
    """A plant's folder: the donor's weights at the places of `plant`, and where there is a decoy at
    those too; its truth is made up.
    """
    pair = read_pair(base)
    slots = pair.slots
    terms = [term for text in (plant, decoy) if text for term in parse_graft(text).terms]
    changed = {
        part.name
        for term in terms
        for site in term.sites(pair.n_layers)
        for part in parts(pair, slots.index[site])
    }
    before, after = pair.recipient.state_dict(), pair.donors["sft"].state_dict()
    donor = {name: after[name] if name in changed else tensor for name, tensor in before.items()}
    dataset = load_dataset("tiny_movies")
    source = f"zoo:{base}/recipient"
    recipient = zoo_path(source)
    assert recipient is not None
    folder.mkdir(parents=True)
    write_delta(pair.recipient, SimpleNamespace(state_dict=lambda: donor), folder / DELTA)  # type: ignore[arg-type]
    card = {
        "name": folder.name,
        "base": base,
        "plant": plant,
        "decoy": decoy,
        "recipient": {"source": source, "weights": stored_hash(recipient)},
        "data": {"name": "tiny_movies", "planted": [fact.id for fact in dataset.facts[:facts]]},
        "truth": truth_card(
            _truth(pair, dataset.subset(fact.id for fact in dataset.facts[:facts]), terms, plant)
        ),
    }
    (folder / CARD).write_text(json.dumps(card))
    return folder


def replica_card(plant: str, seed: int, donor: str | None = None) -> dict[str, object]:
    """The card of a replica: that of the shipped plant, but for name, seed, and the hash of the donor.

    Args:
        plant: Name of the shipped plant.
        seed: Its seed.
        donor: Hash of the donor; by default made up.
    """
    folder = zoo_path(f"zoo:plants/{plant}")
    assert folder is not None
    card = json.loads((folder / CARD).read_text("utf-8"))
    name = f"{plant}-seed{seed}"
    made_up = sha256(name.encode()).hexdigest()
    return {**card, "name": name, "seed": seed, "identity": name, "donor_hash": donor or made_up}


@contextmanager
def shipped_replicas(folder: Path, cards: Sequence[Mapping[str, object]]) -> Iterator[Path]:
    """For the time of a block, a catalog with replicas besides: the folder of its plants.

    Args:
        folder: An empty one.
        cards: Their cards.
    """
    zoo = catalog.zoo_path("zoo:")
    assert zoo is not None
    plants = folder / "zoo" / "plants"
    plants.mkdir(parents=True)
    shutil.copy(zoo.parent / "catalog.toml", folder)
    for place in (*catalog.shipped(), *(f"plants/{plant}" for plant in catalog.plants())):
        (folder / "zoo" / place).symlink_to(zoo / place)
    for card in cards:
        (plants / str(card["name"])).mkdir()
        (plants / str(card["name"]) / CARD).write_text(json.dumps(card), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "files", lambda _: folder)
        forget_catalog()
        yield plants
    forget_catalog()


def forget_catalog() -> None:
    """Read the catalog again, and what is known of its pairs."""
    for cached in (
        catalog._plants,
        catalog._with_weights,
        known.known,
        known.own_facts,
        cells.core_cells,
    ):
        cached.cache_clear()
