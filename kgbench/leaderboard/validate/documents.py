"""JSON files of an entry: strict JSON, harmless texts, and their schemas."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
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
    "time_of",
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
    keys: dict[str, Any] = {}
    for key, value in pairs:
        if key in keys:
            raise DataError(f"the key {shown(key)} stands twice in one object")
        keys[key] = value
    return keys


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
        inner: list[Any] = []
        for outer in level:
            if isinstance(outer, dict | list):
                inner += outer.values() if isinstance(outer, dict) else outer
        if not inner:
            return
        level = inner
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


def read_record_json(data: bytes) -> tuple[Record | None, list[Finding]]:
    """A record, None where it does not read, and the findings on its file.

    Args:
        data: The bytes of record.json.
    """
    raw, findings = _raw(data)
    if raw is None:
        return None, findings
    version = raw.get("schema_version")
    if version not in VERSIONS or isinstance(version, bool | float):
        expected = f"{' or '.join(map(str, VERSIONS))}; a newer kgbench may read it"
        wrong = f"{shown(version)} is not known here"
        findings.insert(0, Finding("schema_version", wrong, expected))
    if not findings:
        identity, findings = _validated(raw.get("identity"), Identity, "identity")
        if identity is not None and (digest := identity.digest()) != raw.get("id"):
            wrong = f"{shown(raw.get('id'))} is not the hash of the identity"
            findings = [Finding("id", wrong, digest)]
        elif identity is not None:
            findings = []
    if refusals(findings):
        return None, findings
    record, more = _validated(raw, Record)
    return record, [*findings, *more, *(_names(record) if record is not None else [])]


def read_part(data: bytes, model: type[_M]) -> tuple[_M | None, list[Finding]]:
    """A smaller file of an entry, None where it does not read, and the findings on it.

    Args:
        data: Its bytes.
        model: Type of its content.
    """
    raw, findings = _raw(data)
    if refusals(findings):
        return None, findings
    part, more = _validated(raw, model)
    return part, findings + more


def _raw(data: bytes) -> tuple[dict[str, Any] | None, list[Finding]]:
    """A JSON object, and the findings on its texts."""
    try:
        raw = read_json(data)
    except DataError as error:
        expected = "strict JSON: UTF-8, each key once, finite numbers"
        return None, [Finding("JSON", str(error), expected)]
    findings = []
    for where, text in texts(raw):
        if (reason := bad_text(text)) is not None:
            findings.append(Finding(where, f"it holds {reason}", "plain text"))
        elif (reason := private_text(text)) is not None:
            expected = "no absolute path and no credential in a result"
            findings.append(Finding(where, f"it {reason.strip()}", expected))
    return raw, findings[:_MOST]


def _validated(raw: object, model: type[_M], inside: str = "") -> tuple[_M | None, list[Finding]]:
    """The model, None where the schema refuses it, and the findings; `inside` is its field."""
    try:
        made = model.model_validate(raw)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:_MOST]
        return None, [_schema_finding(dict(each), inside) for each in errors]
    return made, list(_coerced(raw, made.model_dump(mode="json"), inside))


def _coerced(raw: Any, made: Any, where: str) -> Iterator[Finding]:
    """Values of another JSON type than their field, which the model read all the same."""
    if isinstance(raw, dict) and isinstance(made, dict):
        for key in raw.keys() & made.keys():
            yield from _coerced(raw[key], made[key], f"{where}.{key}".lstrip("."))
    elif isinstance(raw, list) and isinstance(made, list):
        for index, (own, other) in enumerate(zip(raw, made, strict=False)):
            yield from _coerced(own, other, f"{where}[{index}]")
    elif (kind := _kind(raw)) != (expected := _kind(made)) and "object" not in (kind, expected):
        yield Finding(where, f"{shown(raw)} is a {kind}", f"a {expected}")


def _kind(value: object) -> str:
    """JSON type of a value."""
    if isinstance(value, bool):
        return "truth value"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "nothing" if value is None else "object"


def _schema_finding(error: Mapping[str, Any], inside: str) -> Finding:
    parts = [inside] if inside else []
    for part in map(str, error["loc"]):
        parts.append(part if re.fullmatch(r"[\w.+^()% -]{1,60}", part) else shown(part))
    # The library's message can repeat what was submitted.
    wrong = shown(error["msg"].removeprefix("Value error, "))[1:-1]
    if error["type"] != "missing" and not isinstance(error["input"], dict | list):
        wrong += f", and it is {shown(error['input'])}"
    expected = "what the published JSON Schema says (kgbench validate --schema)"
    return Finding(".".join(parts) or "record", wrong, expected)


def _names(record: Record) -> Iterator[Finding]:
    """Names end up in tables, links and files; hashes and times are compared."""
    identity = record.identity
    names = {
        "model": record.model,
        "identity.dataset.name": identity.dataset.name,
        "identity.localizer.name": identity.localizer.name,
    }
    hashes = {
        "identity.dataset.hash": identity.dataset.hash,
        "identity.weights.recipient": identity.weights.recipient,
        "identity.tokenizer": identity.tokenizer,
    }
    by_name = {"identity.prompts": identity.prompts}
    by_name["identity.weights.donors"] = identity.weights.donors
    for field, parts in by_name.items():
        for name, hash in parts.items():
            names[f"{field}.{shown(name)[1:-1]}"] = name
            hashes[f"{field}.{name}"] = hash
    for field, name in names.items():
        if not re.fullmatch(NAME.strip("^$"), name):
            expected = "letters, digits, blanks and . _ + ( ) = , -, at most 60"
            yield Finding(field, f"{shown(name)} cannot be a name", expected)
    for field, hash in hashes.items():
        if not _HASH.fullmatch(hash):
            yield Finding(field, f"{shown(hash)} is no hash", "64 hexadecimal digits of a SHA-256")
    time = time_of(record.provenance.time)
    if time is None or time.year < 2024:
        wrong = f"{shown(record.provenance.time)} is no time"
        yield Finding("provenance.time", wrong, "ISO 8601, such as 2026-01-31T12:00:00+00:00")


def time_of(text: str) -> datetime | None:
    """A time in ISO 8601, UTC where it names no zone; None where it does not parse."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
