"""Model pairs; here the names of their types of weights, which are read without torch."""

from __future__ import annotations

from collections.abc import Mapping

from kgbench.errors import UnknownNameError

__all__ = ["DTYPE_NAMES", "SHORT_DTYPES", "check_dtype"]

DTYPE_NAMES = ("float64", "float32", "bfloat16", "float16")
"""As in records; torch calls them the same."""

SHORT_DTYPES: Mapping[str, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def check_dtype(name: str) -> None:
    """Refuse a name that no type of weights has; `auto` is as stored.

    Raises:
        UnknownNameError: There is no such type.
    """
    if name not in (*DTYPE_NAMES, *SHORT_DTYPES, "auto"):
        raise UnknownNameError("dtype", name, (*DTYPE_NAMES, *SHORT_DTYPES))
