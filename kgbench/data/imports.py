"""Read a table into checked rows of text.

A file is one of the kinds in `kgbench.data.rows.SUFFIXES`. JSONL holds one object per line and may
begin with a header, marked by its key ``kgbench`` (the version of the file format)::

    {"kgbench": 1, "name": "capitals", "subject": "country", "object": "capital",
     "columns": {"country": "land"}, "templates": {"capital": "The capital {P:of} {country} is"}}
    {"id": "capitals/1", "land": "France", "capital": "Paris", "since": 987}

Only the version is needed in it. It may hold ``training``, a list of wordings to finetune in, and
``training_reversed``, those that mention the object first (see `kgbench.data.training_texts`). A
CSV file, whose first row names its columns, has no such header; `ImportOptions` give the same
things for it, and overrule the header of a JSONL file. Rows of a prompt, a subject and a target
need neither: their own texts are asked, and their columns are known by name.

Rows are cases where the header has a ``readout`` (a name, with its parameters), where they have
``messages`` in place of a text, or where a column ``group`` holds `on` or `off`. Cases need neither
subject nor answer, and all of their columns are kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from kgbench.data.cases import GROUP, GROUPS, MESSAGES, messages_of, messages_text
from kgbench.data.rows import (
    LACKING,
    WHOLE,
    Numbered,
    cell_at,
    cell_fault,
    is_nested,
    json_value,
    read_rows,
    row_error,
    rows_of,
    text_cells,
)
from kgbench.data.templates import parse_template
from kgbench.errors import DataError, InputError

EMPTY = "row without subject or object"
"""Reason for dropping a row: a cell that every fact needs is empty."""
NO_VALUE = "without a value for a prompt"
"""Reason for dropping a row: a field of a template is empty."""

SCHEMA_VERSION = 1
"""Version of the file format, the value of a header's ``kgbench``."""

_EDIT = "requested_rewrite."
_SUBJECTS = ("first_actor", "subject", f"{_EDIT}subject")
_PROMPTS = (f"{_EDIT}prompt", "prompt", "src")
_EDITS = (
    *(f"{_EDIT}target_new.str", f"{_EDIT}target_new", "target", "target_new.str", "target_new"),
    *("alt", "answer", "answers.0"),
    *(f"{_EDIT}target_true.str", f"{_EDIT}target_true", "target_true.str", "target_true"),
)
_OBJECTS = ("second_actor", "object", *_EDITS)
"""Columns that are subject, prompt and answer unless others are named, the likeliest first: those
of movies, of rows of prompt, subject and target, and of CounterFact, zsRE and KnowEdit.
After an edit a model has learned the new answer, which comes before the true one.
"""
_MOVIES = "first_actor"
"""Subject of the built-in prompts."""
_LISTS = ("training", "training_reversed")


@dataclass(frozen=True)
class ImportOptions:
    """Meaning of the columns of a user's file; overrules the file's header.

    The docstrings are the help of the options (`kgbench.cli.options`).
    """

    subject: str | None = field(default=None, metadata={"metavar": "COLUMN"})
    """Your file: what a fact is about.  [default: first_actor, else subject]"""
    object: str | None = field(default=None, metadata={"metavar": "COLUMN"})
    """Your file: what is asked for.  [default: second_actor, else object]"""
    columns: Mapping[str, str] = field(
        default_factory=dict,
        hash=False,
        metadata={"flag": "--column", "metavar": "FIELD=COLUMN"},
    )
    """Your file: column that holds a field, where the names differ."""
    templates: Mapping[str, str] = field(
        default_factory=dict,
        hash=False,
        metadata={"flag": "--template", "metavar": "[NAME=]TEXT"},
    )
    """Evaluation template of your own, to be named in --prompt."""


@dataclass(frozen=True)
class FactRow:
    """One row: its line, its id if it has one, its fields as text."""

    line: int
    id: str | None
    fields: Mapping[str, str] = field(hash=False)
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of a case, the columns that are no field."""


@dataclass(frozen=True)
class FactTable:
    """The content of a file: every row has the same fields, none empty."""

    path: Path
    name: str
    subject: str
    object: str
    templates: Mapping[str, str] = field(hash=False)
    rows: tuple[FactRow, ...]
    training: tuple[str, ...] = ()
    training_reversed: tuple[str, ...] = ()
    incomplete: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Fields left out because some row is empty there, and the first such line."""
    dropped: Mapping[str, Sequence[int]] = field(default_factory=dict, hash=False)
    """By reason, the lines of rows left out because they lack something."""
    of_cases: bool = False
    readout: Mapping[str, Any] | None = field(default=None, hash=False)


def read_fact_table(path: Path, options: ImportOptions | None = None) -> FactTable:
    """Read a file of one of the kinds in `kgbench.data.rows.SUFFIXES`.

    Numbers become the text that they are written as; blanks around a value are removed. A column
    that is empty in some row, or holds lists or objects, is left out; a row without subject or
    object, or without a field of a template, is left out too, and its line kept in
    `FactTable.dropped`.

    Raises:
        DataError: The file or a row of it does not read; names line and field.
    """
    numbered = read_rows(path)
    header: dict[str, Any] = {}
    if numbered and "kgbench" in numbered[0][1]:
        from kgbench.data.headers import header_fault  # which loads pydantic

        line, header = numbered.pop(0)
        if fault := header_fault(header):
            raise row_error(path, line, fault)
    return fact_table(path, numbered, header, options or ImportOptions())


