"""A folder of records; what is there is told by content, never by name."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pydantic import ValidationError

from kgbench.errors import DataError, InputError, OutputError, UnknownNameError
from kgbench.records.facts import check_facts, facts_table, read_facts, write_facts
from kgbench.records.journal import Journal
from kgbench.records.record import Record

__all__ = ["DamagedRecordWarning", "RecordStore", "StoredRecord", "load_record", "read_record"]

RECORD, FACTS, PARTIAL, TEMPORARY = "record.json", "facts.parquet", ".partial", ".writing-"
_LISTED = 5
"""Names in a message, where a folder can hold hundreds of records."""
_DEAD_AFTER_S = 3600.0
"""Writing takes seconds: a temporary folder of this age belongs to a run that was killed."""


class DamagedRecordWarning(UserWarning):
    """A folder looks like a record and is not one."""


@dataclass(frozen=True)
class StoredRecord:
    """A record and where it lies."""

    record: Record
    path: Path
    """Its folder."""

    def facts(self) -> pa.Table:
        """Its per-fact rows."""
        return read_facts(self.path / FACTS)


class RecordStore:
    """Records below one folder, each a folder with `record.json` and `facts.parquet`."""

    def __init__(self, root: str | Path) -> None:
        """Name the folder; it is made on the first write.

        Args:
            root: The folder.
        """
        self.root = Path(root)

    def check_writable(self) -> None:
        """Try, before the expensive work, whether a record could be written.

        Raises:
            OutputError: If not.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            os.rmdir(mkdtemp(prefix=TEMPORARY, dir=self.root))
        except OSError as error:
            raise OutputError(
                f"cannot write to the output directory {str(self.root)!r}: {error.strerror}; give another one by --output-dir"
            ) from error

    def scan(self) -> Iterator[StoredRecord]:
        """All records, by folder name; of each damaged one a `DamagedRecordWarning` tells."""
        for folder in self._folders():
            try:
                yield read_record(folder)
            except DataError as error:
                warnings.warn(f"a damaged record is left out: {error}; delete its folder", DamagedRecordWarning, stacklevel=2)

    def find(self, id: str) -> StoredRecord | None:
        """The record of this identity; a damaged one does not count, and a `DamagedRecordWarning` tells of it."""
        for folder in self._folders():
            try:
                if _peek_id(folder) == id:
                    return read_record(folder)
            except DataError as error:
                warnings.warn(f"a damaged record is left out: {error}; delete its folder", DamagedRecordWarning, stacklevel=2)
        return None

    def path_of(self, record: Record) -> Path:
        """Where a new record of this identity is put: a readable name and the first twelve digits of the id."""
        words = (record.model, record.identity.dataset.name, record.identity.localizer.name)
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words)).strip("-._")[:80]
        return self.root / f"{slug}-{record.id[:12]}"

    def write(self, record: Record, facts: pa.Table, attachments: Mapping[str, bytes] | None = None) -> Path:
        """Write a record whole or not at all.

        Args:
            record: The record.
            facts: Its per-fact rows.
            attachments: More files of the folder, such as the picture: name to content.

        Returns:
            The folder. If a record of the same identity is there, it is left as it is.

        Raises:
            OutputError: If the folder cannot be written.
        """
        if (found := self.find(record.id)) is not None:
            return found.path
        files = {RECORD: record.to_json().encode(), **(attachments or {})}
        table = facts_table(facts)
        try:
            self._sweep()
            self.root.mkdir(parents=True, exist_ok=True)
            temporary = self.root / f"{TEMPORARY}{os.getpid()}-{uuid4().hex[:8]}"
            temporary.mkdir()
            try:
                _fill(temporary, table, files)
                return self._publish(temporary, record)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        except OSError as error:
            raise OutputError(f"cannot write the record to {str(self.root)!r}: {error.strerror or error}") from error

    def journal(self, id: str, code: str = "") -> Journal:
        """Where an unfinished run of this identity keeps its finished parts.

        Args:
            id: The identity's digest.
            code: Version of the code that computes; parts of another version are deleted, with a warning. Empty to read only.
        """
        return Journal(self.root / PARTIAL / id, code)

    def load(self, prefix: str) -> StoredRecord:
        """The record whose id, or whose folder's name, starts like this.

        Raises:
            InputError: If several do.
            UnknownNameError: If none does.
        """
        found = [(folder, _peek_id(folder, strict=False)) for folder in self._folders()]
        exact = [folder for folder, id in found if prefix in (folder.name, id)]
        near = exact or [folder for folder, id in found if prefix and (id.startswith(prefix) or folder.name.startswith(prefix))]
        if len(near) > 1:
            raise InputError(f"{prefix!r} could be any of {', '.join(f.name for f in near)}; give more of the name")
        if not near:
            hint = f"A run is a record's folder, its record.json, or the start of its id; looked in {str(self.root)!r}."
            raise UnknownNameError("run", prefix, [folder.name for folder, _ in found], hint, most=_LISTED)
        return read_record(near[0])

    def _folders(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return sorted(p.parent for p in self.root.glob(f"*/{RECORD}") if not p.parent.name.startswith("."))

    def _publish(self, temporary: Path, record: Record) -> Path:
        """Rename to the first free name, unless another run was faster: names mean nothing, and a damaged folder is not overwritten."""
        target = wanted = self.path_of(record)
        k = 1
        while (found := self.find(record.id)) is None:
            try:
                if not target.exists():
                    os.replace(temporary, target)
                    return target
            except OSError as error:
                if error.errno not in (ENOTEMPTY, EEXIST):  # another run took the name in between
                    raise
            k += 1
            target = wanted.with_name(f"{wanted.name}-{k}")
        return found.path

    def _sweep(self) -> None:
        for folder in self.root.glob(f"{TEMPORARY}*"):
            if time.time() - folder.stat().st_mtime > _DEAD_AFTER_S:
                shutil.rmtree(folder, ignore_errors=True)


def load_record(run: str, root: str | Path) -> StoredRecord:
    """A record by its folder, its `record.json`, or the start of its id or folder name in a store.

    Args:
        run: What the user gave.
        root: The store's folder.

    Raises:
        DataError: If a path is given and no whole record lies there.
        InputError: If several records of the store start like this.
        UnknownNameError: If none does.
    """
    path = Path(run)
    if path.name == RECORD and path.is_file():
        return read_record(path.parent)
    if (path / RECORD).is_file():
        return read_record(path)
    if path.is_dir() and os.sep in run.rstrip(os.sep):
        raise DataError(f"{path}: not a record, for it holds no {RECORD}")
    return RecordStore(root).load(run)


def read_record(folder: Path) -> StoredRecord:
    """Read and check a record.

    Raises:
        DataError: If a part is missing, does not read, or the id is not the hash of the identity.
    """
    try:
        record = Record.model_validate(_read_json(folder))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "record"
        raise DataError(f"{folder / RECORD}: {where}: {first['msg']}") from error
    if not (folder / FACTS).is_file():
        raise DataError(f"{folder}: {FACTS} is missing")
    check_facts(folder / FACTS)
    return StoredRecord(record, folder)


def _read_json(folder: Path) -> Any:
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / RECORD}: not readable as JSON ({error})") from error


def _peek_id(folder: Path, strict: bool = True) -> str:
    """The id that a record claims, without checking it."""
    try:
        content = _read_json(folder)
        id = content["id"] if isinstance(content, dict) and "id" in content else None
        if not isinstance(id, str):
            raise DataError(f"{folder / RECORD}: holds no id")
    except DataError:
        if strict:
            raise
        return ""
    return id


def _fill(folder: Path, table: pa.Table, files: Mapping[str, bytes]) -> None:
    """Write all files and wait until they are on the disk, so that the rename never publishes less than the whole."""
    write_facts(table, folder / FACTS)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
