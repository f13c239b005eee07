"""The JSON files of an entry against their schemas, and their texts against mischief."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from kgbench.errors import DataError
from kgbench.leaderboard.submission import NAME
from kgbench.leaderboard.validate.findings import Finding, refusals, shown
from kgbench.leaderboard.validate.texts import bad_text, read_json, texts
from kgbench.records import Identity, Record, Strict
from kgbench.records.identity import private_text

__all__ = ["VERSIONS", "read_part", "read_record"]

VERSIONS = (1, 2)
"""Of record.json that are read."""

_MOST = 5
"""Findings of one kind that are told of one file."""

_HASH = re.compile(r"[0-9a-f]{64}")
_M = TypeVar("_M", bound=Strict)


def read_record(data: bytes, at: str) -> tuple[Record | None, list[Finding]]:
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
    """The id must be the hash of the identity, in which the smallest change makes another result."""
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
