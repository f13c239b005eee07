"""Names of the types of weights, which are read without torch."""

from __future__ import annotations

from collections.abc import Mapping

from kgbench.errors import UnknownNameError

__all__ = ["NAMES", "SHORT_NAMES", "check_dtype"]

NAMES = ("float64", "float32", "bfloat16", "float16")
"""As in records; torch calls them the same."""

SHORT_NAMES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def check_dtype(name: str) -> None:
    """Refuse a name that no type of weights has; `auto` is as stored.

    Raises:
        UnknownNameError: There is no such type.
    """
    if name not in (*NAMES, *SHORT_NAMES, "auto"):
        raise UnknownNameError("dtype", name, (*NAMES, *SHORT_NAMES))
