"""Functions for data sets whose records do not hold one fact each, named in sources.toml by ``shape``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["SHAPES", "Record", "numbered_rows"]

Record = Mapping[str, Any]
"""A row of a table, or what a JSON file holds."""


def numbered_rows(shape: str | None, records: Sequence[Record]) -> Iterator[tuple[int, Record]]:
    """Rows with one fact each, and their numbers from 1 on: those of the records, or where a shape unfolds a record, those within it."""
    if shape is None:
        yield from enumerate(records, 1)
        return
    for record in records:
        yield from enumerate(SHAPES[shape](record), 1)


def _lre(record: Record) -> Iterator[Record]:
    """A file of LRE: its wordings for zero-shot use are asked, the others trained in; without such, the first of the others is asked."""
    general, plain = (
        list(record.get(key) or ()) for key in ("prompt_templates", "prompt_templates_zs")
    )
    asked, trained = (plain, general) if plain else (general[:1], general[1:])
    for sample in record.get("samples") or ():
        yield {**sample, "relation": record.get("name"), "asked": asked, "trained": trained}


SHAPES: Mapping[str, Callable[[Record], Iterator[Record]]] = {"lre": _lre}
"""By name, from a record to rows."""
