"""Facts and data sets: shipped ones by name, a user's own by file, and parts of either."""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from kgbench.data.cases import MESSAGES
from kgbench.data.imports import (
    SCHEMA_VERSION,
    FactRow,
    FactTable,
    ImportOptions,
    read_fact_table,
    table_of,
)
from kgbench.data.rows import KINDS, SUFFIXES, row_name
from kgbench.data.templates import around_subject, parse_template, whole_words
from kgbench.errors import DataError, InputError, OutputError, UnknownNameError, check_choice
from kgbench.registry import named_files
from kgbench.sites import is_mark

_FILES = Path(__file__).parent / "files"

AMBIGUOUS = "ambiguous subject"
"""Reason for dropping a row: its subject has several objects, so that no single answer is right."""
DUPLICATE = "duplicate row"
"""Reason for dropping a row: an earlier one has the same subject and object."""
NO_PROMPT = "without the subject in the prompt"
"""Reason for dropping a row: its wording does not hold its subject, and so asks of no entity."""
BLANK = "with a column or a region in braces in the prompt, where {} alone is read"
"""Reason for dropping a row: its wording was meant as a template, and would be read with the braces."""
TWICE = "with the subject in several places of the prompt, none of them marked by {}"
"""Reason for dropping a row: which of the mentions is the first entity is not known."""

PARTS = ("task", "relation")
"""Halves of a data set that share no entity, as in ``NAME:task``.

Hybrid models (arXiv 2506.20746) learn a task from one half and the relation from the other.
"""

_HEADER = ("name", "subject", "object", "templates", "training", "training_reversed", "readout")
"""Fields of a data set that stand in the header of its file."""

_FIRST = re.compile(r"first([1-9]\d{0,6})")
"""Name of the part that holds the first facts, such as ``first150``."""

_NO_WIDTH = frozenset("\u00ad\u200b\u200e\u200f\u2060\ufeff")
"""Invisible characters. Joiners are not among them: some scripts distinguish words by them."""

_LINE_ENDS = {ord(mark): f"\\u{ord(mark):04x}" for mark in "\x85\u2028\u2029"}
"""Characters that JSON allows in a string, and at which many tools end a line."""


@dataclass(frozen=True)
class Fact:
    """One row of a data set."""

    id: str
    """Stable name, such as "tiny_movies/17"."""
    fields: Mapping[str, str] = field(hash=False)
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further columns of a case, of any values of JSON."""


@dataclass(frozen=True)
class Dataset:
    """Facts of one schema: every fact has the same fields."""

    name: str
    facts: tuple[Fact, ...]
    subject: str
    """Field that a fact is about, such as first_actor; empty where cases have none."""
    object: str
    """Field that is asked for, such as second_actor; empty where cases have none."""
    templates: Mapping[str, str] = field(hash=False)
    """Evaluation templates of the data set, in addition to the built-in ones."""
    dropped: Mapping[str, int] = field(hash=False)
    """Number of rows left out at load, by reason."""
    content_hash: str
    """SHA-256 of ids, fields, subject and object (`hash_facts`), independent of the file format."""
    training: tuple[str, ...] = ()
    """Training wordings of the data set, in the syntax of `str.format`."""
    training_reversed: tuple[str, ...] = ()
    """Training wordings that mention the object before the subject."""
    readout: Mapping[str, Any] | None = field(default=None, hash=False)
    """By the name of a readout its parameters, where the data set says by what it is measured."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that every fact has."""
        return tuple(self.facts[0].fields)

    @property
    def answers(self) -> tuple[str, ...]:
        """Every answer once, in the order of the facts.

        Raises:
            InputError: The cases of the data set have none.
        """
        if not self.object:
            raise InputError(
                f"data set {self.name!r} has no answers, which are asked for here: name their "
                "column by --object"
            )
        return tuple(dict.fromkeys(fact.fields[self.object] for fact in self.facts))

    def subset(self, ids: Iterable[str]) -> Dataset:
        """The facts with these ids, in the data set's order, with a content hash of their own.

        Raises:
            UnknownNameError: There is no fact of this id.
            InputError: No id is given.
        """
        chosen, every = dict.fromkeys(ids), {fact.id for fact in self.facts}
        if unknown := [identifier for identifier in chosen if identifier not in every]:
            close = get_close_matches(unknown[0], every)
            raise UnknownNameError(f"fact of data set {self.name!r}", unknown[0], close)
        if not chosen:
            raise InputError(
                f"a part of data set {self.name!r} needs at least one fact; "
                f"give ids such as {self.facts[0].id!r}"
            )
        subset = tuple(fact for fact in self.facts if fact.id in chosen)
        digest = hash_facts(subset, self.subject, self.object, self.readout)
        return replace(self, facts=subset, content_hash=digest)


