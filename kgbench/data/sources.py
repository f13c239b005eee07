"""External data sets: where they are, and how one relation of them becomes facts with wordings.

They are on the Hugging Face Hub, at one revision, or in local files.

A wording is a template of `kgbench.data.templates` whose subject is a field, so that the region FE
follows from it: it is the source's own template, or its prompt with the subject replaced by the
field. The rows are then imported as a user's own file is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from kgbench.data.facts import NO_PROMPT
from kgbench.data.imports import FactTable, ImportOptions, fact_table
from kgbench.data.rows import (
    LACKING,
    Numbered,
    Row,
    cell_at,
    cell_fault,
    read_rows,
    rows_of,
    text_cells,
)
from kgbench.data.templates import PLACE, escaped, has_place, parse_template
from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.hub import ANSWER_WITHIN, hub_errors
from kgbench.resources import read_toml

_NAMED = 12
"""Most relations that an error lists with their sizes, the largest first."""
_LISTED = 50
"""Most relations that a message names; of more only the close matches."""


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
    subject: str | None = None
    object: str | None = None
    prompt: str | None = None
    frame: str = "{}"


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

    Rows without a value that is needed, and rows whose prompt does not hold their subject, are left
    out. The most frequent wording is asked, the others are for training. No training wording begins
    as an evaluation template does.

    Args:
        source: The source.
        records: Its rows.
        relation: Name of the relation, where there are several. Where the source has no column of
            relations, ``COLUMN=VALUE`` names one, and ``COLUMN`` all.
        options: Columns that the user names in place of the source's, and evaluation templates in
            place of its wordings, which are then all for training.

    Raises:
        DataError: There are no rows, or a value is no text.
        UnknownNameError: A column or the relation is lacking.
        InputError: One of several relations must be chosen, or no row of it is left.
    """
    if not records:
        expected = f"; expected what is at {source.files}" if source.files else ""
        raise DataError(f"{source.name}: there are no facts in it{expected}")
    if source.relation is None and relation is not None:
        column, _, value = relation.partition("=")
        source, relation = replace(source, relation=column), value or None
    if source.subject and source.object:
        roles = {
            "subject": options.subject or source.subject,
            "object": options.object or source.object,
        }
        options = replace(
            options, subject="subject", object="object", columns={**roles, **options.columns}
        )
    named_only = source.relation is not None or options != ImportOptions()
    _check_columns(source, records[0], options.columns.values())
    name, numbered = _relation_rows(source, records, relation)
    header: dict[str, Any] = {"name": name}
    unplaced: list[int] = []
    if source.prompt is not None:
        wordings = _wordings(source, name, numbered, options.columns)
        unplaced = [number for number, wording in wordings.items() if wording is None]
        numbered = [each for each in numbered if wordings.get(each[0], "") is not None]
        ranked = [wording for wording, _ in Counter(wordings.values()).most_common() if wording]
        if not ranked:
            raise InputError(f"{name}: no row is left ({len(unplaced)} {NO_PROMPT})")
        spare = ranked if options.templates else ranked[1:]
        templates = dict(options.templates) or {"ask-1": ranked[0]}
        begins = []  # the templates, without the marks of their regions
        for key, text in templates.items():
            parts = parse_template(key, text).parts
            pieces = [f"{{{part.text}}}" if part.is_field else escaped(part.text) for part in parts]
            begins.append("".join(pieces))
        header["templates"] = templates
        header["training"] = [
            f"{text} {{object}}." for text in spare if not text.startswith(tuple(begins))
        ]
    table = fact_table(Path(name), numbered, header, options, named_only)
    rows = [replace(row, id=row.id or f"{name}/{row.line}") for row in table.rows]
    dropped = {**table.dropped, **({NO_PROMPT: unplaced} if unplaced else {})}
    return replace(table, rows=tuple(rows), dropped=dropped)


def _check_columns(source: FactSource, row: Row, columns: Iterable[str]) -> None:
    """Refuse rows that lack a column of their source, or one that the user names."""
    for column in filter(None, (source.relation, source.prompt, *columns)):
        if cell_at(row, column) is not LACKING:
            continue
        hint = ""
        for name in source_names():
            other = load_source(name)
            needed = filter(None, (other.subject, other.object, other.relation, other.prompt))
            if all(cell_at(row, each) is not LACKING for each in needed):
                hint = f"It reads as --source {name}."
                break
        raise UnknownNameError(f"column of {source.name}", column, row, hint)


def _relation_rows(
    source: FactSource, records: Sequence[Row], relation: str | None
) -> tuple[str, list[Numbered]]:
    """The name of a relation as a data set, and its rows; without a column of relations, all."""
    numbered = [(number, dict(row)) for number, row in enumerate(records, 1)]
    if source.relation is None:
        return source.name, numbered
    relations: dict[str, list[Numbered]] = {}
    names = _texts(source.name, numbered, source.relation)
    for name, each in zip(names, numbered, strict=True):
        relations.setdefault(name, []).append(each)
    if relation is None and len(relations) > 1:
        ranked = sorted(relations.items(), key=lambda item: -len(item[1]))
        sizes = [f"{name} ({len(rows)} rows)" for name, rows in ranked]
        more = f" and {len(sizes) - _NAMED} more" if len(sizes) > _NAMED else ""
        raise InputError(
            f"{source.name} has {len(sizes)} relations, {', '.join(sizes[:_NAMED])}{more}: choose "
            "one by --relation"
        )
    if relation is not None and relation not in relations:
        names = list(relations)
        if len(names) > _LISTED:
            names = get_close_matches(relation, names)
        raise UnknownNameError(f"relation of {source.name}", relation, names)
    chosen = next(iter(relations)) if relation is None else relation
    name = re.sub(r"[^\w.-]+", "-", f"{source.name}-{chosen}").strip("-")
    return name, relations[chosen]


