"""Untrusted texts and Parquet files: what is harmless, and what the child process that decodes them
lets through.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from submissions import result

from kgbench.errors import DataError
from kgbench.leaderboard import limits
from kgbench.leaderboard.sandbox import SANDBOX, Sandbox
from kgbench.leaderboard.validate.files import harm
from kgbench.records.fact_rows import STORED, facts_bytes


@pytest.fixture(scope="module")
def whole() -> bytes:
    """The Parquet file of a run."""
    return facts_bytes(result()[1])


# -------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "\x00",
        "\x7f",
        "\u202eevil",
        "\u200bhidden",
        "\u2028",
        "\ud800",
        "<script>",
        "</b>",
        "&#x3c;",
        "JavaScript:x",
        "x" * 5000,
    ],
)
def test_texts_that_could_do_harm(text: str) -> None:
    """Marks that are not seen, and what a browser takes for more than text."""
    assert harm(text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "FE+LT carries 97 % [92, 99]",
        "a < b and c > d",
        "m(SFT) − m(PRE)",
        "Zoë, 日本, Ω",
        "R&D",
        "1 < 2",
    ],
)
def test_texts_that_do_none(text: str) -> None:
    """Ordinary words in any script."""
    assert harm(text) is None


# ------------------------------------------------------------------------------------------ Parquet


def parquet_of(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def repeated(rows: int, text: str) -> bytes:
    """A small file of many equal rows."""
    one = {"string": text, "int32": 1, "double": 0.5}
    columns = []
    for field in STORED:
        value = pa.array([one[str(field.type)]], field.type)
        columns.append(pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), value))
    table = pa.table(
        [column.cast(f.type) for column, f in zip(columns, STORED, strict=True)], STORED
    )
    return parquet_of(table, compression="zstd")


def nested(levels: int) -> bytes:
    """A column of lists of lists."""
    kind, value = pa.int32(), [1]
    for _ in range(levels):
        kind, value = pa.list_(kind), [value]
    return parquet_of(pa.table({"prompt": pa.array(value, kind)}))


def overstated(whole: bytes) -> bytes:
    """A file that states two thousand million rows, which its pages do not hold."""
    rows = pq.ParquetFile(io.BytesIO(whole)).metadata.num_rows
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    description = whole[footer:-8].replace(varint(2 * rows), varint(2 * 2_000_000_000))
    return whole[:footer] + description + len(description).to_bytes(4, "little") + b"PAR1"


def varint(number: int) -> bytes:
    """A number in Thrift's compact protocol."""
    found = b""
    while number >= 128:
        found, number = found + bytes([number & 127 | 128]), number >> 7
    return found + bytes([number])


def read(content: bytes, sandbox: Sandbox = SANDBOX) -> pa.Table:
    return sandbox.read(content, STORED)


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "too many rows": (lambda _: repeated(limits.ROWS + 1, "x"), "groups; 1 to"),
    "billions of rows": (overstated, "2000000000 rows in|no whole Parquet file"),
    "a column of lists": (lambda _: nested(3), "the columns are 'prompt"),
    "deep nesting": (lambda _: nested(60), "no whole Parquet file"),
    "cut short": (lambda whole: whole[: len(whole) // 2], "no whole Parquet file"),
    "a text of megabytes": (lambda _: repeated(1, "x" * 10**7), "at most"),
    "a footer of nested lists": (
        lambda _: b"PAR1" + b"\x1c" * 5000 + (5000).to_bytes(4, "little") + b"PAR1",
        "no whole Parquet file|breaks the reader",
    ),
    "a footer larger than the file": (
        lambda _: b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1",
        "no whole Parquet file",
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_rows_are_one_line_of_error(what: str, whole: bytes) -> None:
    """Whatever a file asks of its reader, the answer is a line, and the next file is read."""
    change, words = HOSTILE[what]
    with pytest.raises(DataError, match=words) as error:
        read(change(whole))
    assert "\n" not in str(error.value)
    assert read(whole).num_rows > 0


def test_rows_are_read_as_they_were_written(whole: bytes) -> None:
    """The child returns the table that the file holds, of the columns that are stored."""
    assert read(whole).equals(pq.read_table(pa.BufferReader(whole)))


@pytest.mark.linux
def test_memory_of_the_child_is_limited(whole: bytes) -> None:
    """A small file that unfolds beyond the limit is refused, and the next one is read."""
    sandbox = Sandbox(memory=60_000_000)
    with pytest.raises(DataError, match="takes more than 60000000 bytes"):
        read(repeated(1_500_000, "x"), sandbox)
    assert read(whole, sandbox).num_rows > 0
    sandbox.close()


def test_time_of_the_child_is_limited(whole: bytes) -> None:
    """A child that exceeds its time is killed, and another one reads the next file."""
    sandbox = Sandbox(seconds=0)
    with pytest.raises(DataError, match="takes more than 0 s"):
        read(whole, sandbox)
    sandbox.seconds = 600
    assert read(whole, sandbox).num_rows > 0
    sandbox.close()
