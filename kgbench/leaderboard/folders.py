"""Method folders: all entries of a method on a board in two files, which other tools read.

`entries.jsonl.xz` has a line of JSON per entry: its name, and what goes with it, its record without
figures, its submission and verification. `facts.parquet` has the per-fact rows of all of them, with the name in
a column of its own. Entries of a method repeat each other, so that the two files take half of the
space of one file each.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock

from kgbench.errors import DataError, InputError, OutputError
from kgbench.leaderboard import limits
from kgbench.leaderboard.hits import COLUMNS, PromptHits, hits_by_prompt
from kgbench.leaderboard.limits import FACTS
from kgbench.records import canonical_json, write_whole
from kgbench.records.fact_rows import SPLIT, STORED

RESULTS = "results"
"""The folder of a leaderboard that holds the entries."""

ENTRIES = "entries.jsonl.xz"
"""The file of a method folder that lists its entries; `facts.parquet` is the other."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}")
"""Names of entries and of method folders."""

ENTRY = "entry"
"""Key and column of an entry's name."""

Documents = Mapping[str, Any]
"""The JSON values of an entry's `record.json`, `submission.json` and `verification.json`; their
keys in a line lack the ending."""

ROWS = pa.schema([pa.field(ENTRY, pa.string(), nullable=False), *STORED])
"""Columns of the per-fact rows of a method."""

_LOCK = ".lock"

_PACKING = (
    {"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0},
)
"""A line's numbers are text, which has no alignment: 2 % less than by xz's usual values."""


@dataclass(frozen=True, eq=False)
class MethodFolder:
    """The entries of a method on a board; their rows, which may be many, are read when asked for."""

    path: Path
    documents: Mapping[str, Documents]
    """By the entry's name."""
    tables: Mapping[str, pa.Table] = field(default_factory=dict)
    """Per-fact rows of entries that are in memory alone."""

    def rows(self, name: str) -> pa.Table:
        """The per-fact rows of an entry, as stored.

        Raises:
            DataError: They do not read, or are missing.
        """
        return self._rows(ROWS.names, [name])[name].cast(STORED)

    def hits(self, name: str) -> Mapping[str, PromptHits]:
        """Per-fact hits of each prompt of an entry.

        Raises:
            DataError: As of `rows`.
        """
        return self._hits[name]

    @cached_property
    def _hits(self) -> Mapping[str, Mapping[str, PromptHits]]:
        rows = self._rows((ENTRY, *COLUMNS), self.documents)
        return {name: hits_by_prompt(table) for name, table in rows.items()}

    def _rows(self, columns: Sequence[str], names: Iterable[str]) -> Mapping[str, pa.Table]:
        if self.tables:
            return self.tables
        path = self.path / FACTS
        try:
            table = pq.read_table(path, columns=list(columns), read_dictionary=[ENTRY])
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{path}: no readable per-fact rows of a method ({reason})") from error
        rows = {name: rows_of(table, name) for name in names}
        if missing := [name for name in rows if not rows[name].num_rows]:
            raise DataError(f"{path}: it holds no rows of {missing[0]}")
        return rows


def read_folder(path: Path) -> MethodFolder:
    """A method folder, which has no entries where it is not there.

    Raises:
        DataError: The list of its entries does not read.
    """
    documents = {}
    try:
        for line in lines(path / ENTRIES) if (path / ENTRIES).exists() else ():
            name, documents_of = named_documents(json.loads(line))
            documents[name] = documents_of
    except DataError as error:
        raise DataError(f"{path / ENTRIES}: {error}") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path / ENTRIES}: a line is no entry ({error!r})") from error
    return MethodFolder(path, documents)


def folders_below(results: Path) -> list[Path]:
    """The method folders of a leaderboard's results, each in the folder of its board."""
    return sorted(path.parent for path in results.glob(f"*/*/{ENTRIES}"))


def inside_folder(path: Path) -> tuple[Path, str] | None:
    """The method folder that a path is or leads into, and the entry's name; None where there is none.

    Args:
        path: Such as `results/planted/snip`, or with the name of an entry after it.
    """
    for place in (path, *path.parents):
        if place != path and path.exists():
            return None  # entries are no files of their own
        if (place / ENTRIES).is_file():
            return place, next(iter(path.relative_to(place).parts), "")
    return None


def rows_of(table: pa.Table, name: str) -> pa.Table:
    """The rows of an entry, without its name, among those of a method."""
    return table.filter(pc.equal(table[ENTRY], name)).drop_columns([ENTRY])


def lines(path: Path) -> list[bytes]:
    """The lines of a list of entries, which may be hostile.

    Raises:
        DataError: It is no xz file of lines, or holds more than is allowed.
    """
    content = read_regular(path, limits.ENTRIES_OF_METHOD)
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=limits.UNPACKING)
    try:
        text = reader.decompress(content, limits.UNPACKED + 1)
    except lzma.LZMAError as error:
        raise DataError(f"it does not unpack ({error})") from error
    if len(text) > limits.UNPACKED or text.count(b"\n") > limits.ENTRIES:
        raise DataError(
            f"it holds more than {limits.UNPACKED} bytes, unpacked, or {limits.ENTRIES} lines"
        )
    if not reader.eof or reader.unused_data or not text.endswith(b"\n"):
        raise DataError("it is cut short, or holds more than its lines")
    return text.split(b"\n")[:-1]


