"""From a JSONL or CSV file to checked rows of text.

JSONL holds one object per line and may begin with a header, told by its key ``kgbench`` (the schema version)::

    {"kgbench": 1, "name": "capitals", "subject": "country", "object": "capital", "columns": {"country": "land"},
     "templates": {"capital": "The capital {P:of} {country} is"}}
    {"id": "capitals/1", "land": "France", "capital": "Paris", "since": 987}

Only the version is needed in it. It may hold ``training``, a list of wordings to finetune in, and ``training_reversed``, those that mention
the object first, see `kgbench.data.training_texts`. A CSV file, whose first row names its columns, has no header of this kind; for it, and
to overrule a header, the same things are given as `ImportOptions`.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kgbench.errors import DataError

__all__ = ["SCHEMA_VERSION", "ImportOptions", "Row", "Table", "read_table"]

SCHEMA_VERSION = 1
"""Version of the file format, the value of a header's ``kgbench``."""

LONGEST = 10_000
"""Characters of a field. A prompt is a sentence; tokenizers take seconds and gigabytes for a text of millions."""

LARGEST = 1 << 30
"""Bytes of a file."""

_DEFAULT_SUBJECTS = ("first_actor", "subject")
_DEFAULT_OBJECTS = ("second_actor", "object")
_LISTS = ("training", "training_reversed")
_NAME = re.compile(r"\w[\w .:+-]{0,99}")
"""Name of a data set: it stands in records and in names of folders."""
_HEADER_KEYS = ("kgbench", "name", "subject", "object", "columns", "templates", *_LISTS)


@dataclass(frozen=True)
class ImportOptions:
    """What to make of a file's columns; overrules the file's own header."""

    subject: str | None = None
    """Field that a fact is about, or the column that holds it; by default first_actor, else subject, whichever the file has."""
    object: str | None = None
    """Field that is asked for, likewise; by default second_actor, else object."""
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    """From the name of a field to the column that holds it, where they differ."""
    templates: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Evaluation templates by name, in the syntax of `kgbench.data.templates`."""


@dataclass(frozen=True)
class Row:
    """One row: where it stood, its id if it had one, its fields as text."""

    line: int
    id: str | None
    fields: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Table:
    """A file that was read: every row has the same fields, none empty."""

    path: Path
    name: str
    subject: str
    object: str
    templates: Mapping[str, str] = field(hash=False)
    rows: tuple[Row, ...]
    training: tuple[str, ...] = ()
    training_reversed: tuple[str, ...] = ()
    incomplete: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Fields left out, since some row has nothing there, and the first such line."""
    empty: tuple[int, ...] = ()
    """Lines of rows left out, since they have no subject or no object."""


def read_table(path: Path, options: ImportOptions | None = None) -> Table:
    """Read a ``.jsonl`` or ``.csv`` file.

    Numbers become the text that they are written as; blanks around a value are taken off. A column that is empty in some row is left
    out; a row without subject or object is left out, and its line kept in `Table.empty`.

    Raises:
        DataError: The file or a row of it does not read; names line and field.
    """
    readers = {".jsonl": _read_jsonl, ".csv": _read_csv}
    if path.suffix.lower() not in readers:
        raise DataError(f"{path}: expected a file that ends with .jsonl or .csv")
    numbered = list(readers[path.suffix.lower()](path, _read_text(path)))
    header: dict[str, Any] = {}
    if numbered and "kgbench" in numbered[0][1]:
        header = _checked_header(path, *numbered.pop(0))
    if not numbered:
        raise DataError(f"{path}: holds no facts; expected one per line")
    given = options or ImportOptions()
    columns = {**header.get("columns", {}), **given.columns}
    rows = tuple(_rows(path, numbered, columns))
    names = tuple(rows[0].fields)
    subject = _role(
        path,
        "subject",
        _renamed(given.subject or header.get("subject"), columns, names),
        _DEFAULT_SUBJECTS,
        rows[0],
    )
    object_ = _role(
        path,
        "object",
        _renamed(given.object or header.get("object"), columns, names),
        _DEFAULT_OBJECTS,
        rows[0],
    )
    if subject == object_:
        raise DataError(
            f"{path}: subject and object are both the column {subject!r}; expected two different ones of {', '.join(names)}"
        )
    whole = tuple(row for row in rows if row.fields[subject] and row.fields[object_])
    if not whole:
        raise _fail(
            path,
            rows[0].line,
            f"no row has both {subject!r} and {object_!r}; every fact needs a text or a number there",
        )
    empty = tuple(row.line for row in rows if not (row.fields[subject] and row.fields[object_]))
    rows = whole
    incomplete = _incomplete(rows)
    complete = tuple(
        replace(
            row, fields={name: text for name, text in row.fields.items() if name not in incomplete}
        )
        for row in rows
    )
    templates = {**header.get("templates", {}), **given.templates}
    wordings = {key: tuple(header.get(key, ())) for key in _LISTS}
    return Table(
        path,
        header.get("name", path.stem),
        subject,
        object_,
        templates,
        complete,
        **wordings,
        incomplete=incomplete,
        empty=empty,
    )


