"""The documents and rows of entries, read without following a link, and parsed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pydantic import ValidationError

from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.leaderboard import limits
from kgbench.leaderboard.entries import Entry, Submission, Verification
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
from kgbench.leaderboard.known import Shipped, shipped_of
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.sandbox import SANDBOX
from kgbench.leaderboard.validate.documents import SubmittedResult
from kgbench.leaderboard.validate.findings import Finding, shown_name
from kgbench.records import Record, Result, Strict, canonical_json
from kgbench.records.fact_rows import STORED, Spans, in_order, spans
from kgbench.records.identity import private_kind, texts_in, texts_of

DOCUMENTS: Mapping[str, type[Strict]] = {
    RECORD: SubmittedResult,
    SUBMISSION: Submission,
    VERIFICATION: Verification,
}

MADE = Record.model_fields.keys() - Result.model_fields.keys()
"""Fields of a run's record that follow from its rows, and from its map and plant."""

RESULTS = "results"
"""The folder of a leaderboard that holds the entries."""

_FIT = "letters, digits and . _ + -, at most 120"
_MARKUP = re.compile(r"<[A-Za-z/!?]|&#|\b(javascript|vbscript|data)\s*:", re.IGNORECASE)

_MOST = 5
"""Findings of one kind that are listed of one file."""


@dataclass(frozen=True, eq=False)
class Sent:
    """An entry as it was sent, parsed."""

    entry: Entry
    rows: pa.Table
    """Its per-fact rows, sorted."""
    places: Spans
    """Where those of each prompt and configuration are."""
    hashes: Mapping[str, str]
    """Of each document, and of the rows."""
    shipped: Shipped
    """What is known of its data and models."""


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
    entry: Entry | None = None
    """What a board shows of it, where its documents and rows read."""

    @property
    def accepted(self) -> bool:
        """Whether nothing in it is refused."""
        return not any(finding.refuses for finding in self.findings)

    def add(self, *findings: Finding, document: str = "") -> None:
        """Add findings on one of its documents, or on the whole."""
        file = f"{self.folder}/{document}" if document else self.folder
        for finding in findings:
            if finding.value != finding.expected:
                self.findings.append(replace(finding, file=file))

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
        except (DataError, ValueError, TypeError, RecursionError) as error:
            wrong = str(error) if isinstance(error, DataError) else ascii(str(error)[:100])
            self.add(Finding(field, None, expected, wrong), document=document)

    def parse(self) -> Sent | None:
        """The entry, where all of its documents and its rows read."""
        parts = {}
        for name, raw in self.documents.items():
            parts[name], findings = parsed(raw, DOCUMENTS[name])
            self.add(*findings, document=name)
        if None in parts.values() or self.table is None or RECORD not in parts:
            return None
        hashes = {name: document_hash(value) for name, value in self.documents.items()}
        rows = in_order(self.table)
        home = self.home or MethodFolder(Path(), {self.folder: self.documents})
        result = cast(Result, parts[RECORD])
        submission = cast(Submission | None, parts.get(SUBMISSION))
        verification = cast(Verification | None, parts.get(VERIFICATION))
        self.entry = Entry(home.path / self.folder, result, submission, verification, home)
        hashes[FACTS] = rows_hash(rows)
        return Sent(self.entry, rows, spans(rows), hashes, shipped_of(result))


# --------------------------------------------------------------------------------------- documents


def parsed(raw: Any, model: type[Strict]) -> tuple[Strict | None, list[Finding]]:
    """The content of a document, None where it is refused, and the findings on it."""
    harmful = {text: reason for text in texts_in(raw) if (reason := harm(text)) is not None}
    if harmful:  # naming places takes several times as long as finding texts
        expected = "plain text, and no absolute path or credential"
        places = texts_of(raw, named=shown_name)
        unfit = (
            Finding(at, None, expected, f"it {harmful[t]}") for at, t in places if t in harmful
        )
        return None, list(islice(unfit, _MOST))
    try:
        made = model.model_validate(raw)
        written = canonical_json(made.model_dump(mode="json", exclude_none=True))
    except ValidationError as error:
        findings = []
        for fault in error.errors(include_url=False)[:_MOST]:
            # The one law of a whole record is that its id is the hash of its identity.
            place = ".".join(map(shown_name, map(str, fault["loc"]))) or "id"
            law = ascii(fault["msg"].removeprefix("Value error, "))[1:-1]
            law = "no such field" if fault["type"] == "extra_forbidden" else law
            findings.append(Finding(place, fault["input"], law))
        return None, findings
    if canonical_json(raw) == written:
        return made, []
    return made, [Finding("content", None, "", "it is not as kgbench writes it")]


