"""Builders of what is shipped, tiny pairs and plants, and of ground truth of one's own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgbench.zoo.plants import plant

__all__ = ["plant"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("kgbench.zoo.plants"), name)
