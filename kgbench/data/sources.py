"""External data sets: their columns, and how one relation of them becomes facts with wordings.

A wording is a template of `kgbench.data.templates` whose subject is a field, so that the region FE
follows from it: it is the source's own template, or its prompt with the subject replaced by the
field. The rows are then imported as a user's own file is.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from kgbench.data.imports import SCHEMA_VERSION, ImportOptions
from kgbench.data.templates import parse_template
from kgbench.errors import DataError, InputError, UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "NO_PROMPT",
    "NO_VALUE",
    "SHAPES",
    "FactSource",
    "Relation",
    "SourceRow",
    "choose_fields",
    "choose_relation",
    "load_source",
    "named_relation",
    "read_relations",
    "source_names",
]

NO_VALUE = "without a value"
"""Reason for dropping a row: its subject, its object or a field of a template is empty."""
NO_PROMPT = "without the subject in the prompt"
"""Reason for dropping a row: its wording does not hold its subject, and so asks of no entity."""

_LISTED = 50
"""Most relations that a message names; of more only the close matches."""

SourceRow = Mapping[str, Any]
"""A row of a table, or the content of a JSON file; its values may be rows and lists themselves."""

_LACKING = object()
"""Value of a column that a row does not have."""


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
    template: str | None = None
    prompt: str | None = None
    training: str | None = None
    frame: str = "{}"
    shape: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that are read in addition to subject and object."""
        named = (self.relation, self.template, self.prompt, self.training)
        return tuple(column for column in named if column)

    def framed(self, wording: str) -> str:
        """A wording in the source's frame, such as ``Q: {} A:``."""
        return self.frame.replace("{}", wording)


@dataclass(frozen=True)
class Relation:
    """The facts of one relation, and its source's wordings for it."""

    name: str
    """Name of the data set."""
    facts: Mapping[int, Mapping[str, str]] = field(hash=False)
    """By row number, from 1 on: the fact's fields, as text."""
    asked: tuple[str, ...]
    """Wordings to evaluate in."""
    trained: tuple[str, ...]
    """Wordings to finetune in, up to the object."""
    dropped: Mapping[str, Sequence[int]] = field(hash=False)
    """By reason, the rows that were left out."""

    @property
    def example(self) -> str:
        """A prompt and its answer, or subject and answer where the source has no wording."""
        for fact in self.facts.values():
            values = list(fact.values())
            return f"{self.asked[0].format_map(fact) if self.asked else values[0]} → {values[1]}"
        return "no row has a prompt with its subject"

    def to_jsonl(self, templates: Mapping[str, str]) -> str:
        """The file that a user would have written by hand, for `kgbench.data.imports`.

        Args:
            templates: Evaluation templates by name, in place of the source's own, which are then
                all for training. No training wording begins as an evaluation template does.
        """
        asked = dict(templates)
        if not asked:
            for number, wording in enumerate(self.asked, 1):
                asked[f"ask-{number}"] = wording
        begins = tuple(_unmarked(name, text) for name, text in asked.items())
        spare = (*self.asked, *self.trained) if templates else self.trained
        training = [f"{wording} {{object}}." for wording in spare if not wording.startswith(begins)]
        header = {
            "kgbench": SCHEMA_VERSION,
            "name": self.name,
            "templates": asked,
            "training": training,
        }
        rows = ({"id": f"{self.name}/{number}", **fact} for number, fact in self.facts.items())
        return "".join(json.dumps(row) + "\n" for row in (header, *rows))


@cache
def _sources() -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parent / "sources.toml").read_text(encoding="utf-8"))


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


def named_relation(source: FactSource, asked: str | None) -> tuple[FactSource, str | None]:
    """A source, and the relation that ``--relation`` names.

    Where the source has no column of relations, ``COLUMN=VALUE`` names one, and ``COLUMN`` all.
    """
    if source.relation is not None or asked is None:
        return source, asked
    column, _, value = asked.partition("=")
    return replace(source, relation=column), value or None


