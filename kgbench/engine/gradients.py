"""Derivatives of the targets' log-probability: by gates, by activations and by weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.edits import Hook
from kgbench.engine.gated import Differentiable, Touch
from kgbench.engine.plan import Budget
from kgbench.engine.treatment import Slots, donor_index
from kgbench.models.lora import plain_names
from kgbench.models.pair import ModelPair
from kgbench.sites import GROUPS

__all__ = ["default_slots", "differentiating", "graft_effects", "patch_effects", "weight_gradients"]

Effects = list[Float[np.ndarray, "place token"]]
"""For each prompt, nats for each of some places and each of its tokens."""


def default_slots(pair: ModelPair) -> list[int]:
    """Slots of the components that a graft gives by default: all but final norm and head."""
    return [
        slot
        for slot, (_, component) in enumerate(Slots(pair.family, pair.n_layers).sites)
        if component in GROUPS["all"]
    ]


def graft_effects(pair: ModelPair, prompts: Sequence[Prompt], at: float = 0.0) -> Effects:
    """First-order effect of grafting each default slot at each token: ⟨∂m/∂y, (W' - W) x⟩, m the target's log-probability.

    Args:
        pair: The models.
        prompts: Prompts of any lengths; one forward and one backward for each batch of them.
        at: Where the derivative is taken: all default components at W + at (W' - W), final norm and head the recipient's.

    Returns:
        For each prompt [default slot, token].
    """
    model, slots = Differentiable(pair), default_slots(pair)
    effects: Effects = [np.empty(0)] * len(prompts)
    with differentiating():
        for batch in model.batches(prompts):
            some = [prompts[i] for i in batch]
            shape = (len(some), max(len(pair.encoded(p).ids) for p in some))
            gates = {
                slot: torch.full(
                    shape, at, dtype=pair.dtype, device=pair.device, requires_grad=True
                )
                for slot in slots
            }
            by_gate = torch.autograd.grad(model.logprobs(some, gates).sum(), list(gates.values()))
            _put(effects, pair, prompts, batch, torch.stack(by_gate))
    return effects


def patch_effects(pair: ModelPair, prompts: Sequence[Prompt], hooks: Sequence[Hook]) -> Effects:
    """First-order effect of copying the donor's activation into the recipient's run: ⟨∂m/∂h, h' - h⟩ at each hook and token.

    Args:
        pair: The models.
        prompts: Prompts of any lengths; two forwards and one backward for each batch of them.
        hooks: Where activations are copied.

    Returns:
        For each prompt [hook, token].
    """
    model = Differentiable(pair)
    effects: Effects = [np.empty(0)] * len(prompts)
    with differentiating():
        for batch in model.batches(prompts):
            some = [prompts[i] for i in batch]
            theirs, ours = _Record(), _Record()
            shape = (len(some), max(len(pair.encoded(p).ids) for p in some))
            with torch.no_grad():
                everywhere = dict.fromkeys(
                    range(len(model.wiring.slots)),
                    torch.ones(shape, dtype=pair.dtype, device=pair.device),
                )
                model.logprobs(some, everywhere, theirs.at(hooks))
            gradients = torch.autograd.grad(
                model.logprobs(some, touches=ours.at(hooks)).sum(),
                [ours.seen[hook] for hook in hooks],
            )
            changes = (
                ((theirs.seen[h] - ours.seen[h].detach()) * g).sum(-1)
                for h, g in zip(hooks, gradients, strict=True)
            )
            _put(effects, pair, prompts, batch, torch.stack(list(changes)))
    return effects


def weight_gradients(
    pair: ModelPair, prompts: Sequence[Prompt], model: str, budget: Budget | None = None
) -> Iterator[Mapping[str, Tensor]]:
    """Derivatives by all weights of one model, batch by batch.

    Args:
        pair: The models.
        prompts: Prompts of any lengths.
        model: `recipient`, or a donor's name; `sft` is the only donor whatever its name.
        budget: How much is computed at once; with `Budget(prompts=1)` each prompt's derivative comes by itself.

    Yields:
        By the name of each parameter, the derivative of the sum of a batch's log-probabilities; of a low-rank donor, by merged weights.
    """
    # The model's own modules compute, so that a low-rank donor's weights need not be merged: the derivative by its base's is the same.
    led = copy(pair)
    led.recipient = (pair.recipient, *pair.donors.values())[donor_index(pair, model)]
    run, own = Differentiable(led, budget), plain_names(led.recipient)
    leaves = {
        name: led.recipient.get_parameter(name).detach().requires_grad_() for name in own.values()
    }
    for batch in run.batches(prompts):
        with differentiating():
            total = run.logprobs([prompts[i] for i in batch], weights=leaves).sum()
            found = torch.autograd.grad(total, list(leaves.values()))
        yield dict(zip(own, found, strict=True))


class _Record:
    """Activations at hooks, as seen in one forward; each is a place that derivatives can be taken by."""

    def __init__(self) -> None:
        self.seen: dict[Hook, Tensor] = {}

    def at(self, hooks: Sequence[Hook]) -> dict[Hook, Touch]:
        return {hook: partial(self._note, hook) for hook in hooks}

    def _note(self, hook: Hook, h: Tensor) -> Tensor:
        fresh = torch.is_grad_enabled() and not h.requires_grad
        self.seen[hook] = h.detach().requires_grad_() if fresh else h
        return self.seen[hook]


def _put(
    effects: Effects,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    batch: Sequence[int],
    found: Float[Tensor, "place prompt token"],
) -> None:
    """File what was found for each prompt of a batch, without padding."""
    array = found.double().cpu().numpy()
    for row, index in enumerate(batch):
        effects[index] = array[:, row, : len(pair.encoded(prompts[index]).ids)]


@contextmanager
def differentiating() -> Iterator[None]:
    """Autograd on, whatever the caller's mode."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield
