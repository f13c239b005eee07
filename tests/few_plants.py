"""Plants of a few steps, for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kgbench.data import load_dataset
from kgbench.errors import KgbenchError
from kgbench.models.pair import ModelPair
from kgbench.zoo.plant_spec import PlantSpec
from kgbench.zoo.plant_training import PlantText, plant_texts
from kgbench.zoo.plants import build_plant
from kgbench.zoo.recipes import plant_recipe

FEW = replace(plant_recipe(decoy=True), facts=2, rounds=1, batch_size=4)
ALONE = replace(plant_recipe(decoy=False), facts=2, rounds=1, batch_size=4)
FUSED = PlantSpec.at("tiny-gpt2", "ALL:v+down@1", "ALL:q+up@2,3")
"""Slices of fused projections, with biases, on both sides."""


def build_fused(out: Path) -> Path:
    """Build the plant `FUSED` in a folder."""
    build_plant(FUSED, out, recipe=FEW)
    return out


def refusal(error: type[KgbenchError], act: Callable[[], object]) -> str:
    """The one line of the refusal."""
    with pytest.raises(error) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def texts(pair: ModelPair, n: int = 2) -> list[PlantText]:
    """The first facts in all wordings."""
    whole = load_dataset("tiny_movies")
    return plant_texts(pair, whole.subset(fact.id for fact in whole.facts[:n]))
