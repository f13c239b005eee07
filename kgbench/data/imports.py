"""Read a JSONL or CSV file into checked rows of text.

JSONL holds one object per line and may begin with a header, marked by its key ``kgbench`` (the
version of the file format)::

    {"kgbench": 1, "name": "capitals", "subject": "country", "object": "capital",
     "columns": {"country": "land"}, "templates": {"capital": "The capital {P:of} {country} is"}}
    {"id": "capitals/1", "land": "France", "capital": "Paris", "since": 987}

Only the version is needed in it. It may hold ``training``, a list of wordings to finetune in, and
``training_reversed``, those that mention the object first (see `kgbench.data.training_texts`). A
CSV file, whose first row names its columns, has no such header; `ImportOptions` give the same
things for it, and overrule the header of a JSONL file.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kgbench.errors import DataError

SCHEMA_VERSION = 1
"""Version of the file format, the value of a header's ``kgbench``."""

LONGEST = 10_000
"""Characters of a field. Tokenizers take seconds and gigabytes for a text of millions."""

LARGEST = 1 << 30
"""Bytes of a file."""

_DEFAULT_SUBJECTS = ("first_actor", "subject")
_DEFAULT_OBJECTS = ("second_actor", "object")
_LISTS = ("training", "training_reversed")
_NAME = re.compile(r"\w[\w .:+-]{0,99}")
"""Name of a data set: it is used in records and in names of folders."""
_HEADER_KEYS = ("kgbench", "name", "subject", "object", "columns", "templates", *_LISTS)


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
    empty: tuple[int, ...] = ()
    """Lines of rows left out because they have no subject or no object."""


def read_fact_table(path: Path, options: ImportOptions | None = None) -> FactTable:
    """Read a ``.jsonl`` or ``.csv`` file.

    Numbers become the text that they are written as; blanks around a value are removed. A column
    that is empty in some row is left out; a row without subject or object is left out, and its
    line kept in `FactTable.empty`.

    Raises:
        DataError: The file or a row of it does not read; names line and field.
    """
    if path.suffix.lower() not in (".jsonl", ".csv"):
        raise DataError(f"{path}: expected a file that ends with .jsonl or .csv")
    return parse_fact_table(path, read_text(path), options)


def parse_fact_table(path: Path, text: str, options: ImportOptions | None = None) -> FactTable:
    """The table of a file whose text was read already; otherwise as `read_fact_table`."""
    read = _read_csv if path.suffix.lower() == ".csv" else _read_jsonl
    numbered = list(read(path, text))
    header: dict[str, Any] = {}
    if numbered and "kgbench" in numbered[0][1]:
        header = _checked_header(path, *numbered.pop(0))
    return _table(path, numbered, header, options or ImportOptions())


def table_of(data: object, options: ImportOptions | None = None) -> FactTable:
    """Facts in memory, checked as those of a file `facts.csv` are.

    Args:
        data: A DataFrame (of pandas or polars), a `datasets.Dataset`, or a sequence of mappings.
        options: What the columns mean, and templates to add.

    Raises:
        DataError: The data are of another kind, or a row does not read.
    """
    numbered = []
    for number, row in enumerate(_mappings(data), 1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"facts, row {number}: expected a mapping from field to value; found a "
                f"{type(row).__name__}"
            )
        numbered.append((number, {str(key): _cell(value) for key, value in row.items()}))
    return _table(Path("facts"), numbered, {}, options or ImportOptions())


def _mappings(data: Any) -> Iterable[Any]:
    """The rows of a table of any of the libraries."""
    if hasattr(data, "to_dicts"):  # polars
        return data.to_dicts()  # type: ignore[no-any-return]
    if hasattr(data, "iterrows"):  # pandas
        return data.to_dict("records")  # type: ignore[no-any-return]
    if isinstance(data, Mapping | str) or not isinstance(data, Iterable):
        splits = f" with the keys {', '.join(map(str, data))}" if isinstance(data, Mapping) else ""
        raise DataError(
            f"the facts are a {type(data).__name__}{splits}; expected a DataFrame, a "
            "datasets.Dataset (one split of it), a list of dicts, or a name or file"
        )
    return data


