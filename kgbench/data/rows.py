"""Tables of every kind as rows: files by the end of their name, and tables of other libraries.

A row is a mapping from column to cell. `text_cells` makes the cells of a column the texts that a
CSV file of the same table has, so that facts are the same whatever they are read from.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, time, timedelta
from itertools import zip_longest
from numbers import Number, Real
from pathlib import Path
from typing import Any

from kgbench.errors import DataError, first_line

LARGEST = 1 << 30
"""Bytes of a file."""

LONGEST = 10_000
"""Characters of a field. Tokenizers take seconds and gigabytes for a text of millions."""

_CELL = 1 << 24
"""Characters of a cell of a CSV file: lists of aliases are long."""

WHOLE = re.compile(r"-?\d+\.0")
"""A whole number that is written as a fraction."""
CSV = (".csv", ".tsv")

Row = Mapping[str, Any]
"""Cells by column; a cell may be a list or a mapping itself."""
Numbered = tuple[int, dict[str, Any]]
"""A row with its line in a file of lines, or else its number, from 1 on."""

LACKING = object()
"""Value of a column that a row does not have."""


class Digits(str):
    """A number as it is written in a file."""

    __slots__ = ()


# ------------------------------------------------------------------------------------------- cells


def cell_at(row: Row, column: str) -> Any:
    """The cell of a column: None for nothing, `LACKING` where there is no such column.

    Args:
        row: The row.
        column: Its name; ``a.b`` is the field b of the column a, ``a.0`` the first value of its
            list.
    """
    if column in row:
        return _opened(row[column])
    value: Any = row
    for key in column.split("."):
        if isinstance(value, list) and key.isdecimal():
            value = _opened(value[int(key)]) if int(key) < len(value) else None
        elif isinstance(value, Mapping):
            value = _opened(value.get(key, LACKING))
        else:
            return None if value is None else LACKING
    return value


def _opened(value: Any) -> Any:
    """A value whose parts are lists, not arrays."""
    if getattr(value, "shape", ()) and hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def json_value(value: Any) -> Any:
    """A cell as a value of JSON, with numbers as numbers; None for nothing."""
    value = _opened(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(part) for key, part in value.items()}
    if isinstance(value, list):
        return list(map(json_value, value))
    if _is_missing(value):
        return None
    if isinstance(value, Digits):
        return json.loads(value)
    value = value.item() if hasattr(value, "item") else value
    return value if isinstance(value, str | int | float) else str(value)


def is_nested(value: Any) -> bool:
    """Whether a cell holds further values."""
    return isinstance(_opened(value), Mapping | list)


def text_cells(cells: Sequence[Any]) -> list[Any]:
    """The cells of a column as text, empty for nothing; what is no text, number or date stays.

    Libraries make fractions of whole numbers of which one is missing, so that a column with gaps
    and nothing but whole numbers in it has no ``.0``. Days without times have none either.
    """
    values = [None if _is_missing(cell) else _opened(cell) for cell in cells]
    there = [value for value in values if value is not None]
    numbers = all(isinstance(value, Real | Digits) for value in there)
    no_fractions = (
        len(there) < len(values) and numbers and all(WHOLE.fullmatch(str(v)) for v in there)
    )
    days = all(isinstance(value, datetime) and value.timetz() == time() for value in there)
    texts = []
    for value in values:
        text = _text(value)
        if isinstance(text, str):
            text = text.strip()
            text = text[:-2] if no_fractions else text.partition(" ")[0] if days else text
        texts.append(text)
    return texts


def _is_missing(value: Any) -> bool:
    """Whether a cell is empty: NaN, NaT and NA are marks of that."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    try:
        return not isinstance(value, str) and bool(value != value)
    except TypeError:  # pandas' NA has no truth
        return True
    except (ValueError, RuntimeError):  # nor have arrays
        return False


def _text(value: Any) -> Any:
    if value is None:
        return ""
    # Truth values of numpy are no numbers; days and periods can all be formatted.
    has_text = isinstance(value, str | Number | timedelta) or hasattr(value, "strftime")
    return str(value) if has_text or type(value).__name__ in ("bool", "bool_") else value


