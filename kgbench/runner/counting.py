"""Counting what runs through the models of a pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from kgbench.models.pair import ModelPair

__all__ = ["Count", "counted"]


@dataclass
class Count:
    """Forwards so far, and their token rows, padding included."""

    forwards: int = 0
    token_rows: int = 0


@contextmanager
def counted(pair: ModelPair, tell: Callable[[Count], None] | None = None) -> Iterator[Count]:
    """Count the forwards of all models of a pair.

    Args:
        pair: The models.
        tell: Called after each forward has begun.
    """
    count = Count()

    def begun(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        tokens = next(
            (
                x
                for x in (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args)
                if x is not None
            ),
            None,
        )
        count.forwards += 1
        count.token_rows += int(tokens.shape[0] * tokens.shape[1]) if tokens is not None else 0
        if tell is not None:
            tell(count)

    models = {id(model): model for model in (pair.recipient, *pair.donors.values())}
    handles = [
        model.register_forward_pre_hook(begun, with_kwargs=True) for model in models.values()
    ]
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()
