"""Differentiable forward: interpolation between recipient and donor per slot and token.

Weight-bearing modules are linear in their weights, so y + g (y' - y), with output y of the
recipient's module, y' of the donor's and a gate g per slot and token, equals the module with
weights W + g (W' - W) at that token. A gate of 0 is the recipient, a gate of 1 the donor, and the
derivative by a gate is the first-order effect of the graft at its slot and token. A slot of attention
heads may have a gate per head: of the columns of the output, or for `o` of those of the input x, as
y + W' (g x) - W (g x), without the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call

from kgbench.data import Prompt
from kgbench.engine.edits import Hook
from kgbench.engine.engine import chosen_budget
from kgbench.engine.forward import Forward, Socket, Wiring, installed, replacements
from kgbench.engine.out_of_memory import less_at_once
from kgbench.engine.plan import Budget
from kgbench.engine.treatment import donor_index
from kgbench.errors import InputError
from kgbench.metrics import Read, read_logprobs
from kgbench.models.pair import ModelPair

Gates = Mapping[int, Float[Tensor, "prompt token"] | Float[Tensor, "prompt token head"]]
"""Gates by slot; missing slots have gate 0."""

R = TypeVar("R")

Touch = Callable[[Tensor], Tensor]
"""Function that replaces an activation [prompt, token, width]."""


class Differentiable:
    """Log-probabilities of prompts' targets as functions of gates and activations, for autograd.

    Rows are padded on the right, which causal attention never sees. Neither weights nor flags such
    as `requires_grad` of the models are changed.

    Args:
        pair: The models; the donor is that of the configuration `SFT`.
        budget: Limits of one forward; by default those of the pair's device.

    Raises:
        InputError: The models are on several devices.
    """

    def __init__(self, pair: ModelPair, budget: Budget | None = None) -> None:
        devices = {weight.device for weight in pair.recipient.parameters()}
        if len(devices) > 1:
            raise InputError(
                f"the models are on {', '.join(sorted(map(str, devices)))}, and methods that take "
                "derivatives need them on one device: leave out --device-map, or choose a method "
                "that takes none (see `kgbench ls localizers`)"
            )
        self.pair, self.wiring, self.budget = pair, Wiring(pair), budget or chosen_budget(pair)
        self.donor = donor_index(pair, "sft")

    def batches(self, prompts: Sequence[Prompt]) -> Iterator[list[int]]:
        """Indices of prompts in batches of similar length and equal angles within the budget."""
        lengths = [len(self.pair.encoded(prompt).ids) for prompt in prompts]
        angles = list(map(self.wiring.rotary.angles, lengths))
        batch: list[int] = []
        for index in sorted(range(len(prompts)), key=lengths.__getitem__):
            if batch and (
                (len(batch) + 1) * lengths[index] > self.budget.tokens
                or len(batch) == self.budget.prompts
                or angles[index] != angles[batch[0]]
            ):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def each(
        self, prompts: Sequence[Prompt], compute: Callable[[list[int]], R]
    ) -> Iterator[tuple[list[int], R]]:
        """Compute something of each batch of some prompts.

        Where the device runs out of memory, this and all later batches are of half as many prompts,
        with a warning.

        Args:
            prompts: Prompts of any lengths.
            compute: Of the indices of a batch.

        Yields:
            The indices, and what was computed.

        Raises:
            InputError: The memory is too small for one prompt.
        """
        left = list(self.batches(prompts))
        while left:
            batch = left[0]
            try:
                result = compute(batch)
            except RuntimeError as error:
                less_at_once(self.pair, len(batch) > 1, error)
                self.budget = replace(self.budget, prompts=len(batch) // 2)
                halves = list[list[int]]()
                for part in left:
                    half = range(0, len(part), len(batch) // 2)
                    halves += [part[start : start + half.step] for start in half]
                left = halves
                continue
            yield left.pop(0), result

    def logprobs(
        self,
        prompts: Sequence[Prompt],
        gates: Gates | None = None,
        touches: Mapping[Hook, Touch] | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Float[Tensor, " prompt"]:
        """Log-probability (nats) of each prompt's answer.

        The result is part of the autograd graph of gates, touched activations and weights.

        Args:
            prompts: One batch, of any lengths; the axis `token` has the length of the longest.
            gates: Gates by slot; those of final norm and head take effect where answers are read only.
            touches: Functions of activations, by hook.
            weights: Replacements for parameters of the recipient, by name.
        """
        batch = self._batch(prompts)
        inputs = {"input_ids": batch.ids, "position_ids": batch.positions, "use_cache": False}
        edits = {}
        for hook, touch in (touches or {}).items():
            edits[hook] = partial(_shaped, touch, batch.ids.shape)
        with self.pair.lock:
            gated = replacements(self.wiring, self._gated(gates or {}, batch), edits)
            rotary = self.wiring.rotary.at(batch.ids.shape[1])
            with installed({**gated, **rotary}):
                out = functional_call(self.wiring.model, dict(weights or {}), (), inputs)
        logits = (
            out.logits if out.logits.dtype in (torch.float32, torch.float64) else out.logits.float()
        )
        reads = read_logprobs(logits, batch.reads)
        return reads.new_zeros(len(prompts)).index_add(0, batch.rows, reads)

    def _batch(self, prompts: Sequence[Prompt]) -> _Batch:
        encoded = list(map(self.pair.encoded, prompts))
        width = max(len(each.ids) for each in encoded)
        ids, rows, reads = [], [], list[Read]()
        for row, each in enumerate(encoded):
            # Padded with the last token, since models warn about padding tokens without a mask.
            ids.append([*each.ids, *each.ids[-1:] * (width - len(each.ids))])
            rows += [row] * len(each.answer)
            reads += each.answer
        tokens = [read.token for read in reads]
        as_tensor = partial(torch.tensor, device=self.pair.device)
        return _Batch(as_tensor(ids), as_tensor(rows), as_tensor(tokens), reads)

    def _gated(
        self, gates: Gates, batch: _Batch
    ) -> Callable[[Socket, Sequence[Forward]], Forward | None]:
        """Replacement of a socket under some gates, given the forwards of its weight sets."""
        ranges = _ranges(gates)

        def override(socket: Socket, forwards: Sequence[Forward]) -> Forward | None:
            component = self.wiring.slots.sites[socket.slots[0]][1]
            gate = _Gate.of(socket, gates, ranges, component == "o")
            if socket.is_head:
                return partial(_read_out, batch, gate, forwards[0], forwards[self.donor])
            if gate is None:
                return None
            return partial(_between, gate, forwards[0], forwards[self.donor])

        return override


@dataclass(frozen=True)
class _Batch:
    ids: Int[Tensor, "prompt token"]
    rows: Int[Tensor, " read"]
    """Number of the prompt of each read."""
    tokens: Int[Tensor, " read"]
    reads: Sequence[Read]

    @cached_property
    def positions(self) -> Int[Tensor, "prompt token"]:
        return torch.arange(self.ids.shape[1], device=self.ids.device).expand_as(self.ids)


def _ranges(gates: Gates) -> dict[int, tuple[float, float]]:
    """Smallest and largest gate of each slot, with one device sync for all slots."""
    if not gates:
        return {}
    bounds = list[Tensor]()
    for gate in gates.values():
        bounds += gate.detach().aminmax()
    ends = torch.stack(bounds).tolist()
    return dict(zip(gates, zip(ends[::2], ends[1::2], strict=True), strict=True))


@dataclass(frozen=True)
class _Gate:
    """The gates of one module."""

    value: Float[Tensor, "prompt token column"]
    """One column, one for each head, or for a fused module one for each column of its output."""
    at: int | None
    """0 or 1 if all gates have this value: the branch of weight 0 then needs no graph."""
    tokens: int = 1
    """Token dimension of the module's output."""
    of_input: bool = False
    """Whether heads are columns of the module's input."""

    @classmethod
    def of(
        cls,
        socket: Socket,
        gates: Gates,
        ranges: Mapping[int, tuple[float, float]],
        of_input: bool,
    ) -> _Gate | None:
        """Gates of a socket; None if the recipient's module alone gives the output.

        Args:
            socket: The module.
            gates: Gates of all slots.
            ranges: Smallest and largest gate of each slot.
            of_input: Whether heads are columns of the module's input.
        """
        lows, highs = zip(*(ranges.get(slot, (0.0, 0.0)) for slot in socket.slots), strict=True)
        low, high = min(lows), max(highs)
        columns_of = [gates[slot] for slot in socket.slots if slot in gates]
        if not columns_of or (
            low == high == 0 and not any(gate.requires_grad for gate in columns_of)
        ):
            return None
        at = int(low) if low == high and low in (0, 1) else None
        none = columns_of[0].new_zeros(columns_of[0].shape[:2])
        parts = list[Tensor]()
        for slot in socket.slots:
            gate = gates.get(slot, none)
            parts.append(gate if gate.ndim == 3 else gate[..., None])
        if not socket.columns:
            (value,) = parts
            return cls(value, at, socket.place.tokens, of_input and columns_of[0].ndim == 3)
        # Indicator [gate, column]: each output column takes the gate of its slot, or of its head.
        rows = list[Tensor]()
        for part, columns in zip(parts, socket.columns, strict=True):
            for column in columns.reshape(part.shape[-1], -1):
                rows.append(none.new_zeros(socket.width).index_fill(0, column, 1))
        return cls(torch.cat(parts, dim=-1) @ torch.stack(rows), at, socket.place.tokens)

    def broadcast(self, y: Tensor) -> Tensor:
        """Weights of the far branch, broadcastable to the output `y`, which may be flat."""
        value = 1 - self.value if self.at == 1 else self.value
        if value.shape[-1] not in (1, y.shape[-1]):
            value = value.repeat_interleave(y.shape[-1] // value.shape[-1], dim=-1)
        if y.ndim == 2:
            return value.reshape(-1, value.shape[-1])
        return value.reshape(
            *value.shape[:-1], *[1] * (y.ndim - value.ndim), value.shape[-1]
        ).movedim(1, self.tokens)


def _between(
    gate: _Gate, recipient: Forward, donor: Forward, *inputs: Any, **options: Any
) -> Tensor:
    """Output of a module interpolated between recipient and donor."""
    if gate.of_input:
        return _between_heads(replace(gate, at=None), recipient, donor, *inputs)
    if gate.at == 1 and not gate.value.requires_grad:
        return donor(*inputs, **options)
    # The near branch has weight 1 - gate. If all gates are 0 or all are 1, it has weight 1, and the
    # far branch needs no graph of its own: its difference is still the derivative by the gate.
    near, far = (donor, recipient) if gate.at == 1 else (recipient, donor)
    y = near(*inputs, **options)
    with torch.set_grad_enabled(torch.is_grad_enabled() and gate.at is None):
        change = far(*inputs, **options) - y
    return y + (gate.broadcast(y) * change).to(y.dtype)


def _between_heads(gate: _Gate, recipient: Forward, donor: Forward, x: Tensor) -> Tensor:
    """Output of a module of attention heads' outputs; heads are without its bias."""
    part = (gate.broadcast(x) * x).to(x.dtype)
    nothing = x.new_zeros(1, x.shape[-1])
    theirs = donor(part) - donor(nothing)
    return recipient(x) + theirs - (recipient(part) - recipient(nothing))


def _read_out(
    batch: _Batch, gate: _Gate | None, recipient: Forward, donor: Forward, x: Tensor
) -> Tensor:
    """Output of the head where answers are read only."""
    final = x[batch.rows, batch.tokens]
    if gate is None:
        return recipient(final)
    return _between(_Gate(gate.value[batch.rows, batch.tokens], gate.at), recipient, donor, final)


def _shaped(touch: Touch, shape: torch.Size, x: Tensor) -> Tensor:
    """Apply a touch to an activation in the shape [prompt, token, width]; it may come flat."""
    return touch(x) if x.ndim > 2 else touch(x.reshape(*shape, x.shape[-1])).reshape(x.shape)