def _incomplete(rows: Iterable[Row]) -> dict[str, int]:
    """The fields that are empty in some row, with the first line of that."""
    found: dict[str, int] = {}
    for row in rows:
        for name in (name for name, text in row.fields.items() if not text):
            found.setdefault(name, row.line)
    return found


def _fail(path: Path, line: int, message: str) -> DataError:
    return DataError(f"{path}, line {line}: {message}")


def _read_text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise DataError(
                f"{path}: holds {size:,} bytes; expected {LARGEST:,} at most: give a part of the facts"
            )
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _fail(
            path,
            raw[: error.start].count(b"\n") + 1,
            "is not UTF-8; save the file in that encoding",
        ) from None
    if not text.strip():
        raise DataError(f"{path}: is empty; expected one fact per line")
    return text


def _read_jsonl(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Not splitlines: a JSON string may hold U+2028 and its like as they are.
    for line, source in enumerate(text.split("\n"), 1):
        if not source.strip():
            continue
        try:
            value = json.loads(
                source,
                object_pairs_hook=_unique,
                parse_int=str,
                parse_float=str,
                parse_constant=_refuse_constant,
            )
        except json.JSONDecodeError as error:
            raise _fail(path, line, f"is not JSON: {error.msg} at column {error.colno}") from None
        except (ValueError, RecursionError) as error:
            raise _fail(path, line, f"is not a row of facts: {error}") from None
        if not isinstance(value, dict):
            raise _fail(
                path,
                line,
                f'expected an object of fields, as {{"subject": …}}; found {source.strip()[:40]}',
            )
        yield line, value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"field {next(n for n in names if names.count(n) > 1)!r} stands in it twice"
        )
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _read_csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] | None = None
    try:
        line = 1
        for cells in reader:
            empty = not any(
                cell.strip() for cell in cells
            )  # as spreadsheets write below the last row
            if not empty and columns is None:
                columns = [cell.strip() for cell in cells]
                if not all(columns) or len(set(columns)) < len(columns):
                    raise _fail(
                        path,
                        line,
                        f"expected different column names, none empty; found {', '.join(map(repr, columns))}",
                    )
            elif not empty and columns is not None:
                if len(cells) > len(columns):
                    raise _fail(
                        path,
                        line,
                        f"holds {len(cells)} cells, but there are {len(columns)} columns ({', '.join(columns)})",
                    )
                yield line, dict(zip_longest(columns, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise _fail(path, reader.line_num, f"is not CSV: {error}") from None


def _checked_header(path: Path, line: int, header: dict[str, Any]) -> dict[str, Any]:
    # Numbers arrive as text, see read_table.
    if header["kgbench"] != str(SCHEMA_VERSION):
        raise _fail(
            path,
            line,
            f"field 'kgbench': unknown schema version {header['kgbench']!r}; expected {SCHEMA_VERSION}",
        )
    for key, value in header.items():
        if key not in _HEADER_KEYS:
            raise _fail(path, line, f"field {key!r}: a header may hold {', '.join(_HEADER_KEYS)}")
        if key in ("columns", "templates"):
            if not isinstance(value, dict) or not all(
                isinstance(text, str) and text for text in value.values()
            ):
                raise _fail(path, line, f"field {key!r}: expected an object from name to text")
        elif key in _LISTS:
            if not isinstance(value, list) or not all(
                isinstance(text, str) and text for text in value
            ):
                raise _fail(path, line, f"field {key!r}: expected a list of texts")
        elif not isinstance(value, str) or not value.strip():
            raise _fail(path, line, f"field {key!r}: expected a text that is not empty")
    if not _NAME.fullmatch(header.get("name", "facts")):
        expected = (
            "expected a name of letters, digits, blanks and _.:+-, at most 100 of them, and no path"
        )
        raise _fail(path, line, f"field 'name': {header['name'][:100]!r} is none; {expected}")
    return header


def _rows(
    path: Path, numbered: Iterable[tuple[int, dict[str, Any]]], columns: Mapping[str, str]
) -> Iterator[Row]:
    renamed = {column: name for name, column in columns.items()}
    names: tuple[str, ...] | None = None
    for line, record in numbered:
        if names is None:
            names = tuple(record)
            _check_columns(path, columns, names)
        for name in record:
            if name not in names:
                raise _fail(
                    path,
                    line,
                    f"field {name!r}: the first row has no such field (it has {', '.join(names)})",
                )
        fields = {renamed.get(name, name): _text(path, line, name, record) for name in names}
        identifier = fields.pop("id", None)
        if identifier == "":
            raise _fail(
                path,
                line,
                "field 'id' is empty; every row needs a text or a number there, or none has ids",
            )
        yield Row(line, identifier, fields)


def _check_columns(path: Path, columns: Mapping[str, str], names: tuple[str, ...]) -> None:
    for name, column in columns.items():
        if column not in names:
            raise DataError(
                f"{path}: no column {column!r} to take {name!r} from; there are {', '.join(names)}"
            )
        if name in names and name not in columns.values():
            raise DataError(
                f"{path}: cannot take {name!r} from the column {column!r}: there is a column {name!r} too"
            )
    if len(set(columns.values())) < len(columns):
        raise DataError(
            f"{path}: one column is named for two fields: {', '.join(f'{n}={c}' for n, c in columns.items())}"
        )


def _text(path: Path, line: int, name: str, record: Mapping[str, Any]) -> str:
    if name not in record:
        raise _fail(
            path, line, f"field {name!r} is missing; every row needs the fields of the first one"
        )
    value = record[name]
    if isinstance(value, dict | list):
        found = "an object" if isinstance(value, dict) else "a list"
        raise _fail(path, line, f"field {name!r}: expected a text or a number, found {found}")
    text = (
        ""
        if value is None
        else str(value).lower()
        if isinstance(value, bool)
        else str(value).strip()
    )
    if len(text) > LONGEST:
        raise _fail(
            path,
            line,
            f"field {name!r}: holds {len(text):,} characters; expected {LONGEST:,} at most",
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise _fail(
            path, line, f"field {name!r}: holds half of a surrogate pair, which is no character"
        )
    return text


def _renamed(given: str | None, columns: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """A field as it is called now, where it was given by the name of the column that holds it."""
    return next(
        (name for name, column in columns.items() if column == given and given not in names), given
    )


def _role(path: Path, role: str, given: str | None, defaults: tuple[str, ...], row: Row) -> str:
    names = tuple(row.fields)
    only = f"is only {names[0]}, " + (
        "and columns are separated by commas" if row.id is None else "beside the ids"
    )
    columns = f"are {', '.join(names)}" if len(names) != 1 else only
    if given is None:
        found = next((name for name in defaults if name in names), None)
        if found is None:
            expected = f"name one by --{role} COLUMN"
            if role == "subject" and not any(name in names for name in _DEFAULT_OBJECTS):
                expected += ", and the answer by --object COLUMN"
            expected += " (and a prompt of your own by --template), or in the file's header"
            raise DataError(f"{path}: which column is the {role}? There {columns}; {expected}")
        return found
    if given == "id" and row.id is not None:
        raise DataError(
            f"{path}: column 'id' names the facts, so it cannot be the {role}; call it otherwise, as by --column {role}=id"
        )
    if given not in names:
        raise DataError(f"{path}: no column {given!r} to be the {role}; there {columns}")
    return given
