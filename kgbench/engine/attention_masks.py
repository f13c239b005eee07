"""Additive 4-D attention masks of layers with full and with sliding-window attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kgbench.engine.indices import Index, Indices
from kgbench.errors import NotApplicableError
from kgbench.models.pair import ModelPair, once_for_each

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"
_KNOWN = (
    "sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "chunk_size_feed_forward",
)


@dataclass(frozen=True)
class Windows:
    """Layers with sliding-window attention, and the size of the window."""

    size: int = 0
    """Number of visible tokens in such a layer, including the token itself."""
    layers: frozenset[int] = frozenset()
    unknown: tuple[str, ...] = ()
    """Kinds of layers, and limits in the configuration, whose masks are unknown."""

    def seen(self, layer: int, token: int) -> int:
        """Number of tokens visible to a token in a layer, including itself."""
        return min(token + 1, self.size) if layer in self.layers else token + 1


def known_windows(pair: ModelPair) -> Windows:
    """Sliding windows of a pair's models, checked for use in masks that replace the model's.

    Raises:
        NotApplicableError: The models limit attention in a way that is unknown here.
    """
    window = windows(pair)
    if window.unknown:
        raise NotApplicableError(
            f"{pair.name} has layers of a kind, or a limit to attention, whose masks are not known "
            f"here ({', '.join(window.unknown)}), and attention is cut by putting a mask in the "
            "place of the layer's own, which would drop it"
        )
    return window


@once_for_each
def windows(pair: ModelPair) -> Windows:
    """Sliding windows of a pair's models.

    They apply to layers that the configuration's `layer_types` lists as windowed; without
    `layer_types`, to all layers.
    """
    config = pair.recipient.config
    size = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or [_WINDOWED if size else _WHOLE] * pair.n_layers
    layers, unknown = set(), []
    for layer, kind in enumerate(kinds):
        if size and kind == _WINDOWED:
            layers.add(layer)
        if kind not in (_WINDOWED, _WHOLE):
            unknown.append(kind)
    unknown += _other_limits(config.to_dict())
    return Windows(size or 0, frozenset(layers), tuple(dict.fromkeys(unknown)))


def _other_limits(config: Mapping[str, Any]) -> list[str]:
    """Keys of nonzero numbers in a configuration that are named after windows or chunks.

    Prompts of the self-test are too short to reveal such limits.
    """
    keys = []
    for key, value in config.items():
        is_limit = ("window" in key or "chunk" in key) and key not in _KNOWN
        if is_limit and isinstance(value, int) and not isinstance(value, bool) and value:
            keys.append(key)
    return keys


@dataclass(frozen=True)
class Masks:
    """Additive attention masks: 0 for visible keys, the type's minimum for hidden ones.

    They are made when they are needed, in the forward of the batch.
    """

    pair: ModelPair
    width: int
    """Tokens of a row, padding included."""
    ends: Index
    """[row, token]; tokens i to ends[i] - 1 of a row, i and its descendants in a token tree, attend
    to i."""
    depths: Index | None
    """Position of each token in its prompt [row, token], which windows count by; None if the window
    hides nothing in this batch."""
    windows: Windows

    @cached_property
    def whole(self) -> Float[Tensor, "row 1 token token"]:
        """Mask of layers with full attention."""
        return self._additive(self._earlier)

    @cached_property
    def _earlier(self) -> Bool[Tensor, "row token token"]:
        device = self.pair.device
        tokens = torch.arange(self.width, device=device)
        queries = tokens[:, None]
        return (queries >= tokens) & (queries < self.ends.on(device)[:, None])

    @cached_property
    def _narrow(self) -> Float[Tensor, "row 1 token token"]:
        """Mask of layers with a window."""
        assert self.depths is not None
        depths = self.depths.on(self.pair.device)
        near = depths[:, :, None] - depths[:, None] < self.windows.size
        return self._additive(self._earlier & near)

    def _additive(self, visible: Tensor) -> Float[Tensor, "row 1 token token"]:
        mask = torch.zeros(visible.shape, dtype=self.pair.dtype, device=visible.device)
        return mask.masked_fill_(~visible, torch.finfo(self.pair.dtype).min)[:, None]

    def of(self, layer: int) -> Float[Tensor, "row 1 token token"]:
        """The mask of a layer."""
        return self._narrow if layer in self.own else self.whole

    @property
    def own(self) -> frozenset[int]:
        """The layers whose mask differs from the whole one."""
        return frozenset() if self.depths is None else self.windows.layers


def make_masks(
    pair: ModelPair,
    ends: Int[np.ndarray, "row token"],
    depths: Int[np.ndarray, "row token"],
    indices: Indices,
) -> Masks:
    """Masks of a batch.

    Args:
        pair: The models.
        ends: As in `Masks`.
        depths: As in `Masks`; in a token tree it differs from the position in the row.
        indices: Those of the batch.

    Raises:
        NotApplicableError: The models limit attention in a way that is unknown here.
    """
    limits = known_windows(pair)
    limited = bool(limits.layers) and depths.max(initial=0) >= limits.size
    at = indices.add(depths) if limited else None
    return Masks(pair, ends.shape[1], indices.add(ends), at, limits)