def table_of(data: object, options: ImportOptions | None = None) -> FactTable:
    """Facts in memory, checked as those of a file `facts.csv` are.

    Args:
        data: What `kgbench.data.rows.rows_of` takes.
        options: What the columns mean, and templates to add.

    Raises:
        DataError: The data are of another kind, or a row does not read.
    """
    numbered = []
    for number, row in enumerate(rows_of(data), 1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"facts, row {number}: expected a mapping from field to value; found a "
                f"{type(row).__name__}"
            )
        numbered.append((number, {str(key): value for key, value in row.items()}))
    return fact_table(Path("facts"), numbered, {}, options or ImportOptions())


def fact_table(
    path: Path,
    numbered: list[Numbered],
    header: Mapping[str, Any],
    options: ImportOptions,
    named_only: bool = False,
) -> FactTable:
    """The table of rows, checked.

    Args:
        path: Their file, or the name of facts that are in none.
        numbered: The rows with their numbers.
        header: Of the file.
        options: What overrules it.
        named_only: Only columns that options and templates name are fields.

    Raises:
        DataError: A row does not read; names its number and the field.
    """
    if not numbered:
        raise DataError(f"{path}: holds no facts; expected one per line")
    renamed = {**header.get("columns", {}), **options.columns}
    columns = _Columns(path, numbered, renamed, named_only)
    templates = {**header.get("templates", {}), **options.templates}
    prompt = next(filter(columns.has, _PROMPTS), None)
    if not templates and prompt is None and columns.has(MESSAGES) and not columns.has(_MOVIES):
        templates = {MESSAGES: f"{{{MESSAGES}}}"}
    is_chat = any(parse_template(name, text).is_chat for name, text in templates.items())
    readout = json_value(header["readout"]) if "readout" in header else None
    if isinstance(readout, str):
        readout = {readout: {}}
    groups = {str(cell_at(row, columns.fields.get(GROUP, GROUP))).strip() for _, row in numbered}
    of_cases = is_chat or readout is not None or not groups.isdisjoint(GROUPS)
    subject, object = _roles(columns, header, options, of_cases)
    training = {key: tuple(header.get(key, ())) for key in _LISTS}
    if prompt is not None and not templates and subject != _MOVIES:
        templates = {"prompt": f"{{{prompt}}}"}
        if object:
            training["training"] = training["training"] or (f"{{{prompt}}} {{{object}}}.",)
    for name, text in templates.items():
        for column in filter(columns.has, parse_template(name, text).fields):
            columns.add(column)
    texts = columns.texts()
    identifiers = texts.pop("id", [None] * len(numbered))
    if of_cases and GROUP in texts:
        texts[GROUP] = [group or GROUPS[0] for group in texts[GROUP]]
    complete: list[int] = []
    dropped: dict[str, list[int]] = {}
    for number, (line, _) in enumerate(numbered):
        if identifiers[number] == "":
            expected = "every row needs a text or a number there, or none has ids"
            raise row_error(path, line, f"field 'id' is empty; {expected}")
        if of_cases and GROUP in texts and texts[GROUP][number] not in GROUPS:
            expected = f"expected {' or '.join(GROUPS)}, found {texts[GROUP][number]!r}"
            raise row_error(path, line, f"field {GROUP!r}: {expected}")
        lacking = [name for name in columns.required if not texts[name][number]]
        if lacking:
            reason = NO_VALUE if {subject, object}.isdisjoint(lacking) else EMPTY
            dropped.setdefault(reason, []).append(line)
        else:
            complete.append(number)
    if not complete:
        needed = ", ".join(map(repr, columns.required))
        expected = "every fact needs a text or a number there"
        raise row_error(path, numbered[0][0], f"no row has all of {needed}; {expected}")
    if object and all(WHOLE.fullmatch(texts[object][number]) for number in complete):
        answer = texts[object][complete[0]]
        warnings.warn(
            f"{path}: every {object!r} is a fraction, such as {answer}, and asked for as that; "
            f"where {answer[:-2]} is meant, make the column one of whole numbers",
            stacklevel=1,
        )
    incomplete: dict[str, int] = {}
    for name, cells in texts.items():
        if gaps := [numbered[number][0] for number in complete if not cells[number]]:
            incomplete[name] = gaps[0]
    names = texts.keys() - incomplete.keys()
    plain = {columns.fields.get(name) for name in (*names, "id")}
    rows = []
    for number in complete:
        line, row = numbered[number]
        fields = {name: cells[number] for name, cells in texts.items() if name in names}
        data = {}
        for column, cell in row.items() if of_cases else ():
            if column not in plain and (value := json_value(cell)) is not None:
                data[column] = value
        rows.append(FactRow(line, identifiers[number], fields, data))
    return FactTable(
        path,
        header.get("name", path.stem),
        subject,
        object,
        templates,
        tuple(rows),
        **training,
        incomplete={} if of_cases else incomplete,
        dropped=dropped,
        of_cases=of_cases,
        readout=readout,
    )