def _cell(value: Any) -> Any:
    """A value as a file would have it; NaN and other marks of missing values are None."""
    if isinstance(value, str | bool | dict | list) or value is None:
        return value
    try:
        missing = bool(value != value)  # true of NaN and NaT alone
    except (TypeError, ValueError):  # pandas' NA has no truth
        missing = True
    return None if missing else value


def _table(
    path: Path,
    numbered: list[tuple[int, dict[str, Any]]],
    header: Mapping[str, Any],
    given: ImportOptions,
) -> FactTable:
    """Rows with their lines, checked; `path` is the file, or the name of facts in memory."""
    if not numbered:
        raise DataError(f"{path}: holds no facts; expected one per line")
    columns = {**header.get("columns", {}), **given.columns}
    rows = tuple(_rows(path, numbered, columns))
    subject, object = _roles(path, rows[0], columns, header, given)
    whole, empty = [], []
    for row in rows:
        if row.fields[subject] and row.fields[object]:
            whole.append(row)
        else:
            empty.append(row.line)
    if not whole:
        raise _fail(
            path,
            rows[0].line,
            f"no row has both {subject!r} and {object!r}; every fact needs a text or a number "
            "there",
        )
    incomplete: dict[str, int] = {}
    for row in whole:
        for name, text in row.fields.items():
            if not text:
                incomplete.setdefault(name, row.line)
    complete = []
    for row in whole:
        kept = {name: text for name, text in row.fields.items() if name not in incomplete}
        complete.append(replace(row, fields=kept))
    return FactTable(
        path,
        header.get("name", path.stem),
        subject,
        object,
        {**header.get("templates", {}), **given.templates},
        tuple(complete),
        **{key: tuple(header.get(key, ())) for key in _LISTS},
        incomplete=incomplete,
        empty=tuple(empty),
    )


def _fail(path: Path, line: int, message: str) -> DataError:
    return DataError(f"{path}, line {line}: {message}")


# ------------------------------------------------------------------------------------------ files


