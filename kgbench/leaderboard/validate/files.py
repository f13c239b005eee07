"""The documents and rows of entries, read without following a link."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.leaderboard import limits
from kgbench.leaderboard.entries import BOARDS, Entry, Submission, Verification
from kgbench.leaderboard.folders import (
    ENTRIES,
    ENTRY,
    NAME,
    ROWS,
    MethodFolder,
    document_hash,
    entry_line,
    inside_folder,
    lines,
    named_documents,
    read_regular,
    rows_hash,
    rows_of,
)
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.sandbox import SANDBOX
from kgbench.leaderboard.validate.documents import STRICT_JSON, parsed, read_json
from kgbench.leaderboard.validate.findings import Finding, shown, shown_name
from kgbench.records import SEAL, SOURCES, Record, Result, Strict
from kgbench.records.fact_rows import STORED

_M = TypeVar("_M", bound=Strict)
RUN = (RECORD, FACTS)
"""Files of a run; without them there is no entry."""

OWN = re.compile(rf"(chart|curve|map)(-[\w.-]+)?\.(png|svg)|{re.escape(SEAL)}|{re.escape(SOURCES)}")
"""Files that kgbench writes next to a run's record and an entry lacks, such as pictures."""

MADE = Record.model_fields.keys() - Result.model_fields.keys()
"""Fields of a run's record that follow from its rows, and from its map and plant."""

_FIT = "letters, digits and . _ + -, at most 120"

PICTURE = re.compile(r"[\w.-]+\.(png|svg)")
"""Other files that a run's own folder may hold."""

RESULTS = "results"
"""The folder of a leaderboard that holds the entries."""


@dataclass
class CheckedEntry:
    """The documents of one entry, its rows as far as they read, and the findings on them."""

    folder: str
    """Its name."""
    documents: dict[str, Any] = field(default_factory=dict)
    """JSON values by `record.json` and so on."""
    table: pa.Table | None = None
    """Its per-fact rows."""
    findings: list[Finding] = field(default_factory=list)
    home: MethodFolder | None = None
    """The method folder that it is in, where it is on a board."""
    result: Result | None = None
    record: Record | None = None
    """The result with its figures, where it is in order and they can be made of the rows."""
    submission: Submission | None = None
    verification: Verification | None = None

    @property
    def accepted(self) -> bool:
        """Whether nothing in it is refused."""
        return not any(finding.refuses for finding in self.findings)

    @property
    def entry(self) -> Entry | None:
        """What a board shows of it; None where the record does not read, or it is on none."""
        if self.result is None or self.home is None:
            return None
        place, result = self.home.path / self.folder, self.record or self.result
        return Entry(place, result, self.submission, self.verification, self.home)

    def add(self, findings: Iterable[Finding], document: str = "") -> None:
        """Add the findings of a check of one of its documents, or of the whole."""
        file = f"{self.folder}/{document}" if document else self.folder
        self.findings += [replace(finding, file=file) for finding in findings]

    @contextmanager
    def reading(self, field: str, expected: str, document: str = "") -> Iterator[None]:
        """Take what a reader raises for a finding.

        Args:
            field: Property of the file that is read.
            expected: What was expected of it.
            document: The file.
        """
        try:
            yield
        except DataError as error:
            self.add([Finding(field, str(error), expected)], document)

    def read(self, document: str, model: type[_M]) -> _M | None:
        """The content of one of its documents; None where it is not there, or is refused.

        Args:
            document: Its name.
            model: Type of its content.
        """
        if document not in self.documents:
            return None
        content, findings = parsed(self.documents[document], model)
        self.add(findings, document)
        return content

    def hashes(self) -> dict[str, str]:
        """Hash of each document, and of the rows."""
        hashes = {name: document_hash(value) for name, value in self.documents.items()}
        return hashes if self.table is None else {**hashes, FACTS: rows_hash(self.table)}


def entries_below(path: Path, strict: bool) -> Iterator[CheckedEntry]:
    """The entry that a path is, or those in it, by name.

    Args:
        path: A folder with a record, its `record.json`, a method folder, alone or with the name of
            an entry after it, a folder of such folders, or a leaderboard's.
        strict: Whether files other than the known ones are refused, also a run's own pictures.

    Raises:
        InputError: There is no such path, or nothing in it is an entry.
    """
    if (place := inside_folder(path)) is not None:
        yield from _named(*place)
        return
    if path.name == RECORD and not path.is_dir():
        path = path.parent
    if (path / RESULTS).is_dir() and not (path / RECORD).exists():
        path = path / RESULTS
    if not path.is_dir():
        raise InputError(
            f"{str(path)!r}: no folder or {RECORD} is there; give a run's folder, a folder of "
            "such, or a method's on the leaderboard"
        )
    try:
        inside = _items(path)
        if any(item.name in RUN for item in inside):
            yield _run(path, path.resolve().name, strict)
            return
        left_out = (".gitkeep" if strict else ".",)  # a store of runs has hidden files
        items = [item for item in inside if not item.name.startswith(left_out)]
        if not items:
            raise InputError(
                f"{str(path)!r} holds no entry: expected {RECORD} in it, or in folders in it"
            )
        for item in items:
            yield from _below(item, strict)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _items(path: Path) -> list[os.DirEntry[str]]:
    return sorted(os.scandir(path), key=lambda item: item.name)


