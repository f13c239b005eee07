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


@dataclass(frozen=True)
class WeightDelta(ScoringLocalizer):
    """Relative Frobenius norm ‖W' - W‖ / ‖W‖ of all tensors of a component together.

    Prompts do not enter: all regions of a component score alike, and `emb` and `pos` count all of
    their rows, including those of tokens in no prompt. Where W is 0 the change is divided by the
    donor's norm, so an entirely new weight scores 1.
    """

    name = "weight_delta"
    cost = "none"
    about = "relative norm of the change of the weights; all regions alike"
    score_meaning = "norm of the change as a share of the weights' norm"

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """One value per component of a layer, equal in all regions."""
        donor = pair.donor(baseline_donor(pair))

        def change(slot: int) -> float:
            ours, theirs = (tensors(pair, model, slot) for model in (pair.recipient, donor))
            scale = _norm(ours) or _norm(theirs)
            if not scale:
                return 0.0
            return _norm(b.double() - a for a, b in zip(ours, theirs, strict=True)) / scale

        with torch.no_grad():
            return by_weight(pair, prompts, change)


def _norm(parts: Iterable[Tensor]) -> float:
    """Joint norm of tensors, converted to float64 one at a time."""
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in parts))
