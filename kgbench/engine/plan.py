"""Plans: which treatment each token of each prompt gets under each configuration, and where the answer is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8

from kgbench.engine.treatment import Slots, Treatment
from kgbench.errors import InputError
from kgbench.models.encoding import Encoded

__all__ = ["Answers", "Budget", "Plan", "Request", "make_plan"]


@dataclass(frozen=True)
class Request:
    """One prompt under all of its configurations."""

    ids: tuple[int, ...]
    treatments: Int[np.ndarray, "configuration token"]
    """Rows of the plan's table."""
    readouts: tuple[int, ...]
    """Tokens whose next-token logits are asked for."""


@dataclass(frozen=True)
class Plan:
    """What the engine is asked: an executor answers it."""

    table: UInt8[np.ndarray, "treatment slot"]
    """For each distinct treatment, the weight set of each slot."""
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class Budget:
    """How much is computed at once."""

    tokens: int = 512
    """Most token rows in one forward, padding included; more than this leave a CPU's caches and take longer each."""
    prompts: int | None = None
    """Most prompts in one forward."""
    tree: int = 512
    """Most tokens in one token tree; a larger one is divided."""
    logits: int = 1 << 26
    """Most logits held at once: answers × vocabulary."""

    @classmethod
    def on(cls, device: torch.device, prompts: int | None = None) -> Budget:
        """What suits a device: accelerators are slow on few rows."""
        return cls(tokens=cls.tokens if device.type == "cpu" else 8192, prompts=prompts)


@dataclass(frozen=True)
class Answers:
    """Next-token logits of one chunk; row i answers prompt `prompt[i]`, configuration `configuration[i]`, readout `readout[i]`."""

    prompt: Int[torch.Tensor, " answer"]
    configuration: Int[torch.Tensor, " answer"]
    readout: Int[torch.Tensor, " answer"]
    logits: Float[torch.Tensor, "answer vocabulary"]
    token_rows: int
    """Token rows that the chunk's forward computed, without padding."""


def make_plan(
    slots: Slots,
    prompts: Sequence[Encoded],
    treatments: Sequence[Sequence[Sequence[Treatment]]],
    readouts: Sequence[Sequence[int]] | None = None,
) -> Plan:
    """Number the distinct treatments of all prompts.

    Args:
        slots: The places of the pair's models.
        prompts: Encoded prompts.
        treatments: For each prompt, each configuration and each token, its treatment.
        readouts: Tokens to read out, per prompt; by default the last one.

    Raises:
        InputError: There is nothing to plan, or a readout is no token of its prompt.
    """
    if not prompts or not treatments:
        raise InputError("nothing to run: give at least one prompt and one configuration")
    if readouts is not None:
        _check_readouts(prompts, readouts)
    numbers: dict[Treatment, int] = {}
    numbered: dict[tuple[object, ...], list[int]] = {}  # prompts whose regions lie alike have equal rows

    def number(row: Sequence[Treatment], read: tuple[int, ...]) -> list[int]:
        key = (tuple(row), read)
        if key not in numbered:
            numbered[key] = [numbers.setdefault(t, len(numbers)) for t in _without_idle(slots, row, read)]
        return numbered[key]

    requests = []
    for i, prompt in enumerate(prompts):
        read = tuple(readouts[i]) if readouts is not None else (len(prompt.ids) - 1,)
        rows = [number(row, read) for row in treatments[i]]
        requests.append(Request(prompt.ids, np.array(rows, dtype=np.int64).reshape(len(rows), len(prompt.ids)), read))
    table = np.frombuffer(b"".join(t.weights for t in numbers), dtype=np.uint8).reshape(len(numbers), len(slots))
    return Plan(table, tuple(requests))


def _check_readouts(prompts: Sequence[Encoded], readouts: Sequence[Sequence[int]]) -> None:
    if len(readouts) != len(prompts):
        raise InputError(f"readouts are given for {len(readouts)} prompts, expected one list of tokens for each of {len(prompts)}")
    for i, (prompt, read) in enumerate(zip(prompts, readouts, strict=True)):
        if not read or not all(0 <= token < len(prompt.ids) for token in read):
            raise InputError(f"readouts {list(read)} of prompt {i} are not among its tokens: expected some of 0 to {len(prompt.ids) - 1}")


def _without_idle(slots: Slots, row: Sequence[Treatment], readouts: Sequence[int]) -> Iterator[Treatment]:
    """The same treatments without what cannot matter: final norm and head of tokens that are not read out."""
    for token, treatment in enumerate(row):
        if token in readouts:
            yield treatment
            continue
        weights = bytearray(treatment.weights)
        for slot in slots.readout:
            weights[slot] = 0
        yield Treatment(bytes(weights))