def _texts(name: str, numbered: Sequence[Numbered], column: str) -> list[str]:
    """A column as text.

    Raises:
        DataError: A cell holds a list or an object.
    """
    cells = [cell_at(row, column) for _, row in numbered]
    texts = text_cells([None if cell is LACKING else cell for cell in cells])
    for (number, _), text in zip(numbered, texts, strict=True):
        if (fault := cell_fault(column, text)) is not None:
            raise DataError(f"{name}, row {number}: column {column!r}: {fault}")
    return texts


# --------------------------------------------------------------------------------------- wordings


def _wordings(
    source: FactSource, name: str, numbered: Sequence[Numbered], columns: Mapping[str, str]
) -> Mapping[int, str | None]:
    """By row with subject and object, its prompt with a field in place of the subject.

    None where the prompt does not hold the subject.

    Args:
        source: The source.
        name: What to call the rows in an error.
        numbered: The rows.
        columns: The columns of subject and object.
    """
    possible: dict[int, list[str]] = {}
    places = (str(source.prompt), columns["subject"], columns["object"])
    texts = [_texts(name, numbered, column) for column in places]
    for (number, _), prompt, subject, object_ in zip(numbered, *texts, strict=True):
        if not (subject and object_):
            continue
        possible[number] = []
        if has_place(prompt, subject):
            marked = "{subject}".join(map(escaped, prompt.split(PLACE)))
            possible[number].append(source.frame.replace("{}", marked))
            continue
        # A field in place of each mention of the subject in turn.
        for match in re.finditer(f"(?={re.escape(subject)})", prompt):
            before, after = prompt[: match.start()], prompt[match.start() + len(subject) :]
            cleared = f"{escaped(before)}{{subject}}{escaped(after)}"
            possible[number].append(source.frame.replace("{}", cleared))
    # A name may be a word of the prompt too: then the wording that most rows share is meant.
    shared = Counter(chain.from_iterable(possible.values()))
    return {n: max(texts_, key=shared.__getitem__, default=None) for n, texts_ in possible.items()}


# ------------------------------------------------------------------------------- Hub and files

PREFIX = "hub:"
"""Prefix of a data set on the Hub: ``hub:OWNER/NAME``, then ``:CONFIG`` and ``@REVISION``."""

_HUB = re.compile(r"hub:(?P<id>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[^@]+))?(?:@(?P<revision>.+))?")
_LONGEST = 300
"""Characters of another library's message that are passed on."""


@dataclass(frozen=True)
class Origin:
    """A place that exists, and whose rows are still to be read."""

    source: FactSource
    place: str
    """A file or folder, or ``hub:OWNER/NAME@REVISION`` with the commit of today."""
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
        place: A file, a folder or `PREFIX` with an id; None for the source's place on the Hub.
        split: The part to take, in place of the source's.

    Raises:
        InputError: There is no such place, or the Hub does not answer.
    """
    chosen = place if place is not None else f"{PREFIX}{source.hub if source else ''}"
    if chosen.startswith(PREFIX):
        return _on_hub(source, chosen, split)
    if source is None:
        raise InputError(f"{chosen}: to read a file as what it is, name its --source")
    chosen = str(Path(chosen).expanduser())
    has_splits = Path(chosen).is_dir()
    if not has_splits and not Path(chosen).is_file():
        raise InputError(f"{chosen}: there is no such file; {_alternative(source)}")
    if split is not None and not has_splits:
        raise InputError(f"{chosen} is read whole and has no splits; leave out --split")
    return Origin(
        source, chosen, (split or source.split) if has_splits else None, str(source.licence)
    )


def fetch_rows(origin: Origin) -> list[Row]:
    """Read the rows of a source, from the Hub through the library datasets, without its code.

    Raises:
        InputError: The library is lacking, or what it reads is not there.
        DataError: A file does not read.
    """
    if origin.place.startswith(PREFIX):
        parts = _parts(origin.place)
        return _through_datasets(origin, parts["id"], parts["config"], parts["revision"])
    path = Path(origin.place)
    if path.is_dir():
        return _through_datasets(origin, str(path), None, None)
    return [row for _, row in read_rows(path)]


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


def _through_datasets(
    origin: Origin, name: str, config: str | None, revision: str | None
) -> list[Row]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(
            f"to read {origin.place} takes the library datasets ({_message(error)}): pip install "
            "'kgbench[hub]'"
        ) from None
    options = {"split": origin.split, "revision": revision}
    try:
        # Versions that could run a repository's code are refused it; later ones have no such code.
        table = load_dataset(name, config, **options, trust_remote_code=False)
        return list(rows_of(table))
    except Exception as error:  # the library has no base class of its errors
        raise InputError(
            f"{origin.place}, split {origin.split}, cannot be read: {_message(error)}"
        ) from error


def _message(error: Exception) -> str:
    """The message of another library, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"
