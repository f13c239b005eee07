"""How much finetuning changed the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.treatment import baseline_donor
from kgbench.engine.weights import tensors
from kgbench.localizers._base import ScoringLocalizer
from kgbench.localizers._credit import by_weight
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores

__all__ = ["WeightDelta"]


@dataclass(frozen=True)
class WeightDelta(ScoringLocalizer):
    """Relative Frobenius norm ‖W' - W‖ / ‖W‖ of each layer's component, its tensors taken together.

    It looks at no prompt, so all regions of a component score alike, and `emb` and `pos` with all of their rows, those of tokens that no
    prompt holds included. Where W is 0 the change is put against the donor's norm instead, so a weight that is wholly new scores 1.
    """

    name = "weight_delta"
    cost = "none"
    about = "relative norm of the change of the weights; all regions alike"
    score_meaning = "norm of the change as a share of the weights' norm"

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """One figure for each layer's component, in all regions."""
        donor = pair.donor(baseline_donor(pair))

        def change(slot: int) -> float:
            ours, theirs = (tensors(pair, model, slot) for model in (pair.recipient, donor))
            scale = _norm(ours) or _norm(theirs)
            return (
                _norm(b.double() - a for a, b in zip(ours, theirs, strict=True)) / scale
                if scale
                else 0.0
            )

        with torch.no_grad():
            return by_weight(pair, prompts, change)


def _norm(parts: Iterable[Tensor]) -> float:
    """The norm of tensors taken together, one copied at a time."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in parts))
