"""How well a pair answers, and through which tokens: the figures on its card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kgbench.data import Dataset, load_prompts
from kgbench.engine import grafted_logits
from kgbench.metrics import worst_rank
from kgbench.models.pair import ModelPair, load_pair
from kgbench.sites import CONFIGURATIONS

__all__ = ["PROMPTS", "hits", "score", "score_checkpoints"]

PROMPTS = ("headline", "qa")
_TOP = 5


def score_checkpoints(
    recipient: Path, donor: Path, dataset: Dataset
) -> dict[str, dict[str, float]]:
    """Scores of a pair as it is stored, see `score`."""
    return score(load_pair(recipient=str(recipient), donors={"sft": str(donor)}), dataset)


def score(
    pair: ModelPair, dataset: Dataset, prompts: Sequence[str] = PROMPTS
) -> dict[str, dict[str, float]]:
    """Share of facts whose target is among the five likeliest next tokens, by prompt and configuration."""
    return {name: hits(pair, dataset, name) for name in prompts}


def hits(
    pair: ModelPair, dataset: Dataset, prompt: str, configurations: Sequence[str] = CONFIGURATIONS
) -> dict[str, float]:
    """Share of facts whose target is among the five likeliest next tokens of one prompt, by configuration."""
    prompts = load_prompts(dataset, [prompt])
    logits = grafted_logits(pair, prompts, configurations)
    targets = logits.new_tensor([pair.encoded(prompt).target for prompt in prompts]).long()
    reached = logits.gather(2, targets[:, None, None].expand(-1, len(configurations), 1))
    shares = (worst_rank(logits, reached) <= _TOP).double().mean(0)
    return {str(c): round(float(share), 4) for c, share in zip(configurations, shares, strict=True)}
