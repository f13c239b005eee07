"""The JSON documents of entries: strict JSON, harmless texts, and what kgbench itself would write."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from pydantic import ValidationError

from kgbench.errors import DataError
from kgbench.leaderboard import limits
from kgbench.leaderboard.validate.findings import Finding, shown, shown_name
from kgbench.records import Strict, canonical_json
from kgbench.records.identity import private_kind, texts_in, texts_of

_M = TypeVar("_M", bound=Strict)

STRICT_JSON = "strict JSON: UTF-8, each key once, finite numbers"

LAW = "law"
"""Type of the errors of fields that keep the schema and break a law of the board."""

_DEEPEST = 16
_CONTAINERS = (dict, list)
_LONGEST_NUMBER = 40
"""Characters."""

_MARKUP = re.compile(r"<[A-Za-z/!?]|&#|\b(javascript|vbscript|data)\s*:", re.IGNORECASE)
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories of invisible characters: control, format and direction marks, lone surrogates,
private and unassigned ones, line ends."""

_MOST = 5
"""Findings of one kind that are listed of one file."""


def read_json(data: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        DataError: It is no UTF-8 or no JSON object, repeats a key, holds NaN, an infinity or a
            number out of range, or nests too deep.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_number,
            # From 2**53 on not every whole number has a place in a float.
            parse_int=partial(_number, kind=int, largest=2**53),
            parse_float=_number,
        )
        depth = _depth(value)
    except RecursionError:
        raise DataError("it nests too deep") from None
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is no UTF-8") from None
    except ValueError as error:
        raise DataError(f"it is no JSON ({str(error)[:100]})") from None
    if not isinstance(value, dict):
        raise DataError("it is no JSON object")
    if depth > _DEEPEST:
        raise DataError(f"it nests deeper than {_DEEPEST} levels")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise DataError(f"the key {shown(twice)} stands twice in one object")
    return keys


def _number(text: str, kind: type = float, largest: float = sys.float_info.max) -> Any:
    if len(text) <= _LONGEST_NUMBER and abs(float(text)) <= largest:
        return kind(text)
    short = text[:_LONGEST_NUMBER]
    raise DataError(f"{short} is no number that JSON has, or out of range")


def _depth(value: Any) -> int:
    if type(value) not in _CONTAINERS:
        return 0
    inner = value.values() if type(value) is dict else value
    return 1 + max((_depth(each) for each in inner if type(each) in _CONTAINERS), default=0)


def harm(text: str) -> str | None:
    """Why a text may not be shown on a page, in a table or on a terminal; None where it may."""
    if len(text) > limits.TEXT:
        return f"holds a text of {len(text)} characters"
    if not text.isprintable() and any(map(_HIDDEN.__contains__, map(unicodedata.category, text))):
        return "holds characters that are not seen, such as control or direction marks"
    if _MARKUP.search(text):
        return "holds what a browser could take for markup"
    return private_kind(text)


def parsed(raw: Any, model: type[_M]) -> tuple[_M | None, list[Finding]]:
    """The content of a document, None where it is refused, and the findings on it."""
    reasons = {text: reason for text in texts_in(raw) if (reason := harm(text)) is not None}
    if reasons:  # naming places takes several times as long as finding texts
        expected = "plain text, and no absolute path or credential"
        places = texts_of(raw, named=shown_name)
        unfit = (Finding(at, f"it {reasons[t]}", expected) for at, t in places if t in reasons)
        return None, list(islice(unfit, _MOST))
    try:
        made = model.model_validate(raw)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:_MOST]
        return None, [_schema_finding(dict(each)) for each in errors]
    written = made.model_dump(mode="json", exclude_none=True)
    if canonical_json(raw) == canonical_json(written):
        return made, []
    unwritten = Finding("content", "it is not as kgbench writes it")
    return made, list(islice(_unequal(raw, written), _MOST)) or [unwritten]


def _unequal(stated: Any, written: Any, where: str = "") -> Iterator[Finding]:
    """Findings on the parts of a JSON value that kgbench would write otherwise."""
    if isinstance(stated, Mapping) and isinstance(written, Mapping):
        for key in dict.fromkeys((*stated, *written)):
            place = f"{where}.{shown_name(key)}".lstrip(".")
            yield from _unequal(stated.get(key), written.get(key), place)
    elif canonical_json(stated) != canonical_json(written):
        expected = f"{shown(written)}, as kgbench writes it"
        yield Finding(where, f"it is {shown(stated)}", expected)


def _schema_finding(error: Mapping[str, Any]) -> Finding:
    # The one law of a whole object is that the id of a record is the hash of its identity.
    field = ".".join(map(shown_name, map(str, error["loc"]))) or "id"
    stated = f"it is {shown(error['input'])}"
    if error["type"] == LAW:
        return Finding(field, stated, error["msg"])
    # The library's message can repeat what was submitted.
    wrong = shown(error["msg"].removeprefix("Value error, "))[1:-1]
    if error["type"] != "missing" and not isinstance(error["input"], dict | list):
        wrong += f", and {stated}"
    return Finding(field, wrong, "what the published JSON Schema says (kgbench validate --schema)")
