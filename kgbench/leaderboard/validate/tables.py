"""Per-fact rows, read from bytes that nobody vouches for."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from kgbench.errors import DataError
from kgbench.leaderboard.validate.findings import shown
from kgbench.leaderboard.validate.footer import (
    ARROW_SCHEMA,
    BYTE_ARRAY,
    DOUBLE,
    INT32,
    check_footer,
)
from kgbench.records import FACTS_SCHEMA
from kgbench.records.facts import STORED

__all__ = ["read_table"]

_TYPES = {pa.string(): BYTE_ARRAY, pa.int32(): INT32, pa.float64(): DOUBLE}
_SCHEMAS = (STORED, FACTS_SCHEMA)
_TEXTS = tuple(column.name for column in STORED if column.type == pa.string())
_LONGEST = 300
"""Characters of a prompt's name, a fact's id or a configuration."""


def read_table(data: bytes) -> pa.Table:
    """The table of a `facts.parquet`: of the schema's columns, as stored.

    Raises:
        DataError: It is no Parquet file, has other columns or more than columns, is too large, or unpacks to too much.
    """
    check_footer(
        data, [[(column.name, _TYPES[column.type]) for column in schema] for schema in _SCHEMAS]
    )
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    # Types are those of the columns alone: a second description of them, under a name that is not looked for, is passed over.
    unread = data[start:].replace(ARROW_SCHEMA, b"-" * len(ARROW_SCHEMA))
    try:
        # Texts stay references to a few values, however many rows repeat them.
        file = pq.ParquetFile(
            pa.BufferReader(data[:start] + unread), read_dictionary=list(_TEXTS), pre_buffer=False
        )
        table = file.read(use_threads=False)
        table.validate(full=True)
        _check_texts(table)
        return table.cast(_SCHEMAS[len(table.column_names) - len(STORED)])
    except DataError:
        raise
    except Exception as error:  # the library raises what it likes on broken bytes
        lines = str(error).splitlines() or [""]
        raise DataError(
            f"it is no whole Parquet file ({type(error).__name__}: {shown(lines[0])})"
        ) from None


def _check_texts(table: pa.Table) -> None:
    for name in _TEXTS:
        for chunk in table[name].chunks:
            values = chunk.dictionary if isinstance(chunk, pa.DictionaryArray) else chunk
            if long := [
                text for text in values.to_pylist() if text is None or len(text) > _LONGEST
            ]:
                raise DataError(
                    f"a {name} is {shown(long[0])}; expected at most {_LONGEST} characters"
                )
