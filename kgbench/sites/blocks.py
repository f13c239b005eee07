"""Blocks: the attention or the FFN of a layer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kgbench.errors import InputError

Block = tuple[int, str]
"""Layer and kind."""

BLOCKS: Mapping[str, str] = {"attn": "attn+o", "ffn": "ffn"}
"""Components of each kind, as a graft expression names them."""

_KINDS = {
    **dict.fromkeys(("q", "k", "v", "o", "q_norm", "k_norm"), "attn"),
    **dict.fromkeys(("gate", "up", "down"), "ffn"),
}
_BLOCK = re.compile(r"(attn|ffn)@(\d{1,6})")


def block_of(place: tuple[int | None, str]) -> Block | None:
    """The block of a (layer, component); None outside blocks, as of embeddings and layer norms."""
    layer, component = place
    kind = _KINDS.get(component)
    return None if layer is None or kind is None else (layer, kind)


def parse_block(text: str) -> Block:
    """A block from its name.

    Raises:
        InputError: It is none.
    """
    match = _BLOCK.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is no block: expected such as ffn@5 or attn@3")
    return int(match[2]), match[1]
