"""The catalog of model pairs that have a name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

from kgbench.errors import UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Entry", "describe", "entry", "names", "zoo_path"]


@dataclass(frozen=True)
class Entry:
    """A named pair: where its checkpoints are, and which facts its donor learned."""

    name: str
    about: str
    recipient: str
    dataset: str
    donors: Mapping[str, str] = field(default_factory=dict)


@cache
def _catalog() -> Mapping[str, Entry]:
    rows = tomllib.loads(files(__package__).joinpath("catalog.toml").read_text("utf-8"))
    return {name: Entry(name=name, **row) for name, row in rows.items()}


def names() -> tuple[str, ...]:
    """Names of all pairs."""
    return tuple(_catalog())


def describe() -> Mapping[str, str]:
    """One line on each pair."""
    return {name: row.about for name, row in _catalog().items()}


def entry(name: str) -> Entry:
    """The entry of a named pair.

    Raises:
        UnknownNameError: No pair has this name.
    """
    if name not in _catalog():
        raise UnknownNameError("model", name, names(), "Or give checkpoints: --recipient PATH --donor sft=PATH.")
    return _catalog()[name]


def zoo_path(source: str) -> Path | None:
    """Directory of a shipped checkpoint; None where the source is not of the zoo."""
    kind, _, inner = source.partition(":")
    return Path(str(files(__package__).joinpath("zoo", inner))) if kind == "zoo" else None
