"""Data sets by others: where they are, and how one relation of them becomes facts.

They are on the Hugging Face Hub, at one revision, or in local files. Their rows are imported as a
user's own file of prompts, subjects and targets is: each fact is asked in the prompt of its row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kgbench.data.imports import FactTable, ImportOptions, fact_table
from kgbench.data.rows import LACKING, Numbered, Row, cell_at, read_rows, rows_of
from kgbench.errors import DataError, InputError, UnknownNameError, first_line
from kgbench.extras import install_command
from kgbench.hub import ANSWER_WITHIN, hub_errors
from kgbench.resources import read_toml

_NAMED = 12
"""Most relations that an error lists."""


@dataclass(frozen=True)
class FactSource:
    """A row of sources.toml, which documents each field; or a set on the Hub with named columns."""

    name: str
    about: str = ""
    licence: str | None = None
    hub: str | None = None
    split: str = "train"
    files: str | None = None
    relation: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None


_sources = partial(read_toml, __package__, "sources")


def source_names() -> tuple[str, ...]:
    """Names of the sources in sources.toml."""
    return tuple(_sources())


def load_source(name: str) -> FactSource:
    """A row of sources.toml.

    Raises:
        UnknownNameError: There is none of this name.
    """
    if name not in _sources():
        hint = "Any set on the Hub can be read as hub:OWNER/NAME."
        raise UnknownNameError("source", name, _sources(), hint)
    return FactSource(name, **_sources()[name])


def source_table(
    source: FactSource, records: Sequence[Row], relation: str | None, options: ImportOptions
) -> FactTable:
    """The facts of one relation of a source, as a file of them would be read.

    Rows without a value that is needed are left out.

    Args:
        source: The source.
        records: Its rows.
        relation: Name of the relation, where there are several. Where the source has no column of
            relations, ``COLUMN=VALUE`` names one, and ``COLUMN`` all.
        options: Columns that the user names in place of the source's, and evaluation templates in
            place of its prompts.

    Raises:
        DataError: There are no rows, a column is lacking, or a value is no text.
        UnknownNameError: The relation or its column is lacking.
        InputError: One of several relations must be chosen.
    """
    if not records:
        expected = f"; expected what is at {source.files}" if source.files else ""
        raise DataError(f"{source.name}: there are no facts in it{expected}")
    if source.relation is None and relation is not None:
        column, _, value = relation.partition("=")
        source, relation = replace(source, relation=column), value or None
    header: dict[str, Any] = {}
    if source.columns:
        columns = {**source.columns, **options.columns}
        for role in ("subject", "object"):
            columns[role] = getattr(options, role) or columns[role]
        if options.templates:
            del columns["prompt"]
        else:
            header = {"templates": {"ask": source.template}}
        options = replace(options, subject="subject", object="object", columns=columns)
    named_only = source.relation is not None or options != ImportOptions()
    name, numbered = _relation_rows(source, records, relation)
    table = fact_table(Path(name), numbered, header, options, named_only)
    rows = [replace(row, id=row.id or f"{name}/{row.line}") for row in table.rows]
    return replace(table, rows=tuple(rows), name=name)


def _relation_rows(
    source: FactSource, records: Sequence[Row], relation: str | None
) -> tuple[str, list[Numbered]]:
    """The name of a relation as a data set, and its rows; without a column of relations, all."""
    numbered = [(number, dict(row)) for number, row in enumerate(records, 1)]
    if source.relation is None:
        return source.name, numbered
    cells = [cell_at(row, source.relation) for row in records]
    if all(cell is LACKING for cell in cells):
        raise UnknownNameError(f"column of {source.name}", source.relation, records[0])
    names = [str(cell).strip() for cell in cells]
    relations = Counter(names)
    if relation is None and len(relations) > 1:
        listed = ", ".join(f"{name} ({n} rows)" for name, n in relations.most_common(_NAMED))
        raise InputError(
            f"{source.name} has {len(relations)} relations, {listed}"
            f"{', …' if len(relations) > _NAMED else ''}: choose one by --relation"
        )
    chosen = names[0] if relation is None else relation
    if chosen not in relations:
        raise UnknownNameError(f"relation of {source.name}", chosen, relations, most=_NAMED)
    name = re.sub(r"[^\w.-]+", "-", f"{source.name}-{chosen}").strip("-")
    return name, [row for row, of in zip(numbered, names, strict=True) if of == chosen]


# ------------------------------------------------------------------------------- Hub and files

PREFIX = "hub:"
"""Prefix of a data set on the Hub: ``hub:OWNER/NAME``, then ``:CONFIG`` and ``@REVISION``."""

_HUB = re.compile(r"hub:(?P<id>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^@]+))?(?:@(?P<revision>.+))?")


@dataclass(frozen=True)
class Origin:
    """A place that exists, and whose rows are still to be read."""

    source: FactSource
    place: str
    """A file, or ``hub:OWNER/NAME@REVISION`` with the commit of today."""
    split: str | None
    """Part of the data set; None for a file, which has none."""
    licence: str
    """What is known of the licence, and from where."""

    def lines(self) -> Iterator[str]:
        """Place and licence, to be shown before anything is read."""
        split = f", split {self.split}" if self.split else ""
        about = f": {self.source.about}" if self.source.about else ""
        yield f"from {self.place}{split}{about}"
        yield f"licence: {self.licence}"


def locate_source(source: FactSource | None, place: str | None, split: str | None) -> Origin:
    """Find a source without reading its rows; the Hub is asked for the commit and the licence.

    Args:
        source: The known source; None for a set on the Hub that is not known.
        place: A file or `PREFIX` with an id; None for the source's place on the Hub.
        split: The part to take, in place of the source's.

    Raises:
        InputError: There is no such place, or the Hub does not answer.
    """
    chosen = place if place is not None else f"{PREFIX}{source.hub if source else ''}"
    if chosen.startswith(PREFIX):
        return _on_hub(source, chosen, split)
    if source is None:
        raise InputError(f"{chosen}: to read a file as what it is, name its --source")
    if not Path(chosen).expanduser().is_file():
        raise InputError(f"{chosen}: there is no such file; {_alternative(source)}")
    if split is not None:
        raise InputError(f"{chosen} is read whole and has no splits; leave out --split")
    return Origin(source, chosen, None, str(source.licence))


def fetch_rows(origin: Origin) -> list[Row]:
    """Read the rows of a source, from the Hub through the library datasets, without its code.

    Raises:
        InputError: The library is lacking, or what it reads is not there.
        DataError: A file does not read.
    """
    if not origin.place.startswith(PREFIX):
        return [row for _, row in read_rows(Path(origin.place).expanduser())]
    parts = _parts(origin.place)
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(
            f"to read {origin.place} takes the library datasets ({first_line(error)}): "
            f"{install_command('hub')}"
        ) from None
    options = {"split": origin.split, "revision": parts["revision"]}
    try:
        # Versions that could run a repository's code are refused it; later ones have no such code.
        table = load_dataset(parts["id"], parts["config"], **options, trust_remote_code=False)
        return list(rows_of(table))
    except Exception as error:  # the library has no base class of its errors
        message = " ".join(str(error).split())[:300] or type(error).__name__
        raise InputError(
            f"{origin.place}, split {origin.split}, cannot be read: {message}"
        ) from error


# -------------------------------------------------------------------------------------------- Hub


def _parts(place: str) -> Mapping[str, Any]:
    match = _HUB.fullmatch(place)
    if match is None:
        raise InputError(
            f"{place!r} names no data set on the Hub: expected {PREFIX}OWNER/NAME, then :CONFIG "
            "and @REVISION if needed"
        )
    return match.groupdict()


def _on_hub(source: FactSource | None, place: str, split: str | None) -> Origin:
    """The data set at its commit of today, with the licence on its card."""
    from huggingface_hub import HfApi

    parts = _parts(place)
    name, revision = parts["id"], parts["revision"]
    otherwise = "connect, or save its rows as a CSV or JSONL file and import that"
    with hub_errors(name, revision, _alternative(source) if source else otherwise):
        info = HfApi().dataset_info(name, revision=revision, timeout=ANSWER_WITHIN)
    card = info.card_data.get("license") if info.card_data else None
    card = ", ".join(card) if isinstance(card, list) else card
    located = source or FactSource(name.rpartition("/")[2])
    on_card = f"its card on the Hub says {card}" if card else "its card on the Hub names none"
    licence = f"{located.licence}; {on_card}" if located.licence else on_card
    config = f":{parts['config']}" if parts["config"] else ""
    return Origin(located, f"{PREFIX}{name}{config}@{info.sha}", split or located.split, licence)


def _alternative(source: FactSource) -> str:
    return f"fetch it from {source.files}, and give the file: --source {source.name} FILE"
