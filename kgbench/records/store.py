"""A folder of records, identified by content, never by name."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
from pydantic import ValidationError

from kgbench.errors import DataError, InputError, OutputError, UnknownNameError, first_fault
from kgbench.records.fact_rows import check_facts, facts_bytes, facts_table, read_facts
from kgbench.records.journal import Journal, write_whole
from kgbench.records.mirror import mirror_of
from kgbench.records.record import Record, Result

RECORD, FACTS, PARTIAL, TEMPORARY = "record.json", "facts.parquet", ".partial", ".writing-"
_R = TypeVar("_R", bound=Result)
SEAL = "seal.json"
"""SHA-256 of `record.json` and of `facts.parquet`, written with them; early records have none."""
_DIGITS = 12
_NO_ID = "0" * 64
"""Digits of the id in a folder's name."""
_ENDING = re.compile(rf"-([0-9a-f]{{{_DIGITS}}})(?:-\d+)?$")
"""How the name of a record's folder ends."""
_LONGEST = 20
"""Letters at the end of such a name that decide."""
_HEX = re.compile("[0-9a-f]+")
_HEAD = re.compile(rb'\s*\{\s*"schema_version":\s*\d+,\s*"id":\s*"([0-9a-f]{64})"')
"""How `record.json` begins."""
_TRIES = 3
"""How often a record is written where another process takes the folder for that of a dead run."""
_REMEDY = "restore its folder from a copy, or delete it and compute it again"
_LISTED = 5
"""Names in a message, where a folder can hold hundreds of records."""
_DEAD_AFTER_S = 86400.0
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
    """Records below one folder, each a folder with `record.json` and `facts.parquet`.

    Where the folder is a copy of a URL (`kgbench.records.mirror`), what is missing is fetched, and
    what is written is published.
    """

    def __init__(self, root: str | Path) -> None:
        """Name the folder; it is made on the first write.

        Args:
            root: The folder.
        """
        self.root = Path(root)
        self._mirror = mirror_of(self.root)

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
                f"cannot write to the output directory {str(self.root)!r}: {error.strerror}; "
                "give another one by --output-dir"
            ) from error
        if self._mirror is not None:
            self._mirror.has(_NO_ID)

    def scan(self) -> Iterator[StoredRecord]:
        """All records, by folder name; a damaged one gives a `DamagedRecordWarning`."""
        self._fetch_all()
        yield from filter(None, map(_read_or_warn, self.folders()))

    def find(self, id: str) -> StoredRecord | None:
        """The record of this identity; a damaged one is passed over with a warning.

        Folders that are named after the id are read first. Of those that are not named after any
        only the beginning of the record is read, so that a renamed folder is found too.
        """
        entry = self._find(id)
        if self._mirror is None:
            return entry
        if entry is None:
            return self._fetched(id) if self._mirror.has(id) else None
        self._mirror.push(id, entry.path)  # unless that was done
        return entry

    def _find(self, id: str) -> StoredRecord | None:
        names, start = self._names(), id[:_DIGITS]
        named = (name for name in names if start in name)
        others = (name for name in names if start not in name)
        unnamed = (name for name in others if not _ENDING.search(name[-_LONGEST:]))
        claiming = (name for name in unnamed if self._claimed(name) in (id, None))
        for name in chain(named, claiming):
            if not (self.root / name / RECORD).is_file():
                continue
            entry = _read_or_warn(self.root / name)
            if entry is not None and entry.record.id == id:
                return entry
        return None

    def _fetched(self, id: str) -> StoredRecord | None:
        """Copy a record from the URL; a damaged one is left out with a warning."""
        assert self._mirror is not None
        with self._temporary() as temporary:
            self._mirror.fetch(id, temporary)
            entry = _read_or_warn(temporary)
            if entry is None or entry.record.id != id:
                return None
            return StoredRecord(entry.record, self._publish(temporary, entry.record))

    def _fetch_all(self, prefix: str = "") -> None:
        """Copy all records from the URL that are missing here, or those whose ids start so."""
        if self._mirror is not None:
            here = {ending[1] for ending in map(_ENDING.search, self._names()) if ending}
            for id in self._mirror.ids(prefix):
                if id[:_DIGITS] not in here:
                    self._fetched(id)

    def path_of(self, record: Record) -> Path:
        """Folder of a new record: a readable name and the first twelve digits of the id."""
        words = (record.model, record.identity.dataset.name, record.identity.localizer.name)
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words)).strip("-._")[:80]
        return self.root / f"{slug}-{record.id[:_DIGITS]}"

    def write(
        self,
        record: Record,
        facts: pa.Table,
        *,
        searched: bool = False,
    ) -> Path:
        """Write a record whole or not at all.

        Args:
            record: The record.
            facts: Its per-fact rows.
            searched: Whether `find` has found no such record; then only folders named after the id
                are searched.

        Returns:
            The folder. If a record of the same identity is there, it is left as it is.

        Raises:
            OutputError: If the folder cannot be written.
        """
        if not searched and (entry := self.find(record.id)) is not None:
            return entry.path
        files = {RECORD: record.to_json().encode(), FACTS: facts_bytes(facts_table(facts))}
        files[SEAL] = _seal(files)
        for left in reversed(range(_TRIES)):
            try:
                path = self._write(record, files)
                if self._mirror is not None:
                    self._mirror.push(record.id, path)
                break
            except OSError as error:
                # Where it is not found, another process swept it, whose clock may be wrong.
                if not (left and isinstance(error, FileNotFoundError)):
                    raise OutputError.of("the record", self.root, error) from error
        return path

    def _write(self, record: Record, files: Mapping[str, bytes]) -> Path:
        with self._temporary() as temporary:
            self._sweep(temporary.stat().st_mtime)
            # All files are on the disk before the rename publishes them.
            for name, content in files.items():
                with open(temporary / name, "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            return self._publish(temporary, record)

    @contextmanager
    def _temporary(self) -> Iterator[Path]:
        """A folder that becomes a record by a new name, and is deleted otherwise."""
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self.root / f"{TEMPORARY}{uuid4().hex}"
        temporary.mkdir()
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def journal(self, id: str, code: str = "") -> Journal:
        """Where an unfinished run of this identity keeps its finished parts.

        Args:
            id: The identity's digest.
            code: Version of the code that computes; parts of another version are deleted, with a
                warning. Empty to read only.
        """
        return Journal(self.root / PARTIAL / id, code)

    def load(self, prefix: str) -> StoredRecord:
        """The record whose id, or whose folder's name, starts like this.

        Raises:
            InputError: If several do.
            UnknownNameError: If none does.
        """
        self._fetch_all(prefix if _HEX.fullmatch(prefix) else "")
        ids = {folder: self._claimed(folder.name) for folder in self.folders()}
        return read_record(choose_run(prefix, ids, str(self.root)))

    def folders(self) -> list[Path]:
        """Folders that look like records, by name."""
        return [self.root / name for name in self._names() if (self.root / name / RECORD).is_file()]

    def _names(self) -> list[str]:
        """Names of what could be a record, sorted."""
        try:
            return sorted(name for name in os.listdir(self.root) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _claimed(self, name: str) -> str | None:
        """The id at the beginning of a record's file; None where that does not read."""
        try:
            with open(os.path.join(self.root, name, RECORD), "rb", buffering=0) as file:
                return claimed_id(file.read(256))
        except OSError:
            return None

    def _publish(self, temporary: Path, record: Record) -> Path:
        """Rename to the first free name, unless another run was faster; nothing is overwritten."""
        path = self.path_of(record)
        for k in count(1):
            target = path if k == 1 else path.with_name(f"{path.name}-{k}")
            try:
                if not target.exists():
                    os.replace(temporary, target)
                    return target
            except OSError:
                if not target.exists():  # it does where another run took the name in between
                    raise
            with suppress(DataError):
                if read_record(target).record.id == record.id:
                    return target
        raise AssertionError("some name is free")

    def _sweep(self, now: float) -> None:
        """Delete what killed runs left.

        Args:
            now: The time by the file system's clock, which need not be this machine's.
        """
        for folder in self.root.glob(f"{TEMPORARY}*"):
            with suppress(FileNotFoundError):  # another process was faster
                if now - folder.stat().st_mtime > _DEAD_AFTER_S:
                    shutil.rmtree(folder, ignore_errors=True)


def claimed_id(content: bytes) -> str | None:
    """The id that a `record.json` claims at its beginning; None where that does not read."""
    begins = _HEAD.match(content[:256])
    return None if begins is None else begins[1].decode()


def choose_run(prefix: str, ids: Mapping[Path, str | None], where: str) -> Path:
    """The one of some records whose id, or whose folder's name, is or starts like this.

    Args:
        prefix: What the user gave.
        ids: By folder, the id that the record claims.
        where: Where they are, for messages.

    Raises:
        InputError: If several do.
        UnknownNameError: If none does.
    """
    near = [folder for folder, id in ids.items() if prefix in (folder.name, id)]
    for folder, id in ids.items() if prefix and not near else ():
        if folder.name.startswith(prefix) or (id or "").startswith(prefix):
            near.append(folder)
    if not near:
        hint = (
            "A run is a record's folder, its record.json, or the start of its id; "
            f"looked in {where!r}."
        )
        raise UnknownNameError("run", prefix, [folder.name for folder in ids], hint, most=_LISTED)
    if len(near) > 1:
        names = ", ".join(folder.name for folder in near)
        raise InputError(f"{prefix!r} could be any of {names}; give more of the name")
    return near[0]


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
    if path.is_dir() and (runs := RecordStore(path).folders()):
        raise InputError(
            f"{str(path)!r} is a folder of runs, {len(runs)} of them: give one, such as {runs[0]}; "
            f"where several are taken, {path / '*'} is all of them"
        )
    separators = os.sep + (os.altsep or "")
    if path.is_dir() and set(separators) & set(run.rstrip(separators)):
        raise DataError(f"{path}: not a record: it holds no {RECORD}")
    return RecordStore(root).load(run)


def read_record(folder: Path) -> StoredRecord:
    """Read and check a record.

    Raises:
        DataError: If a part is missing, does not read, is not as it was written, or the id is not
            the hash of the identity.
    """
    try:
        content = _content(folder / RECORD)
        if not (folder / FACTS).is_file():
            raise DataError(f"{folder}: {FACTS} is missing")
        if (folder / SEAL).is_file():
            _check_seal(folder, content)
        record = parse_record(_parsed(folder / RECORD, content), folder / RECORD, Record)
        check_facts(folder / FACTS)
    except DataError as error:
        raise DataError(f"{error}; {_REMEDY}") from error
    return StoredRecord(record, folder)


def parse_record(value: Any, path: Path, model: type[_R]) -> _R:
    """The record of a JSON value.

    Args:
        value: The value.
        path: Where it is from, for messages.
        model: With or without figures.

    Raises:
        DataError: It is no record, or its id is not the hash of its identity.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise DataError(f"{path}: {first_fault(error, 'record')}") from error


def renew_seal(folder: Path) -> None:
    """Seal a record that kgbench itself has changed, where it has a seal."""
    if (folder / SEAL).is_file():
        files = {name: (folder / name).read_bytes() for name in (RECORD, FACTS)}
        write_whole(folder / SEAL, _seal(files))


def _seal(files: Mapping[str, bytes]) -> bytes:
    hashes = {name: sha256(files[name]).hexdigest() for name in (RECORD, FACTS)}
    return json.dumps(hashes, indent=1).encode() + b"\n"


def _check_seal(folder: Path, record: bytes) -> None:
    """Compare the files with what was written.

    Raises:
        DataError: They are not the same.
    """
    hashes = _parsed(folder / SEAL, _content(folder / SEAL))
    for name, content in ((RECORD, record), (FACTS, _content(folder / FACTS))):
        if not isinstance(hashes, dict) or hashes.get(name) != sha256(content).hexdigest():
            raise DataError(
                f"{folder / name}: damaged or edited: its hash is not the one in {SEAL}"
            )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: not readable ({error.strerror})") from error


def _parsed(path: Path, content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from error


def _read_or_warn(folder: Path) -> StoredRecord | None:
    try:
        return read_record(folder)
    except DataError as error:
        warnings.warn(f"a damaged record is left out: {error}", DamagedRecordWarning, stacklevel=3)
        return None
