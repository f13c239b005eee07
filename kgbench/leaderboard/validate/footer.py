"""The description at the end of a Parquet file, checked before a library believes it.

Libraries read it in native code, which ends the whole process over some broken ones, and takes the sizes in it and in the header of each
page for granted, where a few bytes can ask for gigabytes. So that only a description of the rows that are expected reaches one, it is read
here first.
"""

from __future__ import annotations

from collections.abc import Sequence

from kgbench.errors import DataError
from kgbench.leaderboard import limits
from kgbench.leaderboard.validate.findings import shown
from kgbench.leaderboard.validate.thrift import Struct, count, listed, read_struct, structs, within

__all__ = ["ARROW_SCHEMA", "BYTE_ARRAY", "DOUBLE", "INT32", "check_footer"]

INT32, DOUBLE, BYTE_ARRAY = 1, 5, 6
"""Numbers of the physical types."""

ARROW_SCHEMA = b"ARROW:schema"
"""The one thing that a file carries beside columns: the same columns in the words of Arrow."""

_MAGIC = b"PAR1"
_CODECS = {0: "UNCOMPRESSED", 1: "SNAPPY", 4: "BROTLI", 6: "ZSTD"}
_ENCODINGS = {
    0: "PLAIN",
    2: "PLAIN_DICTIONARY",
    3: "RLE",
    8: "RLE_DICTIONARY",
    9: "BYTE_STREAM_SPLIT",
}
"""Those in which a value takes bytes of its own, or a place in a dictionary that does."""

_PAGES = {0: (5, 2), 2: (7, 2), 3: (8, 4)}
"""Of each kind of page, the field of its header that holds the header of the kind, and the field of the encoding in that."""

_GROUPS = 1000
_UNPACKED = 400_000_000
_BESIDE = 4000
"""Bytes of what a file carries beside columns."""

_HEADER = 20_000
"""Bytes of a page's header; statistics of long texts are the largest part."""

Columns = Sequence[tuple[str, int]]
"""Name and physical type of each column."""


def check_footer(data: bytes, schemas: Sequence[Columns]) -> None:
    """Refuse a file whose description is not one of such columns, without gaps and of a size that can be read.

    Args:
        data: The file.
        schemas: The columns that it may have.

    Raises:
        DataError: It is refused.
    """
    start = _start(data)
    footer, taken = read_struct(data[start:-8])
    if taken != len(data) - 8 - start:
        raise DataError("its description is longer than it says")
    columns = _check_columns(footer, schemas)
    _check_beside(footer)
    rows, groups = count(footer, 3), structs(footer, 4)
    if not 1 <= rows <= limits.ROWS:
        raise DataError(f"it has {rows} rows; 1 to {limits.ROWS} are read")
    if len(groups) > _GROUPS or len(groups) != len(listed(footer, 4)):
        raise DataError(f"it has {len(groups)} groups of rows; at most {_GROUPS} are read")
    if sum(count(group, 3) for group in groups) != rows:
        raise DataError(f"its groups do not have {rows} rows in all")
    unpacked = 0
    for group in groups:
        chunks = structs(group, 1)
        if len(chunks) != len(columns):
            raise DataError("a group of rows has not all columns")
        for chunk, column in zip(chunks, columns, strict=True):
            unpacked += _unpacked(chunk, column, count(group, 3), data[:start])
            if unpacked > _UNPACKED:
                raise DataError(f"it unpacks to more than {_UNPACKED} bytes")


def _start(data: bytes) -> int:
    """Where the description begins."""
    if len(data) < 12 or data[:4] != _MAGIC or data[-4:] != _MAGIC:
        raise DataError("it is no Parquet file, or is cut short")
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    if start < 4:
        raise DataError("its description is longer than the file")
    return start


