"""Method folders: all entries of a method on a board in two files, which other tools read.

`entries.jsonl.gz` has a line of JSON per entry, with its name and what goes with it: record,
submission and verification. `facts.parquet` has the per-fact rows of all of them, with the name in
a column of its own. Entries of a method repeat each other, so that the two files take half of the
space of one file each.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from kgbench.errors import DataError, InputError, OutputError
from kgbench.leaderboard import limits
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.records import canonical_json, write_whole
from kgbench.records.fact_rows import SPLIT, STORED

ENTRIES = "entries.jsonl.gz"
"""The file of a method folder that lists its entries."""

FILES = (ENTRIES, FACTS)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}")
"""Names of entries and of method folders."""

ENTRY = "entry"
"""Key and column of an entry's name."""

PARTS: Mapping[str, str] = {
    "record": RECORD,
    "submission": SUBMISSION,
    "verification": VERIFICATION,
}
"""By key of a line, the document under it."""

Documents = Mapping[str, Any]
"""The JSON values of an entry's documents, by `record.json` and so on."""

ROWS = pa.schema([pa.field(ENTRY, pa.string(), nullable=False), *STORED])
"""Columns of the per-fact rows of a method."""

_LOCK = ".lock"
_LEVEL = 19
"""Of zstd; higher ones save less than a hundredth."""


@dataclass(frozen=True, eq=False)
class MethodFolder:
    """The entries of a method on a board."""

    path: Path
    documents: Mapping[str, Documents]
    """By the entry's name."""

    @cached_property
    def rows(self) -> Mapping[str, pa.Table]:
        """By the entry's name, its per-fact rows as stored.

        Raises:
            DataError: They do not read, or those of an entry are missing.
        """
        path = self.path / FACTS
        content = read_regular(path, limits.FACTS_OF_METHOD)
        texts = [field.name for field in ROWS if field.type == pa.string()]
        try:
            table = pq.read_table(pa.BufferReader(content), read_dictionary=texts)
            rows = rows_by_entry(table.select(ROWS.names))
        except (pa.ArrowException, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{path}: no readable per-fact rows of a method ({reason})") from error
        if missing := sorted(self.documents.keys() - rows.keys()):
            raise DataError(f"{path}: it holds no rows of {missing[0]}")
        return {name: rows[name].cast(STORED) for name in self.documents}


def folders_below(results: Path) -> list[Path]:
    """The method folders of a leaderboard's results, each in the folder of its board."""
    return sorted(path.parent for path in results.glob(f"*/*/{ENTRIES}"))


def inside_folder(path: Path) -> tuple[Path, str] | None:
    """The method folder that a path is or leads into, and the entry's name; None where there is none.

    Args:
        path: Such as `results/planted/snip`, or with the name of an entry after it.
    """
    for place in (path, *path.parents):
        if (place / ENTRIES).is_file():
            return place, next(iter(path.relative_to(place).parts), "")
    return None


# ----------------------------------------------------------------------------------------- reading


def read_folder(path: Path) -> MethodFolder:
    """The entries of a method folder; their rows are read when they are asked for.

    Raises:
        DataError: The list of entries does not read.
    """
    documents = {}
    try:
        for line in lines(read_regular(path / ENTRIES, limits.ENTRIES_OF_METHOD)):
            values = json.loads(line)
            name = values[ENTRY]
            documents[name] = {PARTS[key]: value for key, value in values.items() if key in PARTS}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path / ENTRIES}: a line is no entry ({error!r})") from error
    except DataError as error:
        raise DataError(f"{path / ENTRIES}: {error}") from error
    return MethodFolder(path, documents)


def lines(content: bytes) -> list[bytes]:
    """The lines of a list of entries.

    Raises:
        DataError: It is no gzip file, or holds more than is allowed.
    """
    reader = zlib.decompressobj(zlib.MAX_WBITS | 16)  # gzip alone
    try:
        text = reader.decompress(content, limits.UNPACKED + 1)
    except zlib.error as error:
        raise DataError(f"it does not unpack ({error})") from error
    if len(text) > limits.UNPACKED:
        raise DataError(f"it holds more than {limits.UNPACKED} bytes, unpacked")
    if not reader.eof or reader.unused_data:
        raise DataError("it is cut short, or goes on after its end")
    if content[3]:  # flags of the gzip header: a file's name, a comment or other bytes follow
        raise DataError("its header holds more than that of gzip")
    *found, rest = text.split(b"\n")
    if rest or not found:
        raise DataError("it holds no lines, or the last one is cut short")
    if len(found) > limits.ENTRIES:
        raise DataError(f"it holds more than {limits.ENTRIES} entries")
    return found


def rows_by_entry(table: pa.Table) -> dict[str, pa.Table]:
    """The rows of each entry, without its name, from those of a method in any order of entries."""
    codes = table[ENTRY].combine_chunks().dictionary_encode()
    places, names = codes.indices.to_numpy(), codes.dictionary.to_pylist()
    if (np.diff(places) < 0).any():
        table = table.take(np.argsort(places, kind="stable"))
        places = np.sort(places)
    rows = table.drop_columns([ENTRY])
    found = {}
    for code, name in enumerate(names):
        first, end = np.searchsorted(places, [code, code + 1])
        if end > first:
            found[name] = rows.slice(first, end - first)
    return found


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


