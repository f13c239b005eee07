"""Rotary positions whose angles depend on the length of the prompt: `dynamic` and `longrope`.

transformers takes their angles from the largest position of a forward, so that a short prompt would
have those of the longest one of its batch, a token those of the tokens so far, and with `dynamic`
any prompt those of a longer one before it. Invariant: prompts of one forward have equal angles, and
these are the ones that each of them has alone in models that have run nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rotary:
    """The modules of a model that compute such angles."""

    modules: Mapping[nn.Module, tuple[tuple[int, int], ...]]
    """For each module, the range of lengths in which they change, once per kind of layer: below and
    above it they are constant."""

    @classmethod
    def of(cls, model: nn.Module) -> Rotary:
        """Find them."""
        modules = {}
        for module in model.modules():
            if hasattr(module, "rope_type") and (ranges := _ranges(module)):
                modules[module] = ranges
        return cls(modules)

    def angles(self, length: int) -> tuple[int, ...]:
        """Equal for lengths whose prompts have equal angles."""
        clamped: list[int] = []
        for ranges in self.modules.values():
            clamped += (min(max(length, low), high) for low, high in ranges)
        return tuple(clamped)

    def at(self, length: int) -> dict[nn.Module, Callable[..., object]]:
        """Forwards of the modules in place of their own, with the angles of prompts of a length."""
        return {module: _at(module, length) for module in self.modules}


def _ranges(module: Any) -> tuple[tuple[int, int], ...]:
    """Of a rotary module, whose kinds are one for all layers or by kind of layer."""
    parameters = module.config.rope_parameters
    by_layer = module.rope_type if isinstance(module.rope_type, dict) else {None: module.rope_type}
    ranges = []
    for layer, kind in by_layer.items():
        if "dynamic" in kind:
            ranges.append((int(module.original_max_seq_len), 1 << 62))
        elif kind == "longrope":
            limit = int(
                (parameters if layer is None else parameters[layer])[
                    "original_max_position_embeddings"
                ]
            )
            ranges.append((limit, limit + 1))
    return tuple(ranges)


def _at(module: Any, length: int) -> Callable[..., object]:
    # A copy, since angles once computed are kept; the configuration is read only.
    angles = deepcopy(module, {id(module.config): module.config}).forward

    def forward(x: Tensor, position_ids: Tensor, *others: Any, **options: Any) -> object:
        shape = *position_ids.shape[:-1], 1
        angles(x, position_ids.new_zeros(shape), *others, **options)  # forgets longer prompts
        last = position_ids.new_full(shape, length - 1)
        rotations = angles(x, torch.cat([position_ids, last], dim=-1), *others, **options)
        return tuple(part[..., :-1, :] for part in rotations)

    return forward
