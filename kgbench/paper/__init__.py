"""The paper's figures, claims and numbers (arXiv 2506.20746), and the study of architectures.

The public names below load on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgbench.paper.reproduction import reproduce, study

__all__ = ["reproduce", "study"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("kgbench.paper.reproduction"), name)