# ----------------------------------------------------------------------------------------- hashes


def document_hash(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys and the blanks of its file."""
    return sha256(canonical_json(value).encode("utf-8", "surrogatepass")).hexdigest()


def rows_hash(rows: pa.Table) -> str:
    """SHA-256 of an entry's per-fact rows, however a file holds them.

    Of each stored column in turn: of texts, the distinct ones as a JSON list in the order in which
    they come, and the place of each row's in it as 32-bit integers; of numbers, their bytes. Bytes
    are little-endian.

    Args:
        rows: Sorted.
    """
    digest = sha256()
    for field in STORED:
        column = rows[field.name].combine_chunks()
        if field.type == pa.string():
            coded = column.dictionary_encode()
            digest.update(canonical_json(coded.dictionary.to_pylist()).encode())
            column = coded.indices
        values = column.to_numpy(zero_copy_only=False)
        digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


# ----------------------------------------------------------------------------------------- writing


def entry_line(name: str, documents: Documents) -> str:
    """An entry's line in the list of a method's, without its end."""
    values = {ENTRY: name}
    for key, document in PARTS.items():
        if document in documents:
            values[key] = documents[document]
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def list_bytes(documents: Mapping[str, Documents]) -> bytes:
    """The list of a method's entries as a file; equal entries give equal bytes."""
    text = "".join(f"{entry_line(name, documents[name])}\n" for name in sorted(documents))
    return gzip.compress(text.encode(), 9, mtime=0)


def rows_bytes(rows: Mapping[str, pa.Table]) -> bytes:
    """The per-fact rows of a method's entries as a Parquet file.

    Equal rows give equal bytes under one version of pyarrow.

    Args:
        rows: By the entry's name, its rows, sorted.
    """
    tables = []
    for name in sorted(rows):
        table = rows[name].select(STORED.names).cast(STORED)
        tables.append(table.add_column(0, ROWS.field(ENTRY), pa.repeat(name, table.num_rows)))
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.concat_tables(tables),
        sink,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=[field.name for field in ROWS if field.type == pa.string()],
        use_byte_stream_split=list(SPLIT),
        write_statistics=False,
        store_schema=False,
        # Equal rows of several entries, as those of PRE, are only found within a page.
        data_page_size=limits.TABLE,
        max_rows_per_page=limits.ROWS,
    )
    return bytes(sink.getvalue())


def add(path: Path, documents: Mapping[str, Documents], rows: Mapping[str, pa.Table]) -> None:
    """Add entries to a method folder.

    Args:
        path: The folder, in that of its board in the results; it need not be there.
        documents: By the entry's name.
        rows: Likewise, sorted.

    Raises:
        DataError: The folder does not read.
        InputError: An entry is there already, or the folder would be too large.
        OutputError: It cannot be written.
    """
    with _locked(path):
        there = _read_or_empty(path)
        if twice := sorted(documents.keys() & there.documents.keys()):
            raise InputError(f"{path / twice[0]} is there already: an entry is never edited")
        _write(path, {**there.documents, **documents}, {**_rows(there), **rows})


def add_verification(path: Path, name: str, verification: Any) -> None:
    """Put a verification beside the record of an entry.

    Args:
        path: The method folder.
        name: The entry.
        verification: The JSON value.

    Raises:
        DataError: The folder does not read.
        OutputError: It cannot be written.
    """
    with _locked(path):
        documents = dict(read_folder(path).documents)
        documents[name] = {**documents[name], VERIFICATION: verification}
        write_whole(path / ENTRIES, list_bytes(documents))


def replace_folder(
    path: Path, documents: Mapping[str, Documents], rows: Mapping[str, pa.Table]
) -> None:
    """Make a method folder hold these entries and no others; without any it is deleted.

    Args:
        path: As of `add`.
        documents: By the entry's name.
        rows: Likewise, sorted.

    Raises:
        DataError: The folder does not read.
        InputError: It would be too large.
        OutputError: It cannot be written.
    """
    with _locked(path):
        there = _read_or_empty(path)
        if documents:
            _write(path, documents, {**_rows(there), **rows})
        if documents and there.documents.keys() - documents.keys():
            write_whole(path / FACTS, rows_bytes(rows))
        if there.documents and not documents:
            (path / ENTRIES).unlink()
            (path / FACTS).unlink()
            path.rmdir()


def _read_or_empty(path: Path) -> MethodFolder:
    return read_folder(path) if (path / ENTRIES).exists() else MethodFolder(path, {})


def _rows(folder: MethodFolder) -> Mapping[str, pa.Table]:
    return folder.rows if folder.documents else {}


def _write(path: Path, documents: Mapping[str, Documents], rows: Mapping[str, pa.Table]) -> None:
    """Write both files, the list last: at every moment each entry that is listed has its rows."""
    contents = {FACTS: rows_bytes(rows), ENTRIES: list_bytes(documents)}
    most = {FACTS: limits.FACTS_OF_METHOD, ENTRIES: limits.ENTRIES_OF_METHOD}
    for file, content in contents.items():
        if len(content) > most[file]:
            raise InputError(f"{path / file} would have more than {most[file]} bytes")
    path.mkdir(exist_ok=True)
    for file, content in contents.items():
        write_whole(path / file, content)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a method folder meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.absolute().parents[2] / _LOCK):
            yield
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