def _below(item: os.DirEntry[str], strict: bool, in_board: bool = False) -> Iterator[CheckedEntry]:
    """The entries of a folder's item: a run, those of a method, or those of a board's methods.

    Args:
        item: An item of a folder of runs, or of a board's folder, which holds method folders alone.
        strict: As of `entries_below`.
        in_board: Whether it is in a board's folder.
    """
    misplaced, path = CheckedEntry(shown_name(item.name)), Path(item.path)
    if not item.is_dir(follow_symlinks=False):
        wrong = f"it is {'a symbolic link' if item.is_symlink() else 'a file'}"
        expected = f"nothing but the folders of {'methods' if in_board else 'entries or runs'}"
        misplaced.add([Finding("kind", wrong, expected)])
        yield misplaced
    elif not NAME.fullmatch(item.name):
        misplaced.add([Finding("name", "it is not fit for a folder", _FIT)])
        yield misplaced
    elif in_board or (path / ENTRIES).exists():
        yield from _of_method(path)
    elif item.name in BOARDS and not (path / RECORD).exists():
        for below in _items(path):
            yield from _below(below, strict, in_board=True)
    else:
        yield _run(path, item.name, strict)


def _of_method(path: Path) -> list[CheckedEntry]:
    """The entries of a method folder, before them one with the findings on its files if any."""
    folder = CheckedEntry(shown_name(path.name))
    for item in _items(path):
        if item.name not in (ENTRIES, FACTS):
            expected = f"{ENTRIES} and {FACTS} alone"
            finding = Finding("file", "it is none of a method's files", expected)
            folder.add([finding], shown_name(item.name))
    entries, rows = [], ROWS.empty_table()
    expected = "the file as kgbench submit writes it"
    with folder.reading("list", expected, ENTRIES):
        for number, line in enumerate(lines(path / ENTRIES), 1):
            entries.append(_listed(f"{folder.folder}:{number}", line))
    with folder.reading("Parquet", expected, FACTS):
        rows = SANDBOX.read(read_regular(path / FACTS, limits.FACTS_OF_METHOD), ROWS)
    home = MethodFolder(path, {entry.folder: entry.documents for entry in entries})
    left = rows.num_rows
    for entry in entries:
        entry.home, table = home, rows_of(rows, entry.folder)
        left -= table.num_rows
        if table.num_rows:
            entry.table = table
        else:
            entry.add([Finding("rows", "there are none that read", "its per-fact rows")], FACTS)
    if left > 0:
        wrong = f"{left} of its rows are of no entry that {ENTRIES} lists"
        folder.add([Finding(ENTRY, wrong, "rows of entries alone")], FACTS)
    return entries if folder.accepted else [folder, *entries]


def _listed(place: str, line: bytes) -> CheckedEntry:
    """The entry of a line in the list of a method's.

    Args:
        place: Where the line is, which names an entry whose own name does not read.
        line: Its bytes.
    """
    entry = CheckedEntry(place)
    if len(line) > limits.LINE:
        entry.add([Finding("size", "it is too large", f"at most {limits.LINE} bytes")])
        return entry
    with entry.reading("JSON", STRICT_JSON):
        name, documents = named_documents({ENTRY: None, **read_json(line)})
        if not isinstance(name, str) or not NAME.fullmatch(name):
            entry.add([Finding(ENTRY, f"it is {shown(name)}", _FIT)])
            return entry
        entry.folder, entry.documents = name, documents
        strange = sorted(documents.keys() - {RECORD, SUBMISSION, VERIFICATION})
        if strange or entry_line(name, documents) != line.decode():
            wrong = f"it holds {shown(strange[0])}" if strange else "it is not as kgbench writes it"
            expected = "a record, its submission and verification alone"
            entry.add([Finding("content", wrong, expected)])
        if RECORD not in documents:
            entry.add([Finding("file", "it is missing", "the record of each entry")], RECORD)
    return entry


def _named(path: Path, name: str) -> list[CheckedEntry]:
    """The entries of a method folder, or the one of a name.

    Raises:
        UnknownNameError: It holds none of this name.
    """
    entries = _of_method(path)
    if not name or any(entry.home is None for entry in entries):
        return entries
    if not (named := [each for each in entries if each.folder == name]):
        names = [each.folder for each in entries]
        raise UnknownNameError("entry", name, names, f"looked in {str(path)!r}", most=5)
    return named


def _run(path: Path, name: str, strict: bool) -> CheckedEntry:
    """A run's own folder."""
    run, contents = CheckedEntry(shown_name(name)), {}
    for item in _items(path):
        if item.name in RUN:
            with run.reading("file", "a regular file of its own", item.name):
                contents[item.name] = read_regular(Path(item.path), limits.FILE[item.name])
        elif strict or not OWN.fullmatch(item.name):
            refuses = strict or not PICTURE.fullmatch(item.name)
            wrong = "it is none of an entry's files" if refuses else "a picture is not submitted"
            expected = f"{', '.join(RUN)} and nothing else"
            run.add([Finding("file", wrong, expected, refuses)], shown_name(item.name))
    for file in RUN:
        if not os.path.lexists(path / file):
            expected = f"{' and '.join(RUN)} in each folder"
            run.add([Finding("file", "it is missing", expected)], file)
    if RECORD in contents:
        with run.reading("JSON", STRICT_JSON, RECORD):
            values = read_json(contents[RECORD])
            # Figures are made of the rows, whatever it holds.
            run.documents[RECORD] = {key: values[key] for key in values if key not in MADE}
    if FACTS in contents:
        with run.reading("Parquet", "a facts.parquet as kgbench eval writes it", FACTS):
            run.table = SANDBOX.read(contents[FACTS], STORED)
    return run