def choose_fields(
    source: FactSource, given: ImportOptions
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Which columns of a source become which fields.

    Args:
        source: The source; the fields of a known one are named subject and object.
        given: Columns that the user names for subject, object and more fields, and templates,
            whose fields are taken too.

    Returns:
        From field to column, first the subject's and the object's; and the fields that no row may
        lack.

    Raises:
        InputError: A template does not read, or subject and object are the same.
    """
    subject, column = _role(
        source.subject, given.subject, ("subject", "first_actor"), given.columns
    )
    object_, other = _role(source.object, given.object, ("object", "second_actor"), given.columns)
    if column == other:
        raise InputError(
            f"{source.name}: subject and object are both the column {column!r}; "
            "name two different ones"
        )
    fields = {subject: column, object_: other, **given.columns}
    needed = {subject: None, object_: None}
    columns = {name: name for name in fields}
    for name, text in given.templates.items():
        for part in parse_template(name, text).parts:
            if part.is_field and part.text not in ("subject", "object"):
                needed[part.text] = None
                columns[part.text] = part.text
    return {**columns, **fields}, tuple(needed)


def _role(
    known: str | None, given: str | None, names: tuple[str, str], columns: Mapping[str, str]
) -> tuple[str, str]:
    """The field that is subject or object, and its column."""
    if known is not None:
        return names[0], columns.get(names[0], given or known)
    name = given or next((name for name in reversed(names) if name in columns), names[0])
    field = next((field for field, column in columns.items() if column == name), name)
    return field, columns.get(field, field)


def read_relations(
    source: FactSource,
    records: Sequence[SourceRow],
    fields: Mapping[str, str],
    needed: Sequence[str],
) -> Mapping[str, Relation]:
    """Sort the rows of a source by relation, and find its wordings.

    Args:
        source: The source.
        records: Its records.
        fields: From the name of a field, first subject and object, to the column that holds it.
        needed: Fields without which a row is dropped.

    Returns:
        Relations by the source's name for them, the largest first; under "" where it has no column
        of relations.

    Raises:
        DataError: There are no rows, or a value is no text.
        UnknownNameError: A column is lacking.
    """
    groups: dict[str, dict[int, SourceRow]] = {}
    for number, row in _numbered_rows(source.shape, records):
        if not groups:
            _check_columns(source, row, fields.values())
        name = ""
        if source.relation:
            name = _text(row, source.relation, f"{source.name}, row {number}")
        if number in groups.setdefault(name, {}):
            raise DataError(
                f"{source.name}: two files hold the relation {name!r}; give the file of one"
            )
        groups[name][number] = row
    if not groups:
        expected = f"; expected what is at {source.files}" if source.files else ""
        raise DataError(f"{source.name}: there are no facts in it{expected}")
    relations = [
        (name, _relation(source, name, rows, fields, needed)) for name, rows in groups.items()
    ]
    return dict(sorted(relations, key=lambda item: -len(item[1].facts)))


def choose_relation(
    source: FactSource, relations: Mapping[str, Relation], asked: str | None
) -> Relation | None:
    """The relation that was asked for, or the only one; None where there is a choice to make.

    Raises:
        UnknownNameError: There is none of this name.
        InputError: It has no facts.
    """
    if asked is None and len(relations) > 1:
        return None
    if asked is not None and asked not in relations:
        known = relations if len(relations) <= _LISTED else get_close_matches(asked, relations)
        raise UnknownNameError(f"relation of {source.name}", asked, known)
    relation = relations[next(iter(relations)) if asked is None else asked]
    if not relation.facts:
        reasons = ", ".join(f"{len(rows)} {reason}" for reason, rows in relation.dropped.items())
        raise InputError(f"{relation.name}: no row is left ({reasons})")
    return relation


def _relation(
    source: FactSource,
    name: str,
    rows: Mapping[int, SourceRow],
    fields: Mapping[str, str],
    needed: Sequence[str],
) -> Relation:
    facts: dict[int, Mapping[str, str]] = {}
    dropped: dict[str, list[int]] = {NO_VALUE: [], NO_PROMPT: []}
    whole: dict[int, SourceRow] = {}
    for number, row in rows.items():
        where = f"{source.name}, row {number}"
        facts[number] = {key: _text(row, path, where) for key, path in fields.items()}
        if all(facts[number][key] for key in needed):
            whole[number] = row
        else:
            dropped[NO_VALUE].append(number)
    wordings = _wordings(source, whole, facts)
    usable, frequency = [], Counter[str]()
    training: dict[str, None] = {}
    for number, row in whole.items():
        if not wordings[number] and (source.template or source.prompt):
            dropped[NO_PROMPT].append(number)
            continue
        usable.append(number)
        frequency.update(wordings[number])
        training.update(dict.fromkeys(_templates(source, row, source.training)))
    ranked = [wording for wording, _ in frequency.most_common()]
    asked, trained = (ranked, list(training)) if source.training else (ranked[:1], ranked[1:])
    return Relation(
        name=re.sub(r"[^\w.-]+", "-", f"{source.name}-{name}").strip("-"),
        facts={number: facts[number] for number in usable},
        asked=tuple(asked),
        trained=tuple(trained),
        dropped={reason: sorted(numbers) for reason, numbers in dropped.items() if numbers},
    )


# --------------------------------------------------------------------------------------- wordings


def _wordings(
    source: FactSource, rows: Mapping[int, SourceRow], facts: Mapping[int, Mapping[str, str]]
) -> Mapping[int, tuple[str, ...]]:
    """By row, the wordings that it is given in and that hold its subject."""
    if source.prompt is None:
        return {number: _templates(source, row, source.template) for number, row in rows.items()}
    possible = {}
    for number, row in rows.items():
        prompt = _text(row, source.prompt, f"{source.name}, row {number}")
        possible[number] = tuple(_cleared(source, prompt, facts[number]["subject"]))
    # A name may be a word of the prompt too: then the wording that most rows share is meant.
    shared = Counter[str]()
    for wordings in possible.values():
        shared.update(wordings)
    best = {}
    for number, wordings in possible.items():
        best[number] = (max(wordings, key=shared.__getitem__),) if wordings else ()
    return best


def _cleared(source: FactSource, prompt: str, subject: str) -> Iterator[str]:
    """A prompt with a field in place of each mention of the subject in turn."""
    for match in re.finditer(f"(?={re.escape(subject)})", prompt):
        before, after = prompt[: match.start()], prompt[match.start() + len(subject) :]
        yield source.framed(f"{_escaped(before)}{{subject}}{_escaped(after)}")


def _templates(source: FactSource, row: SourceRow, path: str | None) -> tuple[str, ...]:
    """The texts of a column in which {} marks the subject."""
    value = _value(row, path) if path else None
    wordings = []
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and "{}" in text:
            wordings.append(
                source.framed("{subject}".join(map(_escaped, text.strip().split("{}"))))
            )
    return tuple(wordings)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _unmarked(name: str, text: str) -> str:
    """A template without the marks of its regions."""
    parts = parse_template(name, text).parts
    return "".join(f"{{{part.text}}}" if part.is_field else _escaped(part.text) for part in parts)


# --------------------------------------------------------------------------------- rows and columns
# ``a.b`` is the field b of the column a, ``a.0`` the first value of its list.


def _value(row: SourceRow, path: str) -> Any:
    """The value of a column: None for nothing, `_LACKING` where there is no such column."""
    if path in row:
        return row[path]
    value: Any = row
    for key in path.split("."):
        if isinstance(value, list) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        elif isinstance(value, Mapping):
            value = value.get(key, _LACKING)
        else:
            return None if value is None else _LACKING
    return value


def _text(row: SourceRow, path: str, where: str) -> str:
    """The value of a column as text without outer blanks, empty for nothing.

    Args:
        row: The row.
        path: The column.
        where: Name of the row in a message.

    Raises:
        DataError: It holds a list or an object.
    """
    value = _value(row, path)
    if isinstance(value, Mapping | list):
        kind, inner = "a list", "0"
        if isinstance(value, Mapping):
            kind, inner = "an object", next(iter(value), "field")
        raise DataError(
            f"{where}: column {path!r} holds {kind}; name one value in it, as by '{path}.{inner}'"
        )
    if value is None or value is _LACKING:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value).strip()


def _column_names(row: SourceRow, prefix: str = "") -> Iterator[str]:
    """The columns of a row that hold no object."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _column_names(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _check_columns(source: FactSource, row: SourceRow, others: Iterable[str]) -> None:
    for path in (*others, *source.columns):
        if _value(row, path) is _LACKING:
            hint = ""
            for name in source_names():
                if _fits(load_source(name), row):
                    hint = f"It reads as --source {name}."
                    break
            raise UnknownNameError(f"column of {source.name}", path, _column_names(row), hint)


def _fits(source: FactSource, row: SourceRow) -> bool:
    columns = [path for path in (source.subject, source.object, *source.columns) if path]
    return source.shape is None and all(_value(row, path) is not _LACKING for path in columns)


def _numbered_rows(
    shape: str | None, records: Sequence[SourceRow]
) -> Iterator[tuple[int, SourceRow]]:
    """Rows with one fact each, numbered from 1: the records, or the rows of each by its shape."""
    if shape is None:
        yield from enumerate(records, 1)
        return
    for record in records:
        yield from enumerate(SHAPES[shape](record), 1)


def _lre(record: SourceRow) -> Iterator[SourceRow]:
    """A file of LRE.

    Its zero-shot wordings are for evaluation, the others for training; without zero-shot wordings,
    the first of the others is for evaluation.
    """
    general = list(record.get("prompt_templates") or ())
    plain = list(record.get("prompt_templates_zs") or ())
    asked, trained = (plain, general) if plain else (general[:1], general[1:])
    for sample in record.get("samples") or ():
        yield {**sample, "relation": record.get("name"), "asked": asked, "trained": trained}


SHAPES: Mapping[str, Callable[[SourceRow], Iterator[SourceRow]]] = {"lre": _lre}
"""By name in sources.toml, from a record to rows with one fact each."""