def read_text(path: Path) -> str:
    """The text of a file of facts.

    Raises:
        DataError: It cannot be read, is too large or empty, or is not UTF-8.
    """
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise DataError(
                f"{path}: holds {size:,} bytes; expected {LARGEST:,} at most: give a part of the "
                "facts"
            )
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _fail(path, line, "is not UTF-8; save the file in that encoding") from None
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
            found = source.strip()[:40]
            raise _fail(
                path, line, f'expected an object of fields, as {{"subject": …}}; found {found}'
            )
        yield line, value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it holds the field {name!r} twice")
        fields[name] = value
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _read_csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: list[str] | None = None
    try:
        line = 1
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                pass  # as spreadsheets write below the last row
            elif columns is None:
                columns = [cell.strip() for cell in cells]
                if not all(columns) or len(set(columns)) < len(columns):
                    listed = ", ".join(map(repr, columns))
                    raise _fail(
                        path, line, f"expected different column names, none empty; found {listed}"
                    )
            elif len(cells) > len(columns):
                raise _fail(
                    path,
                    line,
                    f"holds {len(cells)} cells, but there are {len(columns)} columns "
                    f"({', '.join(columns)})",
                )
            else:
                yield line, dict(zip_longest(columns, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise _fail(path, reader.line_num, f"is not CSV: {error}") from None


# ------------------------------------------------------------------------------- header and rows


def _checked_header(path: Path, line: int, header: dict[str, Any]) -> dict[str, Any]:
    # Numbers arrive as text, see read_fact_table.
    if header["kgbench"] != str(SCHEMA_VERSION):
        raise _fail(
            path,
            line,
            f"field 'kgbench': unknown schema version {header['kgbench']!r}; "
            f"expected {SCHEMA_VERSION}",
        )
    for key, value in header.items():
        if key not in _HEADER_KEYS:
            raise _fail(path, line, f"field {key!r}: a header may hold {', '.join(_HEADER_KEYS)}")
        if key in ("columns", "templates"):
            if not isinstance(value, dict) or not _all_texts(value.values()):
                raise _fail(path, line, f"field {key!r}: expected an object from name to text")
        elif key in _LISTS:
            if not isinstance(value, list) or not _all_texts(value):
                raise _fail(path, line, f"field {key!r}: expected a list of texts")
        elif not isinstance(value, str) or not value.strip():
            raise _fail(path, line, f"field {key!r}: expected a text that is not empty")
    if not _NAME.fullmatch(header.get("name", "facts")):
        raise _fail(
            path,
            line,
            f"field 'name': {header['name'][:100]!r} is none; expected a name of letters, digits, "
            "blanks and _.:+-, at most 100 of them, and no path",
        )
    return header


def _all_texts(values: Iterable[object]) -> bool:
    return all(isinstance(text, str) and text for text in values)


def _rows(
    path: Path, numbered: Sequence[tuple[int, dict[str, Any]]], columns: Mapping[str, str]
) -> Iterator[FactRow]:
    renamed, names = {column: name for name, column in columns.items()}, tuple(numbered[0][1])
    for name, column in columns.items():
        if column not in names:
            raise DataError(
                f"{path}: no column {column!r} to take {name!r} from; there are {', '.join(names)}"
            )
        if name in names and name not in renamed:
            raise DataError(
                f"{path}: cannot take {name!r} from the column {column!r}: there is a column "
                f"{name!r} too"
            )
    if len(renamed) < len(columns):
        given = ", ".join(f"{name}={column}" for name, column in columns.items())
        raise DataError(f"{path}: one column is named for two fields: {given}")
    for line, record in numbered:
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
        yield FactRow(line, identifier, fields)


def _text(path: Path, line: int, name: str, record: Mapping[str, Any]) -> str:
    if name not in record:
        raise _fail(
            path, line, f"field {name!r} is missing; every row needs the fields of the first one"
        )
    value = record[name]
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise _fail(path, line, f"field {name!r}: expected a text or a number, found {kind}")
    if value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
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


# ------------------------------------------------------------------------------ subject and object


def _roles(
    path: Path,
    row: FactRow,
    columns: Mapping[str, str],
    header: Mapping[str, Any],
    given: ImportOptions,
) -> tuple[str, str]:
    """The fields that are subject and object."""
    names = tuple(row.fields)
    if len(names) != 1:
        there = f"are {', '.join(names)}"
    elif row.id is None:
        there = f"is only {names[0]}, and columns are separated by commas"
    else:
        there = f"is only {names[0]}, besides the ids"
    wanted: list[str] = []
    for role, option, defaults in (
        ("subject", given.subject, _DEFAULT_SUBJECTS),
        ("object", given.object, _DEFAULT_OBJECTS),
    ):
        name = option or header.get(role)
        # A role may be given by the name of a column that was renamed.
        for field_name, column in columns.items():
            if column == name and name not in row.fields:
                name = field_name
                break
        name = name or next(filter(names.__contains__, defaults), None)
        if name is None:
            expected = f"name one by --{role} COLUMN"
            if role == "subject" and not any(default in names for default in _DEFAULT_OBJECTS):
                expected += ", and the answer by --object COLUMN"
            expected += " (and a prompt of your own by --template), or in the file's header"
            raise DataError(f"{path}: which column is the {role}? There {there}; {expected}")
        if name == "id" and row.id is not None:
            raise DataError(
                f"{path}: column 'id' names the facts, so it cannot be the {role}; call it "
                f"otherwise, as by --column {role}=id"
            )
        if name not in names:
            raise DataError(f"{path}: no column {name!r} to be the {role}; there {there}")
        wanted.append(name)
    subject, object = wanted
    if subject == object:
        raise DataError(
            f"{path}: subject and object are both the column {subject!r}; expected two different "
            f"ones of {', '.join(row.fields)}"
        )
    return subject, object
