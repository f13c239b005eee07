"""Additive 4-D attention masks of layers with full and with sliding-window attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

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
    """Additive attention masks: 0 for visible keys, the type's minimum for hidden ones."""

    whole: Float[Tensor, "row 1 token token"]
    """Mask of layers with full attention."""
    narrow: Float[Tensor, "row 1 token token"] | None
    """Mask of layers with a window; None if the window hides nothing in this batch."""
    windows: Windows

    def of(self, layer: int) -> Float[Tensor, "row 1 token token"]:
        """The mask of a layer."""
        return self.own().get(layer, self.whole)

    def own(self) -> Mapping[int, Float[Tensor, "row 1 token token"]]:
        """Masks of the layers that differ from the whole one."""
        return {} if self.narrow is None else dict.fromkeys(self.windows.layers, self.narrow)


def make_masks(
    pair: ModelPair,
    ends: Int[np.ndarray, "row token"],
    depths: Int[np.ndarray, "row token"],
) -> Masks:
    """Masks of a batch.

    Args:
        pair: The models.
        ends: Tokens i to ends[i] - 1 of a row, i and its descendants in a token tree, attend to i.
        depths: Position of each token in its prompt, which windows count by; in a token tree it
            differs from the position in the row.

    Raises:
        NotApplicableError: The models limit attention in a way that is unknown here.
    """
    limits = known_windows(pair)
    tokens = np.arange(ends.shape[1])
    earlier = (tokens[:, None] >= tokens) & (tokens[:, None] < ends[:, None, :])
    unlimited = _additive(earlier, pair)
    if not limits.layers or depths.max(initial=0) < limits.size:
        return Masks(unlimited, None, limits)
    near = depths[:, :, None] - depths[:, None, :] < limits.size
    return Masks(unlimited, _additive(earlier & near, pair), limits)


def _additive(
    visible: Bool[np.ndarray, "row token token"], pair: ModelPair
) -> Float[Tensor, "row 1 token token"]:
    hidden = ~torch.from_numpy(visible).to(pair.device)
    mask = torch.zeros(hidden.shape, dtype=pair.dtype, device=pair.device)
    return mask.masked_fill_(hidden, torch.finfo(pair.dtype).min)[:, None]
