"""Columns of a row that may hold rows and lists themselves: ``a.b`` is the field b of the column a, ``a.0`` the first in its list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kgbench.data.sources_shapes import Record
from kgbench.errors import DataError

__all__ = ["LACKING", "column_names", "text_at", "value_at"]

LACKING = object()
"""What stands where a row has no such column."""


def value_at(row: Record, path: str) -> Any:
    """What a row holds in a place: None for nothing, `LACKING` where there is no such place."""
    if path in row:
        return row[path]
    value: Any = row
    for key in path.split("."):
        if isinstance(value, list) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(key, LACKING)
        else:
            return None if value is None else LACKING
    return value


def text_at(row: Record, path: str, where: str) -> str:
    """The same as text without outer blanks, empty for nothing; numbers as they are written.

    Args:
        row: The row.
        path: The place.
        where: What to call the row in a message.

    Raises:
        DataError: It holds a list or an object.
    """
    value = value_at(row, path)
    if isinstance(value, Mapping | list):
        kind, inner = (
            ("an object", next(iter(value), "field"))
            if isinstance(value, Mapping)
            else ("a list", "0")
        )
        raise DataError(
            f"{where}: column {path!r} holds {kind}; name one value in it, as by '{path}.{inner}'"
        )
    if value is None or value is LACKING:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def column_names(row: Record, prefix: str = "") -> Iterator[str]:
    """The places in a row that hold no object."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from column_names(value, f"{prefix}{key}.")
        else:
            yield prefix + key
