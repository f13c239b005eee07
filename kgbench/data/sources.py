"""Data sets by others: which columns hold what, and how one relation of them becomes facts with wordings.

A wording is a template of `kgbench.data.templates` whose subject is a field, so that the region FE follows from it: it is taken from the
source's own template, or from its prompt with the subject's place cleared. The rows then take the same way as a user's own file.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from kgbench.data.imports import SCHEMA_VERSION, ImportOptions
from kgbench.data.sources_columns import LACKING, column_names, text_at, value_at
from kgbench.data.sources_shapes import Record, numbered_rows
from kgbench.data.templates import parse_template
from kgbench.errors import DataError, InputError, UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "NO_PROMPT",
    "NO_VALUE",
    "Relation",
    "Source",
    "choose_fields",
    "choose_relation",
    "load_source",
    "one_relation",
    "read_relations",
    "source_names",
]

NO_VALUE = "without a value"
"""Reason for dropping a row: nothing stands where its subject, its object or a field of a template should."""
NO_PROMPT = "without the subject in the prompt"
"""Reason for dropping a row: its wording does not hold its subject, so that there is no entity to ask about."""

_LISTED = 50
"""Most relations that a message names; of more only the near ones."""


@dataclass(frozen=True)
class Source:
    """One row of sources.toml, which says what each entry means; or a set on the Hub of which the user names the columns."""

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


@dataclass(frozen=True)
class Relation:
    """The facts of one relation, and the wordings that its source has for it."""

    name: str
    """What to call the data set."""
    facts: Mapping[int, Mapping[str, str]] = field(hash=False)
    """By the number of the row, from 1 on: the fact's fields, as text."""
    asked: tuple[str, ...]
    """Wordings to evaluate in."""
    trained: tuple[str, ...]
    """Wordings to finetune in, up to the object."""
    dropped: Mapping[str, Sequence[int]] = field(hash=False)
    """By reason, the rows that were left out."""

    @property
    def example(self) -> str:
        """A prompt and its answer, or only subject and answer where the source has no wording."""
        for fact in self.facts.values():
            values = list(fact.values())
            return f"{self.asked[0].format_map(fact) if self.asked else values[0]} → {values[1]}"
        return "no row has a prompt with its subject"

    def to_jsonl(self, templates: Mapping[str, str]) -> str:
        """The file that a user would have written by hand, for `kgbench.data.imports`.

        Args:
            templates: Evaluation templates by name, in place of the source's own, which are then all for training. No wording to train in
                begins as one that is asked does.
        """
        asked = dict(templates) or {
            f"ask-{number}": wording for number, wording in enumerate(self.asked, 1)
        }
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


def one_relation(source: Source, asked: str | None) -> tuple[Source, str | None]:
    """A source and which of its relations is meant; where it tells none apart, ``COLUMN=VALUE`` does, or ``COLUMN`` for all of them."""
    if source.relation is not None or asked is None:
        return source, asked
    column, _, value = asked.partition("=")
    return replace(source, relation=column), value or None


def source_names() -> tuple[str, ...]:
    """Names of the sources in sources.toml."""
    return tuple(_table())


def load_source(name: str) -> Source:
    """A row of sources.toml.

    Raises:
        UnknownNameError: There is none of this name.
    """
    if name not in _table():
        raise UnknownNameError(
            "source", name, _table(), "Any set on the Hub can be read as hub:OWNER/NAME."
        )
    return Source(name, **_table()[name])


def _columns(source: Source) -> tuple[str, ...]:
    """The columns that a source is read from, but for subject and object."""
    return tuple(filter(None, (source.relation, source.template, source.prompt, source.training)))


def _check_columns(source: Source, row: Record, others: Iterable[str]) -> None:
    for path in (*others, *_columns(source)):
        if value_at(row, path) is LACKING:
            fitting = next((name for name in source_names() if _fits(load_source(name), row)), None)
            raise UnknownNameError(
                f"column of {source.name}",
                path,
                column_names(row),
                f"It reads as --source {fitting}." if fitting else "",
            )


def _fits(source: Source, row: Record) -> bool:
    wanted = filter(None, (source.subject, source.object, *_columns(source)))
    return source.shape is None and all(value_at(row, path) is not LACKING for path in wanted)


@cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads((Path(__file__).parent / "sources.toml").read_text(encoding="utf-8"))


