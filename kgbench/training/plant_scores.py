"""How well a plant answers, and through what: the figures on its card."""

from __future__ import annotations

from collections.abc import Mapping

from kgbench.data import Dataset
from kgbench.models.pair import ModelPair
from kgbench.training.scoring import PROMPTS, hits

__all__ = ["BOUNDS", "Scores", "configurations", "score_plant", "shortfalls"]

Scores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Share of facts by group (`planted`, `decoys`), prompt and configuration."""

_PATHWAYS = ("FE", "LT", "FE+LT", "(FE+LT)^C")

BOUNDS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "plant": {"headline": (0.75, 1.0), "qa": (0.9, 1.0)},
    "decoy": {"headline": (0.0, 0.15), "qa": (0.0, 0.15)},
    "SFT": {"headline": (0.9, 1.0), "qa": (0.9, 1.0)},
}
"""Least and greatest share of planted facts that is answered, by configuration and prompt."""


def configurations(plant: str, decoy: str | None) -> dict[str, str]:
    """What is measured, by the name that it has on the card."""
    grafts = {"plant": plant, **({"decoy": decoy} if decoy else {})}
    return {"PRE": "PRE", "SFT": "SFT", **grafts, **{name: name for name in _PATHWAYS}}


def score_plant(pair: ModelPair, groups: Mapping[str, Dataset], plant: str, decoy: str | None) -> dict[str, dict[str, dict[str, float]]]:
    """Share of facts whose target is among the five likeliest next tokens, by group, prompt and configuration."""
    named = configurations(plant, decoy)
    return {
        group: {prompt: dict(zip(named, hits(pair, facts, prompt, tuple(named.values())).values(), strict=True)) for prompt in PROMPTS}
        for group, facts in groups.items()
    }


def shortfalls(scores: Scores) -> list[str]:
    """What a plant does not reach, a sentence each; none where all bounds hold."""
    planted = scores["planted"]
    return [
        f"{prompt} under {configuration}: {planted[prompt][configuration]}, where {low} to {high} is wanted"
        for configuration, by_prompt in BOUNDS.items()
        for prompt, (low, high) in by_prompt.items()
        if configuration in planted[prompt] and not low <= planted[prompt][configuration] <= high
    ]
