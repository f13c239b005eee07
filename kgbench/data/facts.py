"""Facts and data sets: shipped ones by name, a user's own by file."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from kgbench.data.imports import ImportOptions, Row, Table, read_table
from kgbench.data.parts import PARTS, first, halves
from kgbench.data.templates import parse_template
from kgbench.errors import DataError, InputError, UnknownNameError

__all__ = [
    "AMBIGUOUS",
    "DUPLICATE",
    "EMPTY",
    "Dataset",
    "Fact",
    "dataset_names",
    "describe",
    "hash_facts",
    "is_shipped",
    "left_out",
    "load_dataset",
]

_FILES = Path(__file__).parent / "files"

AMBIGUOUS = "ambiguous subject"
"""Reason for dropping a row: its subject stands with different objects, so that no single answer is right."""
DUPLICATE = "duplicate row"
"""Reason for dropping a row: an earlier one has the same subject and object, whatever else it says."""
EMPTY = "row without subject or object"
"""Reason for dropping a row: a cell that every fact needs is empty."""

_NO_WIDTH = frozenset("\u00ad\u200b\u200e\u200f\u2060\ufeff")
"""Marks that do not show. Joiners are none of them: they tell words of some scripts apart."""


@dataclass(frozen=True)
class Fact:
    """One row of a data set."""

    id: str
    """Stable name, such as "tiny_movies/17"."""
    fields: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Dataset:
    """Facts of one schema: every fact has the same fields."""

    name: str
    facts: tuple[Fact, ...]
    subject: str
    """Field that a fact is about, such as first_actor."""
    object: str
    """Field that is asked for, such as second_actor."""
    templates: Mapping[str, str] = field(hash=False)
    """Evaluation templates of its own, beside the built-in ones."""
    dropped: Mapping[str, int] = field(hash=False)
    """Rows left out at load, by reason."""
    content_hash: str
    """SHA-256 of ids, fields, subject and object, see `hash_facts`; neither place nor format of the file counts."""
    training: tuple[str, ...] = ()
    """Wordings of its own to finetune in, in the syntax of `str.format`."""
    training_reversed: tuple[str, ...] = ()
    """Wordings of its own that mention the object before the subject."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that every fact has."""
        return tuple(self.facts[0].fields)

    def subset(self, ids: Iterable[str]) -> Dataset:
        """The facts with these ids, in the order in which they stand here; the content hash is that of what is left.

        Raises:
            UnknownNameError: There is no fact of this id.
            InputError: No id is given.
        """
        wanted = dict.fromkeys(ids)
        known = {fact.id for fact in self.facts}
        for unknown in (identifier for identifier in wanted if identifier not in known):
            raise UnknownNameError(
                f"fact of data set {self.name!r}", unknown, get_close_matches(unknown, known)
            )
        if not wanted:
            raise InputError(
                f"a part of data set {self.name!r} needs at least one fact; give ids such as {self.facts[0].id!r}"
            )
        kept = tuple(fact for fact in self.facts if fact.id in wanted)
        return replace(self, facts=kept, content_hash=hash_facts(kept, self.subject, self.object))


def dataset_names() -> tuple[str, ...]:
    """Names of the shipped data sets."""
    return tuple(sorted(path.stem for path in _FILES.glob("*.jsonl")))


def describe(name: str) -> str:
    """The data card of a shipped data set, as Markdown.

    Raises:
        UnknownNameError: No such data set.
    """
    if name not in dataset_names():
        raise UnknownNameError("data set", name, dataset_names())
    return (_FILES / f"{name}.md").read_text(encoding="utf-8")


def load_dataset(name_or_path: str, options: ImportOptions | None = None) -> Dataset:
    """Load a shipped data set by name, or a user's own JSONL or CSV file, or one of its parts (see `kgbench.data.parts`).

    Rows that repeat an earlier fact, rows whose subject has several objects, and rows without subject or object are left
    out and counted in `Dataset.dropped`; subjects and objects are compared as `same_text` has them.
    A file without a column ``id`` gets ids from its stem and the number of the row.

    Args:
        name_or_path: A shipped name, or a file: anything that ends with .jsonl or .csv, holds a path separator or exists. With ":task" or
            ":relation" after it, that half of the facts, with ":first150" the first 150; such parts have parts again.
        options: What to make of the columns, and templates to add.

    Raises:
        UnknownNameError: No such data set.
        DataError: The file does not read; names line and field.
        InputError: A template of its own is not one, or does not fit the fields.
    """
    whole, _, name = name_or_path.rpartition(":")
    if whole and (_names_part(name) or whole in dataset_names()):
        return _part(load_dataset(whole, options), name)
    if name_or_path in dataset_names():
        return _from_table(read_table(_FILES / f"{name_or_path}.jsonl", options))
    separated = any(separator in name_or_path for separator in (os.sep, os.altsep) if separator)
    if (
        separated
        or name_or_path.lower().endswith((".jsonl", ".csv"))
        or os.path.exists(name_or_path)
    ):
        return _from_table(read_table(Path(name_or_path), options))
    raise UnknownNameError(
        "data set", name_or_path, dataset_names(), "A file of your own ends with .jsonl or .csv."
    )


