"""Plants that were never trained: some weights of a shipped donor at a known place."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from kgbench.data import load_dataset
from kgbench.engine.weights import parts
from kgbench.models.catalog import CARD, DELTA, zoo_path
from kgbench.models.loading import read_pair
from kgbench.models.tensors import stored_hash
from kgbench.sites import parse_graft
from kgbench.zoo.tiny_pairs import write_delta


def write_plant(
    folder: Path, plant: str, decoy: str | None = None, facts: int = 6, base: str = "tiny-gemma"
) -> Path:
    """A plant's folder: the donor's weights at the places of `plant`, and where there is a decoy at
    those too.
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
    }
    (folder / CARD).write_text(json.dumps(card))
    return folder