def choose_fields(
    source: Source, given: ImportOptions
) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Which columns of a source become which fields.

    Args:
        source: What its columns mean; the fields of one that is known are subject and object.
        given: What the user named: other columns for subject and object, more columns, and templates, whose fields are taken too.

    Returns:
        From field to column, first the subject's and the object's; and the fields that no row may lack.

    Raises:
        InputError: A template does not read, or subject and object are the same.
    """
    subject, column = _role(
        source.subject, given.subject, ("subject", "first_actor"), given.columns
    )
    object_, other = _role(source.object, given.object, ("object", "second_actor"), given.columns)
    if column == other:
        raise InputError(
            f"{source.name}: subject and object are both the column {column!r}; name two different ones"
        )
    parts = (
        part for name, text in given.templates.items() for part in parse_template(name, text).parts
    )
    asked = dict.fromkeys(
        part.text for part in parts if part.is_field and part.text not in ("subject", "object")
    )
    fields = {subject: column, object_: other, **given.columns}
    return {**{name: name for name in (*fields, *asked)}, **fields}, (subject, object_, *asked)


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
    source: Source, records: Sequence[Record], fields: Mapping[str, str], needed: Sequence[str]
) -> Mapping[str, Relation]:
    """Sort the rows of a source by relation, and find its wordings.

    Args:
        source: What its columns mean.
        records: What was read.
        fields: From the name of a field, first subject and object, to the column that holds it.
        needed: Fields without which a row is dropped.

    Returns:
        Relations by what the source calls them, the largest first; under "" where it does not tell any apart.

    Raises:
        DataError: There are no rows, or a value is no text.
        UnknownNameError: A column is lacking.
    """
    groups: dict[str, dict[int, Record]] = {}
    for number, row in numbered_rows(source.shape, records):
        if not groups:
            _check_columns(source, row, fields.values())
        name = (
            text_at(row, source.relation, f"{source.name}, row {number}") if source.relation else ""
        )
        if number in groups.setdefault(name, {}):
            raise DataError(
                f"{source.name}: two files hold the relation {name!r}; give the file of one"
            )
        groups[name][number] = row
    if not groups:
        expected = f"; expected what is at {source.files}" if source.files else ""
        raise DataError(f"{source.name}: there are no facts in it{expected}")
    found = {name: _relation(source, name, rows, fields, needed) for name, rows in groups.items()}
    return dict(sorted(found.items(), key=lambda item: -len(item[1].facts)))


def choose_relation(
    source: Source, relations: Mapping[str, Relation], asked: str | None
) -> Relation | None:
    """The one that was asked for, or the only one; None where there are several and none was asked for.

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
    source: Source,
    name: str,
    rows: Mapping[int, Record],
    fields: Mapping[str, str],
    needed: Sequence[str],
) -> Relation:
    where = f"{source.name}, row"
    facts = {
        number: {key: text_at(row, path, f"{where} {number}") for key, path in fields.items()}
        for number, row in rows.items()
    }
    whole = {
        number: rows[number] for number, fact in facts.items() if all(fact[key] for key in needed)
    }
    worded = _wordings(source, whole, facts)
    usable = [
        number for number in whole if worded[number] or not (source.template or source.prompt)
    ]
    ranked = [
        wording
        for wording, _ in Counter(
            wording for number in usable for wording in worded[number]
        ).most_common()
    ]
    training = dict.fromkeys(
        wording
        for number in usable
        for wording in _templates(source, rows[number], source.training)
    )
    asked, trained = (ranked, training) if source.training else (ranked[:1], ranked[1:])
    reasons = {NO_VALUE: set(rows) - set(whole), NO_PROMPT: set(whole) - set(usable)}
    return Relation(
        name=re.sub(r"[^\w.-]+", "-", f"{source.name}-{name}").strip("-"),
        facts={number: facts[number] for number in usable},
        asked=tuple(asked),
        trained=tuple(trained),
        dropped={reason: sorted(numbers) for reason, numbers in reasons.items() if numbers},
    )


def _wordings(
    source: Source, rows: Mapping[int, Record], facts: Mapping[int, Mapping[str, str]]
) -> Mapping[int, tuple[str, ...]]:
    """By row, the wordings that it is given in and that hold its subject."""
    if source.prompt is None:
        return {number: _templates(source, row, source.template) for number, row in rows.items()}
    prompts = {
        number: text_at(row, source.prompt, f"{source.name}, row {number}")
        for number, row in rows.items()
    }
    possible = {
        number: tuple(_cleared(source, prompt, facts[number]["subject"]))
        for number, prompt in prompts.items()
    }
    # A name may be a word of the prompt too: then the wording that most rows share is meant.
    shared = Counter(wording for wordings in possible.values() for wording in wordings)
    return {
        number: (max(wordings, key=lambda one: shared[one]),) if wordings else ()
        for number, wordings in possible.items()
    }


def _cleared(source: Source, prompt: str, subject: str) -> Iterator[str]:
    """A prompt with a field in place of each mention of the subject in turn."""
    for found in re.finditer(f"(?={re.escape(subject)})", prompt):
        before, after = prompt[: found.start()], prompt[found.start() + len(subject) :]
        yield _framed(source, f"{_doubled(before)}{{subject}}{_doubled(after)}")


def _templates(source: Source, row: Record, path: str | None) -> tuple[str, ...]:
    """The texts of a column in which {} stands for the subject."""
    value = value_at(row, path) if path else None
    texts = [
        text.strip()
        for text in (value if isinstance(value, list) else [value])
        if isinstance(text, str)
    ]
    return tuple(
        _framed(source, "{subject}".join(map(_doubled, text.split("{}"))))
        for text in texts
        if "{}" in text
    )


def _framed(source: Source, wording: str) -> str:
    return source.frame.replace("{}", wording)


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _unmarked(name: str, text: str) -> str:
    """A template without the marks of its regions."""
    return "".join(
        f"{{{part.text}}}" if part.is_field else _doubled(part.text)
        for part in parse_template(name, text).parts
    )