def _check_columns(footer: Struct, schemas: Sequence[Columns]) -> Columns:
    """The columns, which are one of the schemas, each plain and without gaps."""
    elements = structs(footer, 2)
    root, rest = elements[0] if elements else {}, elements[1:]
    found = [(_text(element), count(element, 1)) for element in rest]
    for schema in schemas:
        if list(schema) == found and count(root, 5) == len(schema) and all(map(_is_plain, rest)):
            return schema
    listed_ = ", ".join(
        f"{shown(name)}{'' if _is_plain(element) else ' (not plain)'}"
        for (name, _), element in zip(found[:12], rest, strict=False)
    )
    raise DataError(
        f"the columns are {listed_ or 'none'}, not {', '.join(name for name, _ in schemas[0])} of their types, without gaps"
    )


def _is_plain(element: Struct) -> bool:
    """Whether a column has a value in each row, and none within values; texts are texts, and numbers no dates."""
    converted = count(element, 6)  # 0 is a text
    logical = set(within(element, 10))  # 1 is a text
    expected = (0, {1}) if count(element, 1) == BYTE_ARRAY else (-1, set())
    return (
        count(element, 3) == 0
        and count(element, 5) <= 0
        and converted == expected[0]
        and logical == expected[1]
    )


def _text(element: Struct) -> str:
    name = element.get(4)
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else ""


def _check_beside(footer: Struct) -> None:
    beside = structs(footer, 5)
    if strange := [pair.get(1) for pair in beside if pair.get(1) != ARROW_SCHEMA]:
        raise DataError(f"it carries more than columns: {shown(strange[0])}")
    if len(beside) > 1 or any(
        len(value) > _BESIDE for pair in beside if isinstance(value := pair.get(2), bytes)
    ):
        raise DataError(f"it carries more than {_BESIDE} bytes beside its columns")
    if set(footer) & {8, 9}:
        raise DataError("it is encrypted")


def _unpacked(chunk: Struct, column: tuple[str, int], rows: int, body: bytes) -> int:
    """Bytes that the pages of a column become.

    Args:
        chunk: The description of a column within a group of rows.
        column: Its name and type.
        rows: Rows of the group.
        body: The file up to its description.
    """
    about = within(chunk, 3)
    if (
        set(chunk) & {1, 8, 9}
        or count(about, 1) != column[1]
        or listed(about, 3) != [column[0].encode()]
        or count(about, 5) != rows
    ):
        raise DataError(
            f"the description of column {column[0]} is not that of a column of {rows} rows"
        )
    if (codec := count(about, 4)) not in _CODECS:
        raise DataError(
            f"column {column[0]} is compressed in a way that is not read; {', '.join(_CODECS.values())} are"
        )
    if strange := [code for code in listed(about, 2) if code not in _ENCODINGS]:
        raise DataError(
            f"column {column[0]} is in encoding {shown(strange[0])}; {', '.join(_ENCODINGS.values())} are read"
        )
    dictionary, first = count(about, 11), count(about, 9)
    start = dictionary if 0 < dictionary < first else first
    return _pages(body, start, count(about, 7), rows, codec == 0)


def _pages(body: bytes, start: int, size: int, rows: int, plain: bool) -> int:
    """Bytes that the pages of a column become, as their own headers have it; a library believes no others."""
    at, end, total, values = start, start + size, 0, 0
    if not 4 <= start <= end <= len(body) or size < 0:
        raise DataError("a column lies outside of the file")
    while at < end:
        header, taken = read_struct(body[at : min(end, at + _HEADER)])
        kind, unpacked, packed = count(header, 1), count(header, 2), count(header, 3)
        if kind not in _PAGES or unpacked < 0 or packed < 0 or (plain and unpacked != packed):
            raise DataError("the header of a page is none")
        inner = within(header, _PAGES[kind][0])
        if count(inner, _PAGES[kind][1]) not in _ENCODINGS or count(inner, 1) < 0:
            raise DataError(
                f"a page is in an encoding that is not read; {', '.join(_ENCODINGS.values())} are"
            )
        values += count(inner, 1) if kind != 2 else 0
        total += unpacked
        at += taken + packed
    if at != end or values != rows:
        raise DataError("the pages of a column are not those of its rows")
    return total
