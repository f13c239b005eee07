"""Fisher information of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.gradients import weight_gradients
from kgbench.engine.plan import Budget
from kgbench.engine.weights import parts
from kgbench.localizers._base import ScoringLocalizer, one_of
from kgbench.localizers._credit import by_weight
from kgbench.models.pair import ModelPair
from kgbench.sites import RECIPIENT, SiteScores


@dataclass(frozen=True)
class Fisher(ScoringLocalizer):
    """Mean over prompts of (∂ log p(target) / ∂W)², summed over the weights of a component.

    The diagonal of the empirical Fisher information (arXiv 2111.09839, equation 3, with the target
    as the label). It measures where a model is sensitive, not what changed. All tokens share the
    weights, so all regions of a component score alike.
    """

    name = "fisher"
    needs = frozenset({"donor", "gradients"})
    cost = "backward"
    paper = "arXiv 2111.09839"
    about = "squared gradients of the targets' log-probability; all regions alike"
    score_meaning = "squared gradient of the log-probability, summed (nats² / weight²)"

    at: str = one_of(RECIPIENT, RECIPIENT, "sft")
    """At whose weights the gradients are taken."""
    per_weight: bool = False
    """The mean over a component's weights instead of the sum, so that large matrices have no
    advantage of their size."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """One value per component of a layer, equal in all regions."""
        squares: dict[str, Tensor] = {}
        for gradient in weight_gradients(pair, prompts, self.at, Budget(prompts=1)):
            for name, tensor in gradient.items():
                squares[name] = squares.get(name, 0.0) + tensor.double().square() / len(prompts)

        def information(slot: int) -> float:
            values = [part.of(squares[part.name]).flatten() for part in parts(pair, slot)]
            total = torch.cat(values)
            return float(total.mean() if self.per_weight else total.sum())

        return by_weight(pair, prompts, information)