def is_shipped(name: str) -> bool:
    """Whether a name is that of a shipped data set or of a part of one; anything else could be a path."""
    whole, _, part = name.rpartition(":")
    return name in dataset_names() or (_names_part(part) and is_shipped(whole))


def _names_part(name: str) -> bool:
    return name in PARTS or first(name) is not None


def _part(dataset: Dataset, name: str) -> Dataset:
    if not _names_part(name):
        raise UnknownNameError(
            f"part of data set {dataset.name!r}",
            name,
            PARTS,
            "The first facts are a part too, as in ':first150'.",
        )
    ends = [
        (fact.id, (fact.fields[dataset.subject], fact.fields[dataset.object]))
        for fact in dataset.facts
    ]
    size = first(name)
    ids = (
        halves(ends)[PARTS.index(name)]
        if size is None
        else [identifier for identifier, _ in ends[:size]]
    )
    return replace(dataset.subset(ids), name=f"{dataset.name}:{name}")


def hash_facts(facts: Iterable[Fact], subject: str, object: str) -> str:
    """SHA-256, in hexadecimal, of canonical JSON of the facts' ids and fields and of subject and object."""
    content = {
        "facts": [[fact.id, dict(fact.fields)] for fact in facts],
        "subject": subject,
        "object": object,
    }
    return hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def same_text(text: str) -> str:
    """What two texts share that a reader cannot tell apart: composed (NFC), single blanks, nothing of no width."""
    visible = "".join(mark for mark in unicodedata.normalize("NFC", text) if mark not in _NO_WIDTH)
    return " ".join(visible.split())


def left_out(table: Table) -> dict[str, list[int]]:
    """By reason, the lines of a table that a data set leaves out."""
    seen: set[tuple[str, str]] = set()
    objects: dict[str, set[str]] = {}
    for row in table.rows:
        subject, object = _ends(row, table)
        objects.setdefault(subject, set()).add(object)
    lines: dict[str, list[int]] = {DUPLICATE: [], AMBIGUOUS: [], EMPTY: list(table.empty)}
    for row in table.rows:
        ends = _ends(row, table)
        if ends in seen:
            lines[DUPLICATE].append(row.line)
        elif len(objects[ends[0]]) > 1:
            lines[AMBIGUOUS].append(row.line)
        seen.add(ends)
    return {reason: found for reason, found in lines.items() if found}


def _ends(row: Row, table: Table) -> tuple[str, str]:
    return same_text(row.fields[table.subject]), same_text(row.fields[table.object])


def _from_table(table: Table) -> Dataset:
    dropped = left_out(table)
    out = {line for lines in dropped.values() for line in lines}
    facts = _identified(table)
    kept = tuple(fact for row, fact in zip(table.rows, facts, strict=True) if row.line not in out)
    if not kept:
        raise DataError(
            f"{table.path}: no facts left, since every {table.subject!r} stands with several {table.object!r}"
        )
    for name, text in table.templates.items():
        template = parse_template(name, text)
        for part in template.parts:
            if part.is_field and part.text in table.incomplete:
                where = f"{table.path}, line {table.incomplete[part.text]}"
                raise DataError(
                    f"{where}: field {part.text!r} is empty; prompt {name!r} needs a text or a number there in every row"
                )
        template.bind(table.subject, table.object, kept[0].fields, table.name)
    counts = {reason: len(lines) for reason, lines in dropped.items()}
    content_hash = hash_facts(kept, table.subject, table.object)
    wordings = table.training, table.training_reversed
    return Dataset(
        table.name,
        kept,
        table.subject,
        table.object,
        table.templates,
        counts,
        content_hash,
        *wordings,
    )


def _identified(table: Table) -> list[Fact]:
    """The facts of all rows, with their ids."""
    by_id: dict[str, Row] = {}
    facts = []
    for number, row in enumerate(table.rows, 1):
        identifier = row.id or f"{table.path.stem}/{number}"
        first = by_id.setdefault(identifier, row)
        if first.fields != row.fields:
            where = f"{table.path}, line {row.line}: field 'id'"
            raise DataError(
                f"{where}: {identifier!r} stands at line {first.line} already; expected an id of its own"
            )
        facts.append(Fact(identifier, row.fields))
    return facts