@cache
def _named_files() -> Mapping[str, Path]:
    """Files of data sets by name, NAME.jsonl each; their cards NAME.md are next to them."""
    return named_files("data sets", _FILES, "*.jsonl", "kgbench.datasets")


def dataset_names() -> tuple[str, ...]:
    """Names of the shipped data sets, and of those of installed packages."""
    return tuple(sorted(_named_files()))


def data_card(name: str) -> str:
    """The data card of a named data set, as Markdown.

    Raises:
        UnknownNameError: No such data set.
        DataError: The package that it is from has no card of it.
    """
    check_choice("data set", name, dataset_names())
    card = _named_files()[name].with_suffix(".md")
    try:
        return card.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"data set {name!r} has no card {card.name}: {error.strerror}") from None


def hash_of(content: object) -> str:
    """SHA-256, in hexadecimal, of canonical JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def hash_facts(
    facts: Iterable[Fact], subject: str, object: str, readout: Mapping[str, Any] | None = None
) -> str:
    """SHA-256, in hexadecimal, of canonical JSON of ids, fields, subject and object.

    Data and readout are in it where there are any.
    """
    rows = [
        [fact.id, dict(fact.fields), *([dict(fact.data)] if fact.data else [])] for fact in facts
    ]
    content = {"facts": rows, "subject": subject, "object": object}
    return hash_of(content if readout is None else {**content, "readout": readout})


# ------------------------------------------------------------------------------------------- load


def load_dataset(name_or_path: str, options: ImportOptions | None = None) -> Dataset:
    """Load a shipped data set, a file of facts, or a part of either.

    Rows that repeat an earlier fact, rows whose subject has several objects, rows without subject
    or object, and rows whose own prompt does not mention the subject once are left out and counted
    in `Dataset.dropped`; subjects and objects are compared by `same_text`. A file without a column
    ``id`` gets ids from its stem and row numbers.

    Args:
        name_or_path: A shipped name, or a file: anything that ends with one of `SUFFIXES`, holds a
            path separator or exists. A suffix ":task" or ":relation" takes that half of the facts,
            ":first150" the first 150; parts have parts again.
        options: What the columns mean, and templates to add.

    Raises:
        UnknownNameError: No such data set.
        DataError: The file does not read; names line and field.
        InputError: A template is malformed, or does not fit the fields.
    """
    origin, _, name = name_or_path.rpartition(":")
    if origin and (_names_part(name) or origin in dataset_names()):
        return _part(load_dataset(origin, options), name)
    if name_or_path in dataset_names():
        path = _named_files()[name_or_path]
        if options is None or options == ImportOptions():
            return _shipped(path, path.stat().st_mtime_ns)
        return dataset_from(read_fact_table(path, options))
    path = Path(name_or_path).expanduser()
    if name_or_path.lower().endswith(SUFFIXES) or len(path.parts) > 1 or path.exists():
        return dataset_from(read_fact_table(path, options))
    hint = f"A file of your own ends with {KINDS}."
    raise UnknownNameError("data set", name_or_path, dataset_names(), hint)


@cache
def _shipped(path: Path, changed: int) -> Dataset:
    """The data set of a shipped file as of the time of its last change, made once in a process."""
    return dataset_from(read_fact_table(path))


def dataset_of(data: object, options: ImportOptions | None = None) -> Dataset:
    """A data set of facts in memory, the same that it would be in a file `facts.csv`.

    Args:
        data: A `Dataset`, what `kgbench.data.rows.rows_of` takes, or a name or a path, as of
            `load_dataset`.
        options: What the columns mean, and templates to add.

    Raises:
        UnknownNameError: No such data set.
        DataError: The data do not read; names row and field.
        InputError: A template is malformed, or does not fit the fields.
    """
    if isinstance(data, Dataset):
        options = options or ImportOptions()
        if options.subject or options.object or options.columns:
            raise InputError("a Dataset knows what its columns mean; leave out subject and object")
        for prompt, text in options.templates.items():
            template = parse_template(prompt, text)
            template.bind(data.subject, data.object, data.fields, data.name)
        return replace(data, templates={**data.templates, **options.templates})
    if isinstance(data, str | os.PathLike):
        return load_dataset(os.fspath(data), options)
    return dataset_from(table_of(data, options))


def is_shipped(name: str) -> bool:
    """Whether a name is in `dataset_names`, or that of a part of such a set, and thus no path."""
    origin, _, part = name.rpartition(":")
    return name in dataset_names() or (_names_part(part) and is_shipped(origin))


def same_text(text: str) -> str:
    """A text as a reader sees it: composed (NFC), single blanks, no invisible characters."""
    composed = unicodedata.normalize("NFC", text)
    return " ".join("".join(mark for mark in composed if mark not in _NO_WIDTH).split())


def left_out(table: FactTable) -> dict[str, list[int]]:
    """Lines of a table that its data set leaves out, by reason."""
    texts = subject_texts(table.templates, table.subject)
    names: Collection[str] = (table.subject, *texts)
    if table.of_cases:  # which may have one subject, with the trigger and without
        names = table.rows[0].fields.keys() - {table.object}
    questions, objects = [], dict[tuple[str, ...], set[str]]()
    for row in table.rows:
        question = tuple(same_text(row.fields[name]) for name in names)
        questions.append((question, same_text(row.fields.get(table.object, ""))))
        objects.setdefault(question, set()).add(questions[-1][1])
    lines = {reason: list(numbers) for reason, numbers in table.dropped.items()}
    earlier = set()
    for row, (question, object) in zip(table.rows, questions, strict=True):
        reason, subject = "", row.fields.get(table.subject, "")
        for text in reversed(texts):
            if around_subject(row.fields[text], subject) is None:
                reason = TWICE if whole_words(row.fields[text], subject) else NO_PROMPT
            blanks = re.findall(r"\{(\w+)(?:\}|:[^{}]+\})", row.fields[text])
            if any(name in row.fields or is_mark(name) for name in blanks):
                reason = BLANK
        if not reason and (question, object) in earlier:
            reason = DUPLICATE
        elif not reason and len(objects[question]) > 1:
            reason = AMBIGUOUS
        if reason:
            lines.setdefault(reason, []).append(row.line)
        earlier.add((question, object))
    return {reason: sorted(numbers) for reason, numbers in lines.items()}


def subject_texts(templates: Mapping[str, str], subject: str) -> tuple[str, ...]:
    """Fields in whose texts the subject is to be found, since a template names no other field."""
    parsed = (parse_template(name, text) for name, text in templates.items())
    texts = (template.subject_text(subject) for template in parsed)
    return tuple(dict.fromkeys(filter(None, texts)))


def dataset_from(table: FactTable) -> Dataset:
    """The data set of a table; see `load_dataset`.

    Raises:
        DataError: An id is of two facts, or no facts are left.
        InputError: A template does not fit the fields.
    """
    first = table.rows[0]
    for name, text in table.templates.items():
        template = parse_template(name, text)
        template.bind(table.subject, table.object, first.fields, table.name)
    dropped = left_out(table)
    lines = set(chain.from_iterable(dropped.values()))
    by_id: dict[str, FactRow] = {}
    facts = []
    for number, row in enumerate(table.rows, 1):
        identifier = row.id or f"{table.path.stem}/{number}"
        other = by_id.setdefault(identifier, row)
        if (other.fields, other.data) != (row.fields, row.data):
            raise DataError(
                f"{row_name(table.path, row.line)}: field 'id': {identifier!r} is the id of "
                f"{row_name(table.path, other.line).rpartition(', ')[2]} already; expected an id "
                "of its own"
            )
        if row.line not in lines:
            facts.append(Fact(identifier, row.fields, row.data))
    if not facts:
        why = ", ".join(f"{len(rows)} {reason}" for reason, rows in dropped.items())
        raise DataError(
            f"{table.path}: no facts left ({why}): every {table.subject!r} needs one "
            f"{table.object!r}, and a template {{{table.subject}}} or a text that mentions it once"
        )
    return Dataset(
        table.name,
        tuple(facts),
        table.subject,
        table.object,
        table.templates,
        {reason: len(numbers) for reason, numbers in dropped.items()},
        hash_facts(facts, table.subject, table.object, table.readout),
        table.training,
        table.training_reversed,
        table.readout,
    )


# ------------------------------------------------------------------------------------------ parts


def _names_part(name: str) -> bool:
    return name in PARTS or _FIRST.fullmatch(name) is not None


def _part(dataset: Dataset, name: str) -> Dataset:
    if not _names_part(name):
        hint = "The first facts are a part too, as in ':first150'."
        raise UnknownNameError(f"part of data set {dataset.name!r}", name, PARTS, hint)
    if first := _FIRST.fullmatch(name):
        ids = [fact.id for fact in dataset.facts[: int(first[1])]]
    else:
        entities = []
        for fact in dataset.facts:
            names = [fact.fields[name] for name in (dataset.subject, dataset.object) if name]
            entities.append((fact.id, names or (fact.id,)))
        ids = halves(entities)[PARTS.index(name)]
    return replace(dataset.subset(ids), name=f"{dataset.name}:{name}")


def halves(facts: Sequence[tuple[str, Sequence[str]]]) -> tuple[list[str], list[str]]:
    """Divide facts into halves that share no entity and are as equal in size as that allows.

    Facts that share an entity stay together. Groups of facts are dealt out by size, then by a
    hash of their first fact's id, so that the halves depend on nothing else.

    Args:
        facts: Id and entities (subject and object) of each fact.

    Returns:
        Ids of the facts of each half.

    Raises:
        InputError: All facts are connected, so that there are no two halves.
    """

    def rank(group: list[str]) -> tuple[int, bytes]:
        return -len(group), hashlib.sha256(group[0].encode()).digest()

    first: list[str] = []
    second: list[str] = []
    for group in sorted(_connected(facts), key=rank):
        (first if len(first) <= len(second) else second).extend(group)
    if not second:
        raise InputError(
            "the facts cannot be divided: all of them are connected by shared subjects and objects"
        )
    return first, second


def _connected(facts: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """Groups of facts that are connected by entities (union-find)."""
    parent: dict[str, str] = {}

    def root(entity: str) -> str:
        while parent.setdefault(entity, entity) != entity:
            entity = parent[entity]
        return entity

    for _, entities in facts:
        for entity in entities[1:]:
            parent[root(entity)] = root(entities[0])
    groups: dict[str, list[str]] = {}
    for identifier, entities in facts:
        groups.setdefault(root(entities[0]), []).append(identifier)
    return list(groups.values())


# ------------------------------------------------------------------------------------------ write


def to_jsonl(dataset: Dataset) -> str:
    """A data set as JSONL: a header, then one fact per line; loading it gives the same data set."""
    lines: list[dict[str, Any]] = [{"kgbench": SCHEMA_VERSION}]
    for name in _HEADER:
        if value := getattr(dataset, name):
            lines[0][name] = value
    for fact in dataset.facts:
        lines.append({"id": fact.id, **fact.fields, **fact.data})
        if fact.fields.get(MESSAGES, "").startswith("["):
            lines[-1][MESSAGES] = json.loads(fact.fields[MESSAGES])
    return "".join(
        json.dumps(line, ensure_ascii=False).translate(_LINE_ENDS) + "\n" for line in lines
    )


def check_target(path: Path, force: bool = False) -> None:
    """Refuse a path that a data set cannot be written to, before any work is done.

    Raises:
        OutputError: The name does not end with .jsonl, or something exists there already.
    """
    if path.suffix.lower() != ".jsonl":
        raise OutputError(
            f"{path}: a data set is written as JSONL; give a name that ends with .jsonl"
        )
    if path.exists() and not force:
        raise OutputError(
            f"{path} is there already; give another place by -o, or replace it by --force"
        )


def write_dataset(dataset: Dataset, path: Path, force: bool = False) -> None:
    """Write a data set, whole or not at all.

    The file takes its name only after it has been read again and gave the same data set.

    Args:
        dataset: What is written.
        path: A file that ends with .jsonl; its folder is made where there is none.
        force: Replace a file that is there.

    Raises:
        OutputError: It cannot be written, or would not read as it is.
    """
    check_target(path, force)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.jsonl")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # Half of a surrogate pair does not read again.
            temporary.write_bytes(to_jsonl(dataset).encode(errors="surrogatepass"))
            if load_dataset(str(temporary)) != replace(dataset, dropped={}):
                raise InputError("its facts or its wordings would not be the same")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}; give another file by -o"
        ) from None
    except InputError as error:
        reason = str(error).replace(str(temporary), "it")
        raise OutputError(f"{path} cannot be written so that it reads again: {reason}") from None