def cell_fault(column: str, text: object) -> str | None:
    """What is wrong with a cell of `text_cells`; None for nothing."""
    if not isinstance(text, str):
        fault = f"expected a text or a number, found a {type(text).__name__}"
        if isinstance(text, list | dict):
            inner = next(iter(text), "field") if isinstance(text, dict) else 0
            fault += f"; name one value in it, as by '{column}.{inner}'"
        return fault
    if len(text) > LONGEST:
        return f"holds {len(text):,} characters; expected {LONGEST:,} at most"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "holds half of a surrogate pair, which is no character"
    return None


# ------------------------------------------------------------------------------------ in memory


def rows_of(data: Any) -> Iterator[Any]:
    """The rows of a table of another library, or of an iterable of mappings.

    Args:
        data: A DataFrame (of pandas or polars), an Arrow table, a `datasets.Dataset`, or rows.

    Raises:
        DataError: It is none of these.
    """
    if hasattr(data, "iterrows"):
        columns = []
        index = [name for name in data.index.names if name is not None]
        if index and not set(index) & set(data.columns):
            data = data.reset_index(level=index)
        for place in range(data.shape[1]):
            column = data.iloc[:, place]
            # As numbers of Python, those of 32 bits would get further digits.
            is_float = getattr(column.dtype, "kind", "") == "f"
            columns.append(column.to_numpy() if is_float else column)
        return _column_rows(list(map(str, data.columns)), columns)
    if hasattr(data, "features") and hasattr(data, "with_format"):
        features = data.features.to_dict() if data.features else {}
        return (_named(row, features) for row in data.with_format(None))
    if hasattr(data, "__arrow_c_stream__") and hasattr(data, "columns"):
        import pyarrow as pa

        return _arrow_rows(pa.table(data))
    if isinstance(data, Mapping | str) or not isinstance(data, Iterable):
        splits = f" with the keys {', '.join(map(str, data))}" if isinstance(data, Mapping) else ""
        raise DataError(
            f"the facts are a {type(data).__name__}{splits}; expected a DataFrame, an Arrow table, "
            "a datasets.Dataset (one split of it), a list of dicts, or a name or file"
        )
    return iter(data)


def _arrow_rows(table: Any) -> Iterator[dict[str, Any]]:
    columns = []
    for column in table.columns:
        single = str(column.type) in ("float", "halffloat")
        columns.append(column.to_numpy() if single else column.to_pylist())
    # The library datasets notes there what its numbers stand for.
    features: Any = {}
    with suppress(ValueError, KeyError, TypeError):
        features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    return (_named(row, features) for row in _column_rows(table.column_names, columns))


def _column_rows(names: Sequence[str], columns: Sequence[Any]) -> Iterator[dict[str, Any]]:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(f"the table has two columns {twice!r}; expected different names")
    return (dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True))


def _named(value: Any, feature: Any) -> Any:
    """A cell of a data set of the library datasets, with names in place of class labels.

    Args:
        value: The cell, or a whole row.
        feature: What it is, as the library notes it: an object with its ``_type``, or fields.
    """
    if isinstance(feature, list):
        feature = {"feature": feature[0]}
    if not isinstance(feature, Mapping):
        return value
    if feature.get("_type") == "ClassLabel" and isinstance(value, int):
        names = feature.get("names") or ()
        return names[value] if 0 <= value < len(names) else None
    if isinstance(value, list):
        return [_named(each, feature.get("feature")) for each in value]
    if isinstance(value, Mapping):
        return {key: _named(each, feature.get(key)) for key, each in value.items()}
    return value


# ------------------------------------------------------------------------------------------- files


