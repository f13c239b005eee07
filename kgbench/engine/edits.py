"""The treatment of one token in a forward pass: weight sets, edits of activations, cuts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from kgbench.models.tensors import hash_tensors

POINTS = ("resid_pre", "attn_out", "mlp_out", "resid_post")
"""Hook points: a layer's input, the outputs of attention and MLP, and the layer's output.

Granite multiplies `attn_out` and `mlp_out` by `residual_multiplier` after the hook, before they are
added to the residual stream.
"""


HEADS = "heads"
"""A further hook point: the outputs of a layer's attention heads side by side, the input of `o`."""


class Hook(NamedTuple):
    """One point of one layer."""

    layer: int
    point: str
    """One of `POINTS`, or `HEADS`."""


class Values:
    """A constant tensor, compared by content."""

    __slots__ = ("_key", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()
        self._key = hash_tensors([("", self.tensor)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


class SourceRun:
    """A source run of the same prompt, from which activations are copied.

    It has one treatment per token, and runs compare by their treatments.
    """

    __slots__ = ("_hash", "treatments")

    def __init__(self, treatments: Sequence[Treatment]) -> None:
        self.treatments = tuple(treatments)
        self._hash = hash(self.treatments)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, SourceRun)
            and self._hash == other._hash
            and self.treatments == other.treatments
        )

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Copy:
    """Replace the activation by that of another run at the same token."""

    hook: Hook
    source: SourceRun
    basis: Values | None = None
    """Orthonormal rows [k, width]: only the component in their span is copied."""


@dataclass(frozen=True)
class Write:
    """Replace the activation by a constant."""

    hook: Hook
    value: Values
    """[width]"""


@dataclass(frozen=True)
class Add:
    """Add a constant to the activation."""

    hook: Hook
    value: Values
    """[width]"""


Edit = Copy | Write | Add


@dataclass(frozen=True)
class Cut:
    """Cut a token's attention to some tokens in all heads of a layer, but not to itself."""

    layer: int
    keys: frozenset[int]
    """Tokens of the prompt."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """Treatment of one token; equal tokens with equal treatments up to here compute the same."""

    weights: bytes
    """Weight set of each slot of the model: 0 for the recipient, then the donors in order."""
    edits: tuple[Edit, ...] = ()
    """Edits of activations; several at one hook apply in this order."""
    cuts: tuple[Cut, ...] = ()
    """Attention edges of the token that are cut."""
    scale: float = 1.0
    """A donor's weights W' are replaced by W + scale (W' - W), W the recipient's."""
    heads: tuple[tuple[int, int, int], ...] = ()
    """(slot, head, weight set) of attention heads whose weight set is not their slot's, in order."""


def sources(treatments: Sequence[Treatment]) -> Iterator[SourceRun]:
    """Distinct runs that treatments copy from, in topological order: sources come first."""
    seen: set[SourceRun] = set()

    def visit(row: Sequence[Treatment]) -> Iterator[SourceRun]:
        for treatment in row:
            for edit in treatment.edits:
                if isinstance(edit, Copy) and edit.source not in seen:
                    seen.add(edit.source)
                    yield from visit(edit.source.treatments)
                    yield edit.source

    return visit(treatments)
