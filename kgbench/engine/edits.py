"""What can be done to activations and attention, token by token, beside the choice of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from kgbench.engine.treatment import Treatment

__all__ = ["POINTS", "Add", "Copy", "Cut", "Edit", "Hook", "Run", "Values", "Write", "sources"]

POINTS = ("resid_pre", "attn_out", "mlp_out", "resid_post")
"""Where activations are read and edited: a layer's input, what attention and MLP add to the stream, and the layer's output.

In Granite, `attn_out` and `mlp_out` are taken before they are multiplied by `residual_multiplier`, so that what is added to the stream is
that much smaller.
"""


class Hook(NamedTuple):
    """One point of one layer."""

    layer: int
    point: str
    """One of `POINTS`."""


class Values:
    """A constant array, compared by its content."""

    __slots__ = ("_key", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        flat = self.tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        self._key = (str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(flat.data).digest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class Run:
    """Another run of the same prompt, one treatment per token, from which activations are copied; compared by its treatments."""

    __slots__ = ("_hash", "treatments")

    def __init__(self, treatments: Sequence[Treatment]) -> None:
        self.treatments = tuple(treatments)
        self._hash = hash(self.treatments)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Run)
            and self._hash == other._hash
            and self.treatments == other.treatments
        )

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Copy:
    """The activation becomes that of another run at the same token."""

    hook: Hook
    source: Run
    basis: Values | None = None
    """Orthonormal rows [k, width]: only the component in their span is copied."""


@dataclass(frozen=True)
class Write:
    """The activation becomes a constant."""

    hook: Hook
    value: Values
    """[width]"""


@dataclass(frozen=True)
class Add:
    """A constant is added to the activation."""

    hook: Hook
    value: Values
    """[width]"""


Edit = Copy | Write | Add


@dataclass(frozen=True)
class Cut:
    """Tokens that a token does not attend to in one layer, in any head; it always attends to itself."""

    layer: int
    keys: frozenset[int]
    """Tokens of the prompt."""


def sources(treatments: Sequence[Treatment]) -> Iterator[Run]:
    """The runs that some treatments copy from, each once, those that the runs themselves copy from first."""
    seen: set[Run] = set()

    def visit(some: Sequence[Treatment]) -> Iterator[Run]:
        for treatment in some:
            for edit in treatment.edits:
                if isinstance(edit, Copy) and edit.source not in seen:
                    seen.add(edit.source)
                    yield from visit(edit.source.treatments)
                    yield edit.source

    return visit(treatments)
