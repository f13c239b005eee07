"""A learned mask of sites."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.gated import Differentiable, Gates
from kgbench.engine.gradients import differentiating
from kgbench.engine.site_sets import all_sites, token_cells
from kgbench.engine.weights import changed
from kgbench.errors import InputError
from kgbench.localizers._base import ScoringLocalizer
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores

LOW, HIGH, TEMPERATURE = -0.1, 1.1, 2 / 3
"""Limits and temperature of the hard-concrete distribution (arXiv 1712.01312, section 4)."""
SHIFT = TEMPERATURE * math.log(-LOW / HIGH)
"""P(gate > 0) = sigmoid(logit - SHIFT), equation 12 of arXiv 1712.01312."""
BETAS = (0.9, 0.95)
"""Betas of Adam: a short memory lets a nearly closed gate open again."""


def drawn_gates(
    logits: Float[Tensor, "slot region"], noise: Float[Tensor, "prompt slot region"]
) -> Float[Tensor, "prompt slot region"]:
    """Gates from 0 to 1, drawn from the hard-concrete distribution (arXiv 1712.01312, section 4).

    The gradient is that before the limits (straight through, arXiv 1308.3432). That of the limits
    jumps, so that the last bit of a logit would decide whether a site learns from a draw at a limit,
    and scores would be others on another processor.

    Args:
        logits: Of the gates.
        noise: Uniform on (0, 1).
    """
    stretched = ((noise.logit() + logits) / TEMPERATURE).sigmoid() * (HIGH - LOW) + LOW
    return stretched + (stretched.clamp(0, 1) - stretched).detach()


@dataclass(frozen=True)
class MaskGraft(ScoringLocalizer):
    """Sites to graft, learned: one hard-concrete gate per site under an L0 budget.

    Adam maximises the targets' mean log-probability under sampled grafts; gates are drawn again for
    each prompt at each step. The expected number of open gates starts at the budget, with all gates
    equal, and a Lagrange multiplier holds it there from both sides (arXiv 1910.04732, without its
    schedule: a mask that starts with all sites open and closes them step by step drops sites that
    matter only once others are closed). The score is a gate's final logit. Version 1 had the
    gradient of the limit, see `drawn_gates`.
    """

    name = "mask_graft"
    version = "2"
    needs = frozenset({"donor", "gradients"})
    cost = "training"
    paper = "arXiv 1712.01312"
    about = "learned mask of sites within a budget of open ones (hard-concrete gates)"
    score_meaning = "logit of the site's gate"

    budget: float = 0.1
    """Expected number of open sites; below 1, their share of all sites."""
    steps: int = 200
    """Steps of Adam; each draws a sample of prompts."""
    rate: float = 0.1
    """Learning rate of the logits, and of the multiplier's ascent."""
    sample: int = 16
    """Most prompts in a sample."""
    by_region: bool = True
    """A gate for each region; otherwise one for all tokens of a component, which masks weights as
    static grafting does."""
    seed: int = 0
    """Of the gates and samples drawn."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            InputError: A parameter is out of range.
        """
        if self.budget <= 0 or self.steps < 1 or self.rate <= 0 or self.sample < 1:
            raise InputError(
                "mask_graft takes a budget and a rate above 0, and steps and a sample of at least 1"
            )

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """Logits of the gates after training."""
        with differentiating():
            logits = _Mask(self, pair, prompts).train()
        return dict(zip(all_sites(pair, prompts), logits.flatten().tolist(), strict=True))

    def readings(self, prompts: int) -> int:
        """Every step reads a sample."""
        return self.steps * min(self.sample, prompts)


class _Mask:
    """The training of a mask."""

    def __init__(self, method: MaskGraft, pair: ModelPair, prompts: Sequence[Prompt]) -> None:
        self.method, self.pair = method, pair
        # A canonical order, so that the draws do not depend on the order of the prompts.
        self.prompts = sorted(prompts, key=lambda p: (p.text, p.target, p.name))
        self.model, self.slots, self.changed = (
            Differentiable(pair),
            pair.slots.default,
            changed(pair),
        )
        self.regions = list(dict.fromkeys(site.region for site in all_sites(pair, prompts)))
        self.generator = torch.Generator().manual_seed(method.seed)
        shape = len(self.slots), len(self.regions) if method.by_region else 1
        n = math.prod(shape)
        self.share = min(0.99, method.budget if method.budget < 1 else method.budget / n)
        self.logits = torch.full(
            shape,
            math.log(self.share / (1 - self.share)) + SHIFT,
            dtype=torch.float64,
            requires_grad=True,
        )

    def train(self) -> Float[Tensor, "slot region"]:
        """Run all steps; the logits after the last one."""
        optimizer = torch.optim.Adam([self.logits], lr=self.method.rate, betas=BETAS)
        multiplier = 0.0
        for _ in range(self.method.steps):
            order = torch.randperm(len(self.prompts), generator=self.generator)
            sample = order[: self.method.sample].tolist()
            excess = (self.logits - SHIFT).sigmoid().mean() / self.share - 1
            torch.autograd.backward(multiplier * excess)
            self._accumulate([self.prompts[i] for i in sample])
            optimizer.step()
            optimizer.zero_grad()
            multiplier += self.method.rate * float(excess.detach())
        return self.logits.detach().expand(-1, len(self.regions))

    def _accumulate(self, prompts: Sequence[Prompt]) -> None:
        """Accumulate the gradient of the negative mean log-probability under sampled gates."""
        noise = torch.rand(
            len(prompts), *self.logits.shape, dtype=torch.float64, generator=self.generator
        ).clamp(1e-6, 1 - 1e-6)

        def accumulate(indices: list[int]) -> None:
            batch = [prompts[i] for i in indices]
            gates = self._gates(batch, noise[indices])
            loss = -self.model.logprobs(batch, gates).sum() / len(prompts)
            if loss.requires_grad:  # False if recipient and donor have equal weights everywhere
                torch.autograd.backward(loss)

        deque(self.model.each(prompts, accumulate), maxlen=0)

    def _gates(
        self, prompts: Sequence[Prompt], noise: Float[Tensor, "prompt slot region"]
    ) -> Gates:
        """Gates [prompt, token] of each slot whose weights changed; padding has region 0."""
        gates = drawn_gates(self.logits, noise).expand(-1, -1, len(self.regions))
        cells = [token_cells(self.pair, prompt) for prompt in prompts]
        index = torch.zeros(len(cells), max(map(len, cells)), dtype=torch.int64)
        for row, names in enumerate(cells):
            for token, name in enumerate(names):
                index[row, token] = self.regions.index(name)
        by_token = gates.gather(2, index[:, None].expand(-1, len(self.slots), -1)).to(
            self.pair.device, self.pair.dtype
        )
        by_slot = {}
        for slot, gate in zip(self.slots, by_token.unbind(1), strict=True):
            if slot in self.changed:
                by_slot[slot] = gate
        return by_slot