def harm(text: str) -> str | None:
    """Why a text may not be shown on a page, in a table or on a terminal; None where it may."""
    if len(text) > limits.TEXT:
        return f"holds a text of {len(text)} characters"
    if not text.isprintable():
        return "holds characters that are not seen, such as control or direction marks"
    if _MARKUP.search(text):
        return "holds what a browser could take for markup"
    return private_kind(text)


# ----------------------------------------------------------------------------------------- folders


def entries_below(path: Path, strict: bool) -> Iterator[CheckedEntry]:
    """The entry that a path is, or those in it, by name.

    Args:
        path: A folder with a record, its `record.json`, a method folder, alone or with the name of
            an entry after it, a folder of such folders, or a leaderboard's.
        strict: Whether hidden folders are read too, which a store of runs has.

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
    for name, folders, files in os.walk(path, onerror=_unreadable):
        folder = Path(name)
        if ENTRIES in files or {RECORD, FACTS} & {*files}:
            folders.clear()
            yield from _of_method(folder) if ENTRIES in files else [_run(folder)]
            continue
        hidden = ".gitkeep" if strict else "."
        inside = sorted(name for name in (*files, *folders) if not name.startswith(hidden))
        folders[:] = [name for name in inside if name in folders and _fit(folder / name)]
        if not inside and folder == path:
            raise InputError(
                f"{name!r} holds no entry: expected {RECORD} in it, or in folders in it"
            )
        for name in inside or [folder.name]:
            if name not in folders:
                misplaced = CheckedEntry(shown_name(name))
                expected = f"folders of entries or runs, and names of {_FIT}"
                misplaced.add(Finding("kind", None, expected, "it is no such folder"))
                yield misplaced


def _unreadable(error: OSError) -> None:
    raise InputError(f"{str(error.filename)!r} cannot be read: {error.strerror}") from error


def _fit(path: Path) -> bool:
    return NAME.fullmatch(path.name) is not None and not path.is_symlink()


def _of_method(path: Path) -> list[CheckedEntry]:
    """The entries of a method folder, before them one with the findings on its files if any."""
    folder = CheckedEntry(shown_name(path.name))
    for name in sorted({*os.listdir(path)} - {ENTRIES, FACTS}):
        expected, wrong = f"{ENTRIES} and {FACTS} alone", "it is none of a method's files"
        folder.add(Finding("file", None, expected, wrong), document=shown_name(name))
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
        entry.home, entry.table = home, rows_of(rows, entry.folder)
        left -= entry.table.num_rows
        if not entry.table.num_rows:
            wrong = "there are none that read"
            entry.add(Finding("rows", None, "its per-fact rows", wrong), document=FACTS)
    if left > 0:
        wrong = f"{{}} of its rows are of no entry that {ENTRIES} lists"
        folder.add(Finding(ENTRY, left, "rows of entries alone", wrong), document=FACTS)
    return entries if folder.accepted else [folder, *entries]


def _listed(place: str, line: bytes) -> CheckedEntry:
    """The entry of a line in the list of a method's.

    Args:
        place: Where the line is, which names an entry whose own name does not read.
        line: Its bytes.
    """
    entry = CheckedEntry(place)
    with entry.reading("JSON", "a JSON object in UTF-8"):
        if len(line) > limits.LINE:
            raise DataError(f"it is too large: it has more than {limits.LINE} bytes")
        name, documents = named_documents({ENTRY: None, **json.loads(line)})
        if not isinstance(name, str) or not NAME.fullmatch(name):
            entry.add(Finding(ENTRY, name, _FIT))
            return entry
        entry.folder = name
        # Neither blanks nor a key that stands twice: parsers differ in which one they take.
        if not documents.keys() <= DOCUMENTS.keys() or entry_line(name, documents) != line.decode():
            expected = "a record, its submission and verification alone, as kgbench writes them"
            entry.add(Finding("content", sorted(documents), expected, "it holds {}"))
        documents = {key: documents[key] for key in DOCUMENTS if key in documents}
        if RECORD not in documents:
            expected = "the record of each entry"
            entry.add(Finding("file", None, expected, "it is missing"), document=RECORD)
        entry.documents = documents
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


def _run(path: Path) -> CheckedEntry:
    """A run's own folder, of which record and rows are submitted, and nothing else."""
    run = CheckedEntry(shown_name(path.resolve().name))
    with run.reading("JSON", "the record of a run", RECORD):
        values = dict(json.loads(read_regular(path / RECORD, limits.FILE[RECORD])))
        # Figures are made of the rows, whatever it holds.
        run.documents[RECORD] = {key: values[key] for key in values if key not in MADE}
    with run.reading("Parquet", "a facts.parquet as kgbench eval writes it of first tokens", FACTS):
        run.table = SANDBOX.read(read_regular(path / FACTS, limits.FILE[FACTS]), STORED)
    return run
