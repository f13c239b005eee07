"""Finished parts of a run that has not ended, so that a killed run resumes."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from filelock import FileLock, Timeout

from kgbench.errors import DataError, OutputError
from kgbench.records.fact_rows import FACTS_SCHEMA, PASSING, facts_bytes, facts_table, read_facts

CODE = "code.txt"
"""Holds the version of the code that computed."""

_GONE = ".gone-"
"""Begins the name of a folder that is being deleted."""

_TRIES = 100
"""How often a file is written where other processes remove the folder meanwhile."""


class Journal:
    """Per-fact rows of finished chunks, in a folder of their own.

    A part holds every configuration of its prompts, so that the finished work is a set of (prompt,
    fact) pairs, whatever the batch size of the run that resumes. A part is written under a
    temporary name and then renamed to the hash of its code and content: a part is whole or absent,
    damaged parts and parts of other code are not used, and parts of several
    processes, also of several machines, never have one name.

    Several processes may fill one journal, see `divide`.
    """

    def __init__(self, folder: Path, code: str = "") -> None:
        """Take up what is there.

        Args:
            folder: The journal's folder; it need not exist.
            code: Version of the code that computes; parts of another version are deleted, with a
                warning. Empty to read only.
        """
        self.folder = folder
        before = ""
        with suppress(OSError):  # a damaged text is that of no code
            before = (folder / CODE).read_text("utf-8", errors="replace")
        self.code = code or before
        self._keeps = bool(code)
        self._parts: list[pa.Table] = []
        self._cost: dict[str, float] = {}
        self._finished: set[tuple[str, str]] = set()
        self._seen: set[str] = set()
        if before and before != self.code:
            _warn(
                f"an unfinished run of {before} is left out and computed again: this is {self.code}"
            )
            self.discard()
        self.refresh()

    def refresh(self) -> None:
        """Take up the parts that other processes have finished meanwhile."""
        for path in sorted(self.folder.glob("*.parquet")):
            if path.stem not in self._seen:
                self._take(path)

    def divide(self, names: Sequence[str], finished: Callable[[str], bool]) -> Iterator[str]:
        """Names of the tasks that are left to this process, one after the other.

        Of several processes at one journal each has other tasks: first those that no process works on,
        then those that the others, since they were killed, did not finish. The operating system
        frees the tasks of a process that ends in whatever way.

        Args:
            names: All tasks; they are names of files.
            finished: Whether a task is finished. The parts of other processes are taken up before
                it is asked.
        """
        for wait in (False, True):
            for name in names:
                if finished(name):
                    continue
                lock = self._lock(name, wait)
                if lock is None:
                    continue
                try:
                    self.refresh()
                    if not finished(name):
                        yield name
                finally:
                    lock.release()

    @property
    def begun(self) -> bool:
        """Whether something is finished, and no process has ended the run and removed it."""
        return (self.folder / CODE).is_file()

    def _lock(self, name: str, wait: bool) -> FileLock | None:
        """The lock of a task; None where another process has it and this one does not wait."""
        lock = FileLock(self.folder / f"{name}.lock")
        for left in reversed(range(_TRIES)):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                lock.acquire(timeout=-1 if wait else 0)
                break
            except Timeout:
                return None
            except NotImplementedError:
                break  # a file system without locks, where a task may be done twice
            except OSError as error:
                # Another process ended and removed the folder meanwhile.
                if not left:
                    raise OutputError.of(
                        "a finished part of the run", self.folder, error
                    ) from error
        return lock

    def _hash(self, content: bytes) -> str:
        """SHA-256, in hexadecimal, of the code and of what it computed."""
        return sha256(self.code.encode() + b"\0" + content).hexdigest()

    def keep(self, name: str, value: Any) -> None:
        """Keep a JSON value, such as the scores of one half of the facts.

        Raises:
            OutputError: It cannot be written, as on a full disk.
        """
        hash = self._hash(json.dumps(value, allow_nan=False).encode())
        self._put(f"{name}.json", json.dumps({"hash": hash, "value": value}).encode())

    def kept(self, name: str) -> Any | None:
        """A value that was kept; None where it was not, or is damaged (with a warning)."""
        path = self.folder / f"{name}.json"
        try:
            content = json.loads(path.read_text("utf-8"))
            value = content["value"]
            intact = content["hash"] == self._hash(json.dumps(value, allow_nan=False).encode())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            intact = False
        if intact:
            return value
        self._leave_out(path)
        return None

    def _take(self, path: Path) -> None:
        """Take up a part, unless it is damaged."""
        self._seen.add(path.stem)
        try:
            content = path.read_bytes()
            if path.stem != self._hash(content):
                return self._leave_out(path)
            part = read_facts(path, content)
        except FileNotFoundError:  # another process ended meanwhile
            return None
        except (OSError, DataError):
            return self._leave_out(path)
        metadata = part.schema.metadata or {}
        return self._add(part, {key.decode(): float(cost) for key, cost in metadata.items()})

    def _leave_out(self, path: Path) -> None:
        _warn(
            f"part of an unfinished run is left out and computed again: {path} is damaged, "
            "or of other code"
        )
        if self._keeps:
            path.unlink(missing_ok=True)

    def _add(self, part: pa.Table, cost: Mapping[str, float]) -> None:
        pairs = list(zip(part["prompt"].to_pylist(), part["fact"].to_pylist(), strict=True))
        fresh = [pair not in self._finished for pair in pairs]
        self._finished.update(pairs)
        self._parts.append(part.filter(pa.array(fresh, pa.bool_())).replace_schema_metadata(None))
        for key, value in cost.items():
            self._cost[key] = self._cost.get(key, 0.0) + value

    def finished(self) -> frozenset[tuple[str, str]]:
        """The (prompt, fact) pairs of which all configurations are here."""
        return frozenset(self._finished)

    def cost(self) -> dict[str, float]:
        """Total cost of the parts."""
        return dict(self._cost)

    def append(
        self, columns: Mapping[str, object] | pa.Table, cost: Mapping[str, float] | None = None
    ) -> None:
        """Keep a finished chunk.

        Args:
            columns: Per-fact rows of some prompts under all configurations.
            cost: What they cost, such as forwards, token_rows and seconds.

        Raises:
            DataError: If a score is not finite.
            OutputError: It cannot be written, as on a full disk.
        """
        part = facts_table(columns)
        spent = {key: repr(float(value)) for key, value in (cost or {}).items()}
        content = facts_bytes(part, spent, PASSING)
        name = self._hash(content)
        self._seen.add(name)
        self._put(f"{name}.parquet", content)
        self._add(part, cost or {})

    def _put(self, name: str, content: bytes) -> None:
        """Write a file whole or not at all, the code before it."""
        files = {**({CODE: self.code.encode()} if self.code else {}), name: content}
        for left in reversed(range(_TRIES)):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                for each, text in files.items():
                    write_whole(self.folder / each, text)
                return
            except OSError as error:
                # Another run of the same job ended and removed the folder, perhaps meanwhile.
                gone = isinstance(error, FileNotFoundError | FileExistsError)
                if not (left and gone):
                    raise OutputError.of(
                        "a finished part of the run", self.folder, error
                    ) from error

    def place(self, name: str) -> Path:
        """A folder in which another process leaves parts, of this version of the code.

        Raises:
            OutputError: It cannot be made.
        """
        self.keep(name, "begun")
        (folder := self.folder / name).mkdir(exist_ok=True)
        return folder

    def table(self) -> pa.Table:
        """All rows, sorted; a pair that two parts hold is taken from the first."""
        return facts_table(pa.concat_tables(self._parts or [FACTS_SCHEMA.empty_table()]))

    def discard(self) -> None:
        """Delete the folder: the run has ended and its record is written.

        It is renamed first, so that another process finds all of it or nothing.
        """
        gone = self.folder.with_name(f"{_GONE}{uuid4().hex}")
        with suppress(OSError):
            os.rename(self.folder, gone)
        with suppress(FileNotFoundError):  # another process removed the parent meanwhile
            for folder in self.folder.parent.glob(f"{_GONE}*"):
                shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # others are there, or it was never made
            self.folder.parent.rmdir()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file in the place of an earlier one; other processes see all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _warn(text: str) -> None:
    """A warning that names the caller of the store."""
    warnings.warn(text, stacklevel=5)