# --------------------------------------------------------------------------------------- columns


class _Columns:
    """The columns of a table, and which fields of its facts they are.

    A cell that a row lacks is empty. Columns of lists and objects are none, unless a value in them
    is required.
    """

    def __init__(
        self,
        path: Path,
        numbered: Sequence[Numbered],
        columns: Mapping[str, str],
        named_only: bool,
    ) -> None:
        """Take the plain columns.

        Args:
            path: The file, or the name of facts in memory.
            numbered: Its rows.
            columns: Column of a field, where the names differ.
            named_only: Take no column that is not named here or added.

        Raises:
            DataError: A column that is named is not there.
        """
        self.path, self.numbered, self.named = path, numbered, columns
        rows = [row for _, row in numbered]
        self.names = tuple(dict.fromkeys(chain.from_iterable(rows)))
        for name, column in columns.items():
            if not self._holds(column):
                raise DataError(
                    f"{path}: no column {column!r} to take {name!r} from; there are "
                    f"{', '.join(self.names)}"
                )
            if not named_only and name in self.names and name not in columns.values():
                raise DataError(
                    f"{path}: cannot take {name!r} from the column {column!r}: there is a column "
                    f"{name!r} too"
                )
        self.fields = dict(columns)
        for name in () if named_only else self.names:
            if name not in columns.values() and not any(is_nested(row.get(name)) for row in rows):
                self.fields[name] = name
        self.required: dict[str, None] = {}

    def _holds(self, column: str) -> bool:
        """Whether some row has such a column."""
        if column in self.names:
            return True
        cells = (cell_at(row, column) for _, row in self.numbered)
        return any(cell is not None and cell is not LACKING for cell in cells)

    def has(self, field: str) -> bool:
        """Whether there is such a field, or a column that could be one."""
        return field in self.fields or (field not in self.named.values() and self._holds(field))

    def add(self, field: str) -> None:
        """Require a field; a column becomes one."""
        self.fields.setdefault(field, field)
        self.required[field] = None

    def texts(self) -> dict[str, list[str]]:
        """The texts of each field in all rows; empty for nothing.

        Raises:
            DataError: A cell is no text or number; names its line.
        """
        texts = {}
        for name, column in self.fields.items():
            cells = [cell_at(row, column) for _, row in self.numbered]
            if name == MESSAGES and name in self.required:
                cells = list(map(self._messages, self.numbered, cells))
            texts[name] = text_cells([None if cell is LACKING else cell for cell in cells])
            for (line, _), text in zip(self.numbered, texts[name], strict=True):
                if (fault := cell_fault(column, text)) is not None:
                    raise row_error(self.path, line, f"field {column!r}: {fault}")
        return texts

    def _messages(self, numbered: Numbered, cell: Any) -> str:
        try:
            return messages_text(messages_of(json_value(cell)))
        except InputError as error:
            raise row_error(self.path, numbered[0], f"field {MESSAGES!r}: {error}") from None


# ------------------------------------------------------------------------------ subject and object


def _roles(
    columns: _Columns, header: Mapping[str, Any], options: ImportOptions, of_cases: bool
) -> tuple[str, str]:
    """The fields that are subject and object, among `columns.fields` then; cases may have none."""
    path, has_ids = columns.path, "id" in columns.fields
    names = ", ".join(columns.fields or columns.names)
    roles: list[str] = []
    for role, option, defaults in (
        ("subject", options.subject, _SUBJECTS),
        ("object", options.object, _OBJECTS),
    ):
        name = option or header.get(role)
        # A role may be given by the name of a column that was renamed.
        for field_name, column in columns.named.items():
            if column == name and name not in columns.fields:
                name = field_name
        likely = [name] if name is not None else list(filter(columns.has, defaults))
        if not likely and of_cases:
            roles.append("")
            continue
        if not likely:
            raise DataError(
                f"{path}: which column is the {role}? There are {names}; name them by "
                "--subject COLUMN and --object COLUMN (and a prompt of your own by --template), or "
                "in the file's header"
            )
        name = likely[0]
        # The name of an answer, wherever in a row it is.
        answers = dict.fromkeys(each.removeprefix(_EDIT).partition(".")[0] for each in likely)
        if name in _EDITS and len(answers) > 1:
            taken, *others = answers
            warnings.warn(
                f"{path}: the answer is {taken}, and could be {', '.join(others)}: choose one by "
                "--object",
                stacklevel=1,
            )
        if name == "id" and has_ids:
            raise DataError(
                f"{path}: column 'id' names the facts, so it cannot be the {role}; call it "
                f"otherwise, as by --column {role}=id"
            )
        if not columns.has(name):
            raise DataError(f"{path}: no column {name!r} to be the {role}; there are {names}")
        columns.add(name)
        roles.append(name)
    subject, object = roles
    if subject == object and subject:
        raise DataError(
            f"{path}: subject and object are both the column {subject!r}; expected two different "
            f"ones; there are {names}"
        )
    return subject, object
