"""JSON read without indulgence, and texts that can do no harm where they are shown."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from math import isfinite
from typing import Any, NoReturn

from kgbench.errors import DataError
from kgbench.leaderboard import limits
from kgbench.leaderboard.validate.findings import shown

__all__ = ["bad_text", "read_json", "texts"]

_DEEPEST = 16
_LARGEST = 2**53
"""From here on not every whole number has a place in a float."""

_MARKUP = re.compile(r"<[A-Za-z/!?]|&#|\b(javascript|vbscript|data)\s*:", re.IGNORECASE)
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories of what is not seen: control, format and direction marks, lone surrogates, private and unassigned ones, line ends."""


def read_json(data: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        DataError: It is no UTF-8 or no JSON object, repeats a key, holds NaN, an infinity, a number out of range, or nests too deep.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is no UTF-8") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_integer,
            parse_float=_real,
        )
    except RecursionError:
        raise DataError("it nests too deep") from None
    except DataError:
        raise
    except ValueError as error:
        raise DataError(f"it is no JSON ({str(error)[:100]})") from None
    if not isinstance(value, dict):
        raise DataError("it is no JSON object")
    _check_depth(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise DataError(f"the key {shown(key)} stands twice in one object")
        found[key] = value
    return found


def _constant(name: str) -> NoReturn:
    raise DataError(f"{name} is no number that JSON has")


def _integer(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > _LARGEST:
        raise DataError(f"the number {shown(text)} is out of range")
    return int(text)


def _real(text: str) -> float:
    if len(text) > 40 or not isfinite(number := float(text)):
        raise DataError(f"the number {shown(text)} is out of range")
    return number


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise DataError(f"it nests deeper than {_DEEPEST} levels")


def texts(value: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """All texts of a JSON value, keys included, with where they stand."""
    if isinstance(value, str):
        yield where or "it", value
    elif isinstance(value, dict):
        for key, inner in value.items():
            name = key if re.fullmatch(r"[\w +()^%.:@;=-]{1,80}", key) else shown(key)
            yield f"a key of {where or 'it'}", key
            yield from texts(inner, f"{where}.{name}".lstrip("."))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts(inner, f"{where}[{index}]")


def bad_text(text: str) -> str | None:
    """Why a text cannot be shown on a page, in a table or on a terminal; None where it can."""
    if len(text) > limits.TEXT:
        return f"a text of {len(text)} characters"
    if not text.isprintable() and any(
        unicodedata.category(character) in _HIDDEN for character in text
    ):
        return "characters that are not seen, such as control or direction marks"
    return "what a browser could take for markup" if _MARKUP.search(text) else None
