"""Attention masks of layers that see all earlier tokens, and of those that see a sliding window of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kgbench.errors import NotApplicableError
from kgbench.models.pair import ModelPair

__all__ = ["Masks", "Windows", "known_windows", "make_masks", "windows"]

_WINDOWED, _WHOLE = "sliding_attention", "full_attention"
_KNOWN = (
    "sliding_window",
    "max_window_layers",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "chunk_size_feed_forward",
)

_found: WeakKeyDictionary[ModelPair, Windows] = WeakKeyDictionary()


@dataclass(frozen=True)
class Windows:
    """Which layers see the last tokens only, and how many of them."""

    size: int = 0
    """Tokens that such a layer sees, the token itself included."""
    layers: frozenset[int] = frozenset()
    unknown: tuple[str, ...] = ()
    """Kinds of layers, and limits in the configuration, whose masks are not known."""

    def seen(self, layer: int, token: int) -> int:
        """How many tokens a token sees in a layer, itself included."""
        return min(token + 1, self.size) if layer in self.layers else token + 1


def windows(pair: ModelPair) -> Windows:
    """The sliding windows of a pair's models: of the layers that the configuration's `layer_types` names, or of all where it names none."""
    if pair not in _found:
        _found[pair] = _windows(pair)
    return _found[pair]


def known_windows(pair: ModelPair) -> Windows:
    """The same, for masks that stand in the place of the model's own.

    Raises:
        NotApplicableError: The models limit attention in a way that such masks would not keep to.
    """
    found = windows(pair)
    if found.unknown:
        raise NotApplicableError(
            f"{pair.name} has layers of a kind, or a limit to attention, whose masks are not known here ({', '.join(found.unknown)}), and "
            "attention is cut by putting a mask in the place of the layer's own, which would drop it"
        )
    return found


def _windows(pair: ModelPair) -> Windows:
    config = pair.recipient.config
    size = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or [_WINDOWED if size else _WHOLE] * pair.n_layers
    unknown = (
        *(kind for kind in kinds if kind not in (_WINDOWED, _WHOLE)),
        *_other_limits(config.to_dict()),
    )
    return Windows(
        size or 0,
        frozenset(layer for layer, kind in enumerate(kinds) if size and kind == _WINDOWED),
        tuple(dict.fromkeys(unknown)),
    )


def _other_limits(config: Mapping[str, Any]) -> list[str]:
    """Numbers of a configuration that are called windows or chunks: a limit that no prompt of the self-test is long enough to show."""
    named = [key for key in config if ("window" in key or "chunk" in key) and key not in _KNOWN]
    return [
        key
        for key in named
        if isinstance(config[key], int) and not isinstance(config[key], bool) and config[key]
    ]


@dataclass(frozen=True)
class Masks:
    """What is added to attention scores: nothing where a token looks, the least number elsewhere."""

    whole: Float[Tensor, "row 1 token token"]
    narrow: Float[Tensor, "row 1 token token"] | None
    """In the layers with a window, where it hides anything."""
    windows: Windows

    def of(self, layer: int) -> Float[Tensor, "row 1 token token"]:
        """The mask of a layer."""
        return (
            self.whole if self.narrow is None or layer not in self.windows.layers else self.narrow
        )

    def own(self) -> Mapping[int, Float[Tensor, "row 1 token token"]]:
        """Masks of the layers that do not have the whole one."""
        return (
            {layer: self.narrow for layer in self.windows.layers} if self.narrow is not None else {}
        )


def make_masks(
    pair: ModelPair,
    earlier: Bool[np.ndarray, "row token token"],
    depths: Int[np.ndarray, "row token"],
) -> Masks:
    """Masks of a batch.

    Args:
        pair: The models.
        earlier: [i, j]: token j is token i or comes before it.
        depths: Position of each token in its prompt; windows go by it, wherever in the row a token stands.

    Raises:
        NotApplicableError: As `known_windows` does.
    """
    found = known_windows(pair)
    whole = _added(earlier, pair)
    if not found.layers or depths.max(initial=0) < found.size:
        return Masks(whole, None, found)
    near = depths[:, :, None] - depths[:, None, :] < found.size
    return Masks(whole, _added(earlier & near, pair), found)


def _added(
    allowed: Bool[np.ndarray, "row token token"], pair: ModelPair
) -> Float[Tensor, "row 1 token token"]:
    looks = torch.from_numpy(allowed).to(pair.device)
    return torch.zeros(looks.shape, dtype=pair.dtype, device=pair.device).masked_fill_(
        ~looks, torch.finfo(pair.dtype).min
    )[:, None]
