"""Plants of a few steps, for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kgbench.errors import KgbenchError
from kgbench.zoo.plants import PlantSpec, build_plant, recipe_of

FEW = recipe_of("tiny-gpt2", facts=3, decoys=2, decoy_steps=1, steps=4, per_decoy_step=2)
FUSED = PlantSpec("tiny-gpt2", ("attn@1", "ffn@2"), "shares", seed=3)
"""In a model with fused projections, with biases."""


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