def read_regular(path: Path, most: int) -> bytes:
    """Bytes of a regular file.

    Args:
        path: The file.
        most: Number of bytes that are allowed.

    Raises:
        DataError: It is a link, has another name elsewhere, is no regular file, cannot be read, or
            is too large.
    """
    # Opened so that a link or a pipe put there meanwhile is not followed or waited for.
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        before = os.lstat(path)
        if stat.S_ISLNK(before.st_mode):
            raise DataError("it is a symbolic link")
        if not stat.S_ISREG(before.st_mode):
            raise DataError("it is no regular file")
        if before.st_nlink > 1:
            raise DataError("it is a hard link: the same file has another name elsewhere")
        with os.fdopen(os.open(path, flags), "rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise DataError(f"it cannot be read ({error.strerror})") from error
    if len(content) > most:
        raise DataError(f"it is too large: it has more than {most} bytes")
    return content


def document_hash(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys and the blanks of its file."""
    return sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def rows_hash(rows: pa.Table, columns: Iterable[str] = STORED.names) -> str:
    """SHA-256 of an entry's per-fact rows, however a file holds them.

    Of each column in turn: of texts, the distinct ones as a JSON list in the order in which
    they come, and the place of each row's in it as 32-bit integers; of numbers, their bytes. Bytes
    are little-endian.

    Args:
        rows: Sorted.
        columns: By default all that are stored.
    """
    digest = sha256()
    for name in columns:
        column = rows[name].combine_chunks()
        if column.type == pa.string():
            coded = column.dictionary_encode()
            digest.update(canonical_json(coded.dictionary.to_pylist()).encode())
            column = coded.indices
        values = column.to_numpy(zero_copy_only=False)
        digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def entry_line(name: str, documents: Documents) -> str:
    """An entry's line in the list of a method's, without its end."""
    values = {ENTRY: name}
    for document, value in documents.items():
        values[document.removesuffix(".json")] = value
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def named_documents(values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """An entry's name and documents, from the JSON object of its line."""
    documents = {f"{key}.json": value for key, value in values.items() if key != ENTRY}
    return values[ENTRY], documents


@contextmanager
def changed(path: Path) -> Iterator[tuple[dict[str, Documents], dict[str, pa.Table]]]:
    """A method folder's documents and rows by entry, to be changed; written when the block ends.

    Other processes wait meanwhile, and see every entry with its rows at every moment. A folder
    without entries is deleted.

    Args:
        path: The folder, in that of its board in the results; it need not be there.

    Raises:
        DataError: It does not read.
        InputError: It would be too large.
        OutputError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.absolute().parents[2] / _LOCK):
            folder = read_folder(path)
            before = {name: folder.rows(name) for name in folder.documents}
            documents, rows = dict(folder.documents), dict(before)
            yield documents, rows
            path.mkdir(exist_ok=True)
            if any(rows[name] is not before.get(name) for name in rows):
                _write(path / FACTS, _rows_bytes({**before, **rows}), limits.FACTS_OF_METHOD)
            text = "".join(f"{entry_line(name, documents[name])}\n" for name in sorted(documents))
            content = lzma.compress(text.encode(), filters=_PACKING)
            _write(path / ENTRIES, content, limits.ENTRIES_OF_METHOD)
            if before.keys() - rows.keys() and rows:
                _write(path / FACTS, _rows_bytes(rows), limits.FACTS_OF_METHOD)
            if not documents:
                (path / ENTRIES).unlink()
                (path / FACTS).unlink()
                path.rmdir()
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def _write(path: Path, content: bytes, most: int) -> None:
    if len(content) > most:
        raise InputError(f"{path} would have more than {most} bytes")
    write_whole(path, content)


def _rows_bytes(rows: Mapping[str, pa.Table]) -> bytes:
    """Rows as a Parquet file; equal rows give equal bytes under one version of pyarrow."""
    tables = []
    for name in sorted(rows):
        names = pa.repeat(name, rows[name].num_rows)
        tables.append(rows[name].add_column(0, ROWS.field(ENTRY), names))
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.concat_tables(tables),
        sink,
        compression="brotli",
        compression_level=10,  # a twentieth smaller than zstd's best
        use_dictionary=[field.name for field in ROWS if field.type == pa.string()],
        use_byte_stream_split=list(SPLIT),
        write_statistics=False,
        store_schema=False,
        # Equal rows of several entries, as those of PRE, are only found within a page.
        data_page_size=limits.TABLE,
        max_rows_per_page=limits.ROWS,
    )
    return bytes(sink.getvalue())