def read_rows(path: Path) -> list[Numbered]:
    """The rows of a file of one of the kinds in `SUFFIXES`.

    Raises:
        DataError: It is of another kind, or does not read; names line and field.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        import pyarrow as pa
        from pyarrow import parquet

        try:
            table = parquet.read_table(path)
        except FileNotFoundError:
            raise DataError(f"{path}: cannot be read: No such file or directory") from None
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{path}: is not PARQUET: {first_line(error)}") from None
        return list(enumerate(_arrow_rows(table), 1))
    if kind not in _READERS:
        raise DataError(f"{path}: expected a file that ends with {KINDS}")
    return list(_READERS[kind](path, read_text(path)))


def row_unit(path: Path) -> str:
    """What rows of a file are numbered by: its lines, where it has one for each."""
    return "line" if path.suffix.lower() in (".jsonl", *CSV) else "row"


def row_name(path: Path, number: int) -> str:
    """A row in a message."""
    return f"{path}, {row_unit(path)} {number}"


def row_error(path: Path, number: int, message: str) -> DataError:
    """What is wrong with a row."""
    return DataError(f"{row_name(path, number)}: {message}")


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
        raise DataError(
            f"{path}, line {line}: is not UTF-8; save the file in that encoding"
        ) from None
    if not text.strip():
        raise DataError(f"{path}: is empty; expected one fact per line")
    return text


def _read_json(path: Path, text: str) -> Iterator[Numbered]:
    """The objects of an array; of a file that is none, those of its lines."""
    if not text.lstrip().startswith("["):
        return _read_jsonl(path, text)
    return _objects(path, enumerate(_parsed(text, str(path), "array of rows"), 1))


def _read_jsonl(path: Path, text: str) -> Iterator[Numbered]:
    # Not splitlines: a JSON string may hold U+2028 and its like as they are.
    lines = ((line, source) for line, source in enumerate(text.split("\n"), 1) if source.strip())
    rows = (
        (line, _parsed(source, f"{path}, line {line}", "row of facts")) for line, source in lines
    )
    return _objects(path, rows)


def _objects(path: Path, rows: Iterable[tuple[int, Any]]) -> Iterator[Numbered]:
    for number, row in rows:
        if not isinstance(row, dict):
            expected = 'expected an object of fields, as {"subject": …}'
            raise row_error(path, number, f"{expected}; found {str(row)[:40]}")
        yield number, row


def _parsed(text: str, where: str, what: str) -> Any:
    try:
        return json.loads(
            text,
            object_pairs_hook=unique_fields,
            parse_int=Digits,
            parse_float=Digits,
            parse_constant=lambda _: None,  # Python writes NaN for nothing
        )
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise DataError(f"{where}: is not JSON: {error.msg} at {place}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not a {what}: {error}") from None


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object of its fields, for `object_pairs_hook`.

    Raises:
        ValueError: A field is there twice.
    """
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"it holds the field {name!r} twice")
        fields[name] = value
    return fields


def _read_csv(path: Path, text: str) -> Iterator[Numbered]:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    before = csv.field_size_limit(_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    columns: list[str] = []
    line = 0
    try:
        for cells in reader:
            start, line = line + 1, reader.line_num
            if not any(map(str.strip, cells)):
                continue  # as spreadsheets write below the last row
            if not columns:
                columns = [cell.strip() for cell in cells]
                if not all(columns[1:]) or len(set(columns)) < len(columns):
                    listed = ", ".join(map(repr, columns))
                    expected = "expected different column names, none empty"
                    raise row_error(path, start, f"{expected}; found {listed}")
                continue
            if len(cells) > len(columns):
                there = f"there are {len(columns)} columns ({', '.join(columns)})"
                raise row_error(path, start, f"holds {len(cells)} cells, but {there}")
            # A CSV file does not say what is a number.
            values = [Digits(cell) if WHOLE.fullmatch(cell) else cell for cell in cells]
            row = dict(zip_longest(columns, values))
            row.pop("", None)  # pandas' row numbers
            yield start, row
    except csv.Error as error:
        raise row_error(path, reader.line_num, f"is not CSV: {error}") from None
    finally:
        csv.field_size_limit(before)


_READERS: Mapping[str, Callable[[Path, str], Iterator[Numbered]]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
}
"""By the end of a file's name, what reads its text."""
SUFFIXES = (*_READERS, ".parquet")
"""Ends of the names of files of facts."""
KINDS = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
"""The same in a sentence."""
