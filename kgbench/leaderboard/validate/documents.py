"""JSON files of an entry: strict JSON, harmless texts, and their schemas."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError

from kgbench.errors import DataError
from kgbench.leaderboard import limits
from kgbench.leaderboard.submission import NAME
from kgbench.leaderboard.validate.entry_files import Finding, refusals, shown
from kgbench.records import Identity, Record, Strict
from kgbench.records.identity import private_text

__all__ = [
    "VERSIONS",
    "bad_text",
    "read_json",
    "read_part",
    "read_record_json",
    "texts",
]

# ---------------------------------------------------------------------------------- JSON and texts


_DEEPEST = 16
_LARGEST = 2**53
"""From here on not every whole number has a place in a float."""

_MARKUP = re.compile(r"<[A-Za-z/!?]|&#|\b(javascript|vbscript|data)\s*:", re.IGNORECASE)
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories of invisible characters: control, format and direction marks, lone surrogates,
private and unassigned ones, line ends."""


def read_json(data: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        DataError: It is no UTF-8 or no JSON object, repeats a key, holds NaN, an infinity or a
            number out of range, or nests too deep.
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
    """All texts of a JSON value, keys included, with their places."""
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


# ----------------------------------------------------------------------------------------- schemas


VERSIONS = (1, 2)
"""Of record.json that are read."""

_MOST = 5
"""Findings of one kind that are listed of one file."""

_HASH = re.compile(r"[0-9a-f]{64}")
_M = TypeVar("_M", bound=Strict)


def read_record_json(data: bytes, at: str) -> tuple[Record | None, list[Finding]]:
    """A record, None where it does not read, and what was found in it.

    Args:
        data: The bytes of record.json.
        at: How findings name the file.
    """
    try:
        raw = read_json(data)
    except DataError as error:
        return None, [
            Finding(at, "JSON", str(error), "strict JSON: UTF-8, each key once, finite numbers")
        ]
    findings = [*_version(raw, at), *_texts(raw, at)]
    if not findings:
        findings += _identity(raw, at)
    if refusals(findings):
        return None, findings
    record, found = _validated(raw, Record, at)
    return record, findings + found + (list(_names(record, at)) if record is not None else [])


def read_part(data: bytes, model: type[_M], at: str) -> tuple[_M | None, list[Finding]]:
    """A smaller file of an entry, None where it does not read, and what was found in it.

    Args:
        data: Its bytes.
        model: What it is to hold.
        at: How findings name the file.
    """
    try:
        raw = read_json(data)
    except DataError as error:
        return None, [
            Finding(at, "JSON", str(error), "strict JSON: UTF-8, each key once, finite numbers")
        ]
    findings = list(_texts(raw, at))
    if refusals(findings):
        return None, findings
    part, found = _validated(raw, model, at)
    return part, findings + found


def _version(raw: Mapping[str, Any], at: str) -> Iterator[Finding]:
    version = raw.get("schema_version")
    if version not in VERSIONS or isinstance(version, bool | float):
        expected = f"{' or '.join(map(str, VERSIONS))}; a newer kgbench may read it"
        yield Finding(at, "schema_version", f"{shown(version)} is not known here", expected)


def _texts(raw: Mapping[str, Any], at: str) -> list[Finding]:
    found = []
    for where, text in texts(raw):
        if (reason := bad_text(text)) is not None:
            found.append(Finding(at, where, f"it holds {reason}", "plain text"))
        elif (reason := private_text(text)) is not None:
            found.append(
                Finding(
                    at,
                    where,
                    f"it {reason.strip()}",
                    "no absolute path and no credential in a result",
                )
            )
    return found[:_MOST]


def _identity(raw: Mapping[str, Any], at: str) -> list[Finding]:
    """The id must be the hash of the identity."""
    identity, findings = _validated(raw.get("identity"), Identity, at, "identity")
    if identity is None:
        return findings
    if (digest := identity.digest()) != raw.get("id"):
        return [
            Finding(at, "id", f"{shown(raw.get('id'))} is not the hash of the identity", digest)
        ]
    return []


def _validated(
    raw: object, model: type[_M], at: str, inside: str = ""
) -> tuple[_M | None, list[Finding]]:
    try:
        made = model.model_validate(raw)
        return made, list(_coerced(raw, made.model_dump(mode="json"), at, inside))
    except ValidationError as error:
        return None, [
            _told(dict(one), at, inside) for one in error.errors(include_url=False)[:_MOST]
        ]


def _coerced(raw: Any, made: Any, at: str, where: str) -> Iterator[Finding]:
    """Values of another JSON type than their field, which the model read all the same."""
    if isinstance(raw, dict) and isinstance(made, dict):
        for key in raw.keys() & made.keys():
            yield from _coerced(raw[key], made[key], at, f"{where}.{key}".lstrip("."))
    elif isinstance(raw, list) and isinstance(made, list):
        for index, (own, other) in enumerate(zip(raw, made, strict=False)):
            yield from _coerced(own, other, at, f"{where}[{index}]")
    elif (kind := _kind(raw)) != (expected := _kind(made)) and "object" not in (kind, expected):
        yield Finding(at, where, f"{shown(raw)} is a {kind}", f"a {expected}")


def _kind(value: object) -> str:
    """JSON type of a value."""
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "nothing" if value is None else "object"


def _told(error: Mapping[str, Any], at: str, inside: str) -> Finding:
    parts = [
        str(part)
        if isinstance(part, int) or re.fullmatch(r"[\w.+^()% -]{1,60}", str(part))
        else shown(part)
        for part in error["loc"]
    ]
    field = ".".join([inside] * bool(inside) + parts) or "record"
    value = (
        ""
        if error["type"] == "missing" or isinstance(error["input"], dict | list)
        else f", and it is {shown(error['input'])}"
    )
    return Finding(
        at,
        field,
        f"{_line(error['msg'])}{value}",
        "what the published JSON Schema says (kgbench validate --schema)",
    )


def _line(message: str) -> str:
    """A message of the schema's library; it can repeat what was submitted."""
    return shown(message.removeprefix("Value error, "))[1:-1]


def _names(record: Record, at: str) -> Iterator[Finding]:
    """Names end up in tables, links and files; hashes and times are compared."""
    identity = record.identity
    named = {
        "model": record.model,
        "identity.dataset.name": identity.dataset.name,
        "identity.localizer.name": identity.localizer.name,
        **{f"identity.prompts.{shown(name)[1:-1]}": name for name in identity.prompts},
        **{
            f"identity.weights.donors.{shown(name)[1:-1]}": name for name in identity.weights.donors
        },
    }
    for field, name in named.items():
        if not re.fullmatch(NAME.strip("^$"), name):
            yield Finding(
                at,
                field,
                f"{shown(name)} cannot be a name",
                "letters, digits, blanks and . _ + ( ) = , -, at most 60",
            )
    hashes = {
        "identity.dataset.hash": identity.dataset.hash,
        "identity.weights.recipient": identity.weights.recipient,
        "identity.tokenizer": identity.tokenizer,
        **{
            f"identity.weights.donors.{name}": found
            for name, found in identity.weights.donors.items()
        },
        **{f"identity.prompts.{name}": found for name, found in identity.prompts.items()},
    }
    for field, found in hashes.items():
        if not _HASH.fullmatch(found):
            yield Finding(
                at, field, f"{shown(found)} is no hash", "64 hexadecimal digits of a SHA-256"
            )
    if not _is_time(record.provenance.time):
        yield Finding(
            at,
            "provenance.time",
            f"{shown(record.provenance.time)} is no time",
            "ISO 8601, such as 2026-01-31T12:00:00+00:00",
        )


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).year >= 2024
    except ValueError:
        return False
