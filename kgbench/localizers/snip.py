"""Change of the weights times gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.gradients import weight_gradients
from kgbench.engine.treatment import baseline_donor
from kgbench.engine.weights import parts
from kgbench.localizers._base import ScoringLocalizer, one_of
from kgbench.localizers._credit import by_weight
from kgbench.models.pair import ModelPair
from kgbench.sites import RECIPIENT, SiteScores


@dataclass(frozen=True)
class Snip(ScoringLocalizer):
    """Σ |(W' - W) ⊙ ∂m/∂W| over the weights of a component, m the targets' mean log-probability.

    Connection sensitivity (arXiv 1810.02340, equation 5: the absolute value of the gradient over
    all examples), for a change of weights instead of their removal (arXiv 2402.05162). It is not
    divided by its sum over the model, which does not affect rankings, so the score is in nats. All
    tokens share the weights, so all regions of a component score alike.
    """

    name = "snip"
    needs = frozenset({"donor", "gradients"})
    cost = "backward"
    paper = "arXiv 1810.02340"
    about = "change of the weights times gradient, absolute values summed; all regions alike"
    score_meaning = "|change of the weights × gradient|, summed (nats)"

    at: str = one_of(RECIPIENT, RECIPIENT, "sft")
    """At whose weights the gradient is taken."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """One value per component of a layer, equal in all regions."""
        donor = pair.donor(baseline_donor(pair))
        gradient: dict[str, Tensor] = {}
        for batch in weight_gradients(pair, prompts, self.at):
            for name, tensor in batch.items():
                gradient[name] = gradient.get(name, 0.0) + tensor / len(prompts)

        def sensitivity(name: str) -> Tensor:
            change = donor.get_parameter(name) - pair.recipient.get_parameter(name)
            return (change * gradient[name]).abs().double()

        with torch.no_grad():
            products = {name: sensitivity(name) for name in gradient}
            return by_weight(
                pair,
                prompts,
                lambda slot: sum(float(p.of(products[p.name]).sum()) for p in parts(pair, slot)),
            )
