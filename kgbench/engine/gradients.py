"""Derivatives of the targets' log-probability by gates, activations and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine.edits import Hook
from kgbench.engine.gated import Differentiable, Touch
from kgbench.engine.plan import Budget
from kgbench.engine.treatment import donor_index, n_heads
from kgbench.models.lora import plain_names
from kgbench.models.pair import ModelPair
from kgbench.sites import HEADED

Effects = list[Float[np.ndarray, "place token"]]
"""Effects of each prompt, in nats."""


def graft_effects(pair: ModelPair, prompts: Sequence[Prompt], at: float = 0.0) -> Effects:
    """First-order effect of grafting each default slot at each token: ⟨∂m/∂y, (W' - W) x⟩.

    m is the target's log-probability, x and y the input and output of the slot's module. Each batch
    takes one forward and one backward.

    Args:
        pair: The models.
        prompts: Prompts of any lengths.
        at: Point of the derivative: all default components at W + at (W' - W), final norm and head
            the recipient's.

    Returns:
        For each prompt [default slot, token].
    """
    return _gate_effects(pair, prompts, dict.fromkeys(pair.slots.default), at)


def head_slots(pair: ModelPair) -> list[tuple[int, int]]:
    """Slot and number of each attention head of `q`, `k`, `v` and `o`."""
    places = list[tuple[int, int]]()
    for slot, count in _head_counts(pair).items():
        places += product([slot], range(count))
    return places


def _head_counts(pair: ModelPair) -> dict[int, int]:
    sites = pair.slots.sites
    headed = [slot for slot in pair.slots.default if sites[slot][1] in HEADED]
    return {slot: n_heads(pair, sites[slot][1]) for slot in headed}


def head_effects(pair: ModelPair, prompts: Sequence[Prompt]) -> Effects:
    """First-order effect of grafting each attention head at each token, as `graft_effects`.

    Returns:
        For each prompt [head, token], heads in the order of `head_slots`.
    """
    return _gate_effects(pair, prompts, _head_counts(pair), 0.0)


def _gate_effects(
    pair: ModelPair, prompts: Sequence[Prompt], counts: Mapping[int, int | None], at: float
) -> Effects:
    """Derivatives by the gates of some slots, or of so many heads of them, all at one value."""
    model = Differentiable(pair)

    def places(batch: Sequence[int]) -> Tensor:
        of_batch, gates = [prompts[i] for i in batch], {}
        for slot, count in counts.items():
            gate = _gate(pair, of_batch, at)
            several = gate if count is None else gate[..., None].repeat(1, 1, count)
            gates[slot] = several.requires_grad_()
        by_gate = torch.autograd.grad(model.logprobs(of_batch, gates).sum(), list(gates.values()))
        columns = [each.reshape(*each.shape[:2], -1) for each in by_gate]
        return torch.cat(columns, dim=-1).movedim(-1, 0)

    return _effects(model, prompts, places)


def patch_effects(pair: ModelPair, prompts: Sequence[Prompt], hooks: Sequence[Hook]) -> Effects:
    """First-order effect of copying the donor's activation at each hook and token: ⟨∂m/∂h, h' - h⟩.

    m is the target's log-probability, h the recipient's activation and h' the donor's. Each batch
    takes two forwards and one backward.

    Args:
        pair: The models.
        prompts: Prompts of any lengths.
        hooks: Hook points of the copied activations.

    Returns:
        For each prompt [hook, token].
    """
    model = Differentiable(pair)

    def places(batch: Sequence[int]) -> Tensor:
        of_batch = [prompts[i] for i in batch]
        theirs, ours = _Record(), _Record()
        with torch.no_grad():
            everywhere = dict.fromkeys(range(len(model.wiring.slots)), _gate(pair, of_batch, 1.0))
            model.logprobs(of_batch, everywhere, theirs.at(hooks))
        gradients = torch.autograd.grad(
            model.logprobs(of_batch, touches=ours.at(hooks)).sum(),
            [ours.seen[hook] for hook in hooks],
        )
        values = []
        for hook, gradient in zip(hooks, gradients, strict=True):
            change = theirs.seen[hook] - ours.seen[hook].detach()
            values.append((change * gradient).sum(-1))
        return torch.stack(values)

    return _effects(model, prompts, places)


def weight_gradients(
    pair: ModelPair, prompts: Sequence[Prompt], model: str, budget: Budget | None = None
) -> Iterator[Mapping[str, Tensor]]:
    """Derivatives by all weights of one model, batch by batch.

    Args:
        pair: The models.
        prompts: Prompts of any lengths.
        model: `recipient`, or a donor's name; `sft` also denotes the only donor.
        budget: Limits of one forward; `Budget(prompts=1)` gives one derivative per prompt.

    Yields:
        Derivative of the sum of a batch's log-probabilities by each parameter, by name; for a
        low-rank donor, by its merged weights.
    """
    # A low-rank donor need not be merged: the derivative by the merged weights W + BA equals that
    # by its base weights W.
    led = copy(pair)
    led.recipient = (pair.recipient, *pair.donors.values())[donor_index(pair, model)]
    run, names = Differentiable(led, budget), plain_names(led.recipient)
    leaves = {}
    for name in names.values():
        leaves[name] = led.recipient.get_parameter(name).detach().requires_grad_()

    def gradients(batch: Sequence[int]) -> Sequence[Tensor]:
        with differentiating():
            total = run.logprobs([prompts[i] for i in batch], weights=leaves).sum()
            return torch.autograd.grad(total, list(leaves.values()))

    for _, of_batch in run.each(prompts, gradients):
        yield dict(zip(names, of_batch, strict=True))


class _Record:
    """Activations at hooks in one forward, each a tensor that derivatives can be taken by."""

    def __init__(self) -> None:
        self.seen: dict[Hook, Tensor] = {}

    def at(self, hooks: Sequence[Hook]) -> dict[Hook, Touch]:
        return {hook: partial(self._note, hook) for hook in hooks}

    def _note(self, hook: Hook, h: Tensor) -> Tensor:
        fresh = torch.is_grad_enabled() and not h.requires_grad
        self.seen[hook] = h.detach().requires_grad_() if fresh else h
        return self.seen[hook]


def _gate(pair: ModelPair, prompts: Sequence[Prompt], value: float) -> Tensor:
    """Equal gates [prompt, token] at all tokens of some prompts."""
    shape = (len(prompts), max(len(pair.encoded(prompt).ids) for prompt in prompts))
    return torch.full(shape, value, dtype=pair.dtype, device=pair.device)


def _effects(
    model: Differentiable,
    prompts: Sequence[Prompt],
    places: Callable[[list[int]], Float[Tensor, "place prompt token"]],
) -> Effects:
    """Effects of each prompt, of those of each batch, without padding."""
    effects: Effects = [np.empty(0)] * len(prompts)
    with differentiating():
        for batch, values in model.each(prompts, places):
            array = values.double().cpu().numpy()
            for row, index in enumerate(batch):
                effects[index] = array[:, row, : len(model.pair.encoded(prompts[index]).ids)]
    return effects


@contextmanager
def differentiating() -> Iterator[None]:
    """Enable autograd, also inside the caller's inference mode."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield
