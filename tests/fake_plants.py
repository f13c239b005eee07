"""Plants that were never trained: some weights of a shipped donor at a known place, for tests of what is made of the truth."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from kgbench.data import load_dataset
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import parts
from kgbench.models.catalog import CARD, DELTA, zoo_path
from kgbench.models.delta import stored_hash
from kgbench.models.pair import load_pair
from kgbench.sites import parse_graft


def write_plant(folder: Path, plant: str, decoy: str | None = None, facts: int = 6, base: str = "tiny-gemma") -> Path:
    """A plant's folder: the donor's weights at the places of `plant`, and where there is a decoy at those too."""
    pair = load_pair(base)
    slots = Slots(pair.family, pair.n_layers)
    terms = [term for text in (plant, decoy) if text for term in parse_graft(text).terms]
    changed = {part.name for term in terms for site in term.sites(pair.n_layers) for part in parts(pair, slots.index[site])}
    donor = pair.donors["sft"].state_dict()
    dataset = load_dataset("tiny_movies")
    source = f"zoo:{base}/recipient"
    recipient = zoo_path(source)
    assert recipient is not None
    folder.mkdir(parents=True)
    save_file({name: donor[name].to(torch.float16).contiguous() for name in sorted(changed)}, folder / DELTA)
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
