"""The per-fact rows of a run, as `facts.parquet` holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kgbench.errors import DataError

_TYPES = {
    "prompt": pa.string(),
    "fact": pa.string(),
    "graft": pa.string(),
    "position": pa.int32(),
    "target": pa.int32(),
    "rank": pa.int32(),
    "prob": pa.float64(),
    "logprob": pa.float64(),
    "logit_diff": pa.float64(),
}
FACTS_SCHEMA = pa.schema([pa.field(*column, nullable=False) for column in _TYPES.items()])
"""One row per prompt, fact, configuration and position; top-k hits and reciprocal rank follow from
the rank."""

TEXTS_SCHEMA = pa.schema(
    [
        field
        for field in FACTS_SCHEMA
        if field.name in ("prompt", "fact", "graft", "position", "prob")
    ]
)
"""Rows of a readout that writes texts: `prob` is the share of texts that meet the criterion; there is
no target token, and so no rank."""

DERIVED = "prob"
"""exp(logprob), which no file needs to hold."""

STORED = pa.schema([field for field in FACTS_SCHEMA if field.name != DERIVED])
"""The columns of a file; version 1 held the derived one too."""

SPLIT = ("target", "rank", "logprob", "logit_diff")
"""Columns with byte stream split: equal bytes at equal places of numbers compress well."""

CODEC, LEVEL, PASSING = "brotli", 10, 5
"""What packs best: writing takes a moment longer, and a file is kept for years; but parts of a run
that has not ended are not, and pack almost as well ten times as fast."""

KEYS = ("prompt", "graft", "fact", "position")


def facts_table(columns: Mapping[str, Sequence[Any] | np.ndarray[Any, Any]] | pa.Table) -> pa.Table:
    """A table in its schema, sorted by `KEYS`, so that equal rows give equal bytes.

    It is `TEXTS_SCHEMA` where there are no ranks.

    Raises:
        DataError: If a score is NaN or infinite, a rank is below 1, or two rows are of the same
            prompt, fact, graft and position.
    """
    names = columns.column_names if isinstance(columns, pa.Table) else columns
    schema = FACTS_SCHEMA if "rank" in names else TEXTS_SCHEMA
    data = {name: columns[name] for name in schema.names}
    table = pa.table(data, schema=schema).combine_chunks()
    if missing := [name for name in table.column_names if table[name].null_count]:
        raise DataError(f"per-fact rows: values are missing in {', '.join(missing)}")
    given, table = table, in_order(table)
    wrong = {}
    for field in schema:
        if field.type == pa.float64():
            not_finite = pc.invert(pc.is_finite(table[field.name]))
            wrong[f"the {field.name} is not a finite number"] = not_finite
    if schema is FACTS_SCHEMA:
        wrong["the rank is below 1"] = pc.less(table["rank"], 1)
    for what, rows in wrong.items():
        if pc.any(rows).as_py():
            selection = table.filter(rows)
            first = selection.slice(0, 1).to_pylist()[0]
            raise DataError(
                f"per-fact rows: {what} in {selection.num_rows} of {table.num_rows} rows, first in "
                f"fact {first['fact']}, prompt {first['prompt']}, configuration {first['graft']}"
            )
    if table is not given and not is_ordered(table):
        raise DataError("per-fact rows: two rows are of the same prompt, fact, graft and position")
    return table


def is_ordered(table: pa.Table) -> bool:
    """Whether rows without nulls ascend by `KEYS`, so that none is there twice."""
    ascends = np.zeros(max(0, table.num_rows - 1), bool)
    for name in reversed(KEYS):
        before, after = table[name].slice(0, len(ascends)), table[name].slice(1)
        same, less = (np.asarray(test(before, after)) for test in (pc.equal, pc.less))
        ascends = less | (same & ascends)
    return bool(ascends.all())


def in_order(table: pa.Table) -> pa.Table:
    """Rows without nulls, sorted by `KEYS`."""
    if is_ordered(table):
        return table
    return table.sort_by([(key, "ascending") for key in KEYS]).combine_chunks()


Spans = Mapping[tuple[str, str], tuple[int, int]]
"""First row and number of rows by prompt and configuration."""


def spans(table: pa.Table) -> dict[tuple[str, str], tuple[int, int]]:
    """First row and number of rows of each prompt and configuration in a sorted table."""
    runs = [pc.run_end_encode(table[name].combine_chunks()) for name in ("prompt", "graft")]
    ends = np.union1d(*(run.run_ends.to_numpy() for run in runs))
    names = zip(
        *(table[name].take(ends - 1).to_pylist() for name in ("prompt", "graft")), strict=True
    )
    sizes = np.diff(ends, prepend=0)
    places = zip((ends - sizes).tolist(), sizes.tolist(), strict=True)
    return dict(zip(names, places, strict=True))


def facts_bytes(
    table: pa.Table, metadata: Mapping[str, str] | None = None, level: int = LEVEL
) -> bytes:
    """A table in the schema as a Parquet file.

    Equal tables give equal bytes under one version of pyarrow.
    """
    schema = STORED if "rank" in table.column_names else TEXTS_SCHEMA
    stored = table.select(schema.names).cast(schema)
    stored = stored.replace_schema_metadata(dict(metadata or {}) or None)
    sink = pa.BufferOutputStream()
    pq.write_table(
        stored,
        sink,
        compression=CODEC,
        compression_level=level,
        use_dictionary=[name for name, kind in _TYPES.items() if kind == pa.string()],
        use_byte_stream_split=[name for name in SPLIT if name in schema.names],
        # Rows are read whole: what would find some of them takes an eighth of a file.
        write_statistics=False,
        store_schema=bool(metadata),
    )
    return bytes(sink.getvalue())


def check_facts(path: Path) -> None:
    """Check by its footer that the file is whole and has the schema's columns.

    Raises:
        DataError: If not.
    """
    _opened(path).close()


def _opened(path: Path, content: bytes | None = None) -> pq.ParquetFile:
    """The file, checked as by `check_facts`."""
    with _readable(path):
        file = pq.ParquetFile(path if content is None else pa.BufferReader(content))
        schema = file.schema_arrow
    if not any(map(schema.equals, (STORED, FACTS_SCHEMA, TEXTS_SCHEMA))):
        raise DataError(
            f"{path}: the columns are {schema.names}, expected {STORED.names} with their types"
        )
    return file


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a readable Parquet file ({reason})") from error


def read_facts(path: Path, content: bytes | None = None) -> pa.Table:
    """Read a table back.

    Args:
        path: The file.
        content: Its bytes, where they were read already; the file is for messages then.

    Raises:
        DataError: If the file does not read or its columns are not the schema's.
    """
    file = _opened(path, content)
    with _readable(path):
        # Threads take longer to start than such a file takes to read.
        return with_derived(file.read(use_threads=False))


def with_derived(table: pa.Table) -> pa.Table:
    """The rows with their derived column, which files need not hold."""
    if DERIVED in table.column_names:
        return table
    place = FACTS_SCHEMA.get_field_index(DERIVED)
    derived = pa.array(np.exp(table["logprob"].to_numpy()))
    return table.add_column(place, FACTS_SCHEMA.field(DERIVED), derived)
