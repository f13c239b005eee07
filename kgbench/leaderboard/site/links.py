"""How pages, files and numbers are named in a site."""

from __future__ import annotations

import re
from hashlib import sha256

from kgbench.records import Record

__all__ = ["DIGITS", "method_slug", "run_name"]

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
"""Characters for the numbers from 0 to 63 in data files."""

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_]*")
_LONGEST = 60


def method_slug(name: str) -> str:
    """Unique file name of a method, also on file systems without case."""
    if _PLAIN.fullmatch(name) and len(name) <= _LONGEST:
        return name
    plain = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:_LONGEST]
    return f"{plain or 'method'}-{sha256(name.encode()).hexdigest()[:8]}"


def run_name(record: Record | str) -> str:
    """What a run's files are called: the first twelve digits of its id."""
    return (record if isinstance(record, str) else record.id)[:12]
