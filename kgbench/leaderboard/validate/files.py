"""Entries as they are sent: their documents and rows, read without following a link, and parsed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.leaderboard import limits
from kgbench.leaderboard.entries import Entry, Submission, Verification
from kgbench.leaderboard.folders import (
    ENTRIES,
    ENTRY,
    NAME,
    RESULTS,
    ROWS,
    MethodFolder,
    entry_line,
    lines,
    named_documents,
    read_regular,
    rows_of,
)
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.sandbox import SANDBOX
from kgbench.leaderboard.validate.documents import SubmittedResult
from kgbench.records import Record, Result, Strict, canonical_json
from kgbench.records.fact_rows import STORED, in_order
from kgbench.records.identity import private_kind, texts_in, texts_of

DOCUMENTS: Mapping[str, type[Strict]] = {
    RECORD: SubmittedResult,
    SUBMISSION: Submission,
    VERIFICATION: Verification,
}

MADE = Record.model_fields.keys() - Result.model_fields.keys()
"""Fields of a run's record that follow from its rows, and from its map and plant."""

_FIT = "letters, digits and . _ + -, at most 120"
_MARKUP = re.compile(r"<[A-Za-z/!?]|&#|\b(javascript|vbscript|data)\s*:", re.IGNORECASE)
_HARMLESS = re.compile(r"[\w +()^%.:@=,-]{1,120}", re.ASCII)
"""Names and keys that can be shown as they are."""

_LONGEST = 80
"""Characters of a submitter's own text that a finding repeats."""

_MOST = 5
"""Findings of one kind that are listed of one file."""


# ---------------------------------------------------------------------------------------- findings


@dataclass(frozen=True)
class Finding:
    """What a check says of a field; nothing where its value is the expected one."""

    file: str
    """Name of the file, empty of the whole entry; of a finding that was added to an entry, the
    entry's name and that of the file."""
    field: str
    """Field of a JSON file, column of the per-fact rows, or property of the file."""
    value: object
    """What it is; `clause` shows it."""
    expected: object = ""
    clause: str = "it is {}"
    """What is wrong; braces stand for the value."""
    refuses: bool = True
    """Whether the result is refused for it; otherwise it is a remark."""

    @property
    def wrong(self) -> str:
        """What is wrong, in words that can be printed anywhere."""
        return self.clause.replace("{}", shown(self.value))

    def __str__(self) -> str:
        note = "" if self.refuses else "note: "
        expected = f"; expected {self.expected}" if self.expected else ""
        return f"{note}{self.file}: {self.field}: {self.wrong}{expected}"

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "file": self.file,
            "field": self.field,
            "wrong": self.wrong,
            "expected": str(self.expected) or None,
            "kind": "refusal" if self.refuses else "note",
        }


def shown(value: object) -> str:
    """A submitter's value as it can be printed anywhere: escaped, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def shown_name(name: str) -> str:
    """A name or key as findings give it: as it is where it is harmless."""
    return name if _HARMLESS.fullmatch(name) else shown(name)


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

    def add(self, *findings: Finding) -> None:
        """Add those findings whose value is not the expected one."""
        for finding in findings:
            if finding.value != finding.expected:
                file = f"{self.folder}/{finding.file}".removesuffix("/")
                self.findings.append(replace(finding, file=file))

    @contextmanager
    def reading(self, file: str, field: str, expected: str) -> Iterator[None]:
        """Take what a reader raises for a finding.

        Args:
            file: The file.
            field: Property of it that is read.
            expected: What was expected of it.
        """
        try:
            yield
        except (DataError, ValueError, TypeError, RecursionError) as error:
            wrong = str(error) if isinstance(error, DataError) else ascii(str(error)[:100])
            self.add(Finding(file, field, None, expected, wrong))

    def parse(self) -> Entry | None:
        """The entry with its rows in memory, where all of its documents and its rows read."""
        parts: dict[str, Any] = {}
        for name, raw in self.documents.items():
            parts[name], findings = parsed(name, raw)
            self.add(*findings)
        if None in parts.values() or self.table is None or RECORD not in parts:
            return None
        path, rows = self.home.path if self.home else Path(), in_order(self.table)
        home = MethodFolder(path, {self.folder: self.documents}, {self.folder: rows})
        submission, verification = parts.get(SUBMISSION), parts.get(VERIFICATION)
        self.entry = Entry(path / self.folder, parts[RECORD], submission, verification, home)
        return self.entry


# --------------------------------------------------------------------------------------- documents


def parsed(name: str, raw: Any) -> tuple[Strict | None, list[Finding]]:
    """The content of a document, None where it is refused, and the findings on it.

    Args:
        name: Its file.
        raw: Its JSON value.
    """
    harmful = {text: reason for text in texts_in(raw) if (reason := harm(text)) is not None}
    if harmful:  # naming places takes several times as long as finding texts
        expected = "plain text, and no absolute path or credential"
        unfit = (
            Finding(name, place, None, expected, f"it {harmful[text]}")
            for place, text in texts_of(raw, named=shown_name)
            if text in harmful
        )
        return None, list(islice(unfit, _MOST))
    try:
        made = DOCUMENTS[name].model_validate(raw)
        written = canonical_json(made.model_dump(mode="json", exclude_none=True))
    except ValidationError as error:
        findings = []
        for fault in error.errors(include_url=False)[:_MOST]:
            # The one law of a whole record is that its id is the hash of its identity.
            place = ".".join(map(shown_name, map(str, fault["loc"]))) or "id"
            law = ascii(fault["msg"].removeprefix("Value error, "))[1:-1]
            law = "no such field" if fault["type"] == "extra_forbidden" else law
            findings.append(Finding(name, place, fault["input"], law))
        return None, findings
    if canonical_json(raw) == written:
        return made, []
    return made, [Finding(name, "content", None, "", "it is not as kgbench writes it")]


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
        path: A folder with a record, its `record.json`, a method folder, a folder of such folders,
            or a leaderboard's.
        strict: Whether hidden folders are read too, which a store of runs has.

    Raises:
        InputError: There is no such path, or nothing in it is an entry.
    """
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
                misplaced.add(Finding("", "kind", None, expected, "it is no such folder"))
                yield misplaced


def _unreadable(error: OSError) -> None:
    raise InputError(f"{str(error.filename)!r} cannot be read: {error.strerror}") from error


def _fit(path: Path) -> bool:
    return NAME.fullmatch(path.name) is not None and not path.is_symlink()


def entry_of_method(path: Path, name: str) -> list[CheckedEntry]:
    """An entry of a method folder; all of them where the folder is at fault.

    Raises:
        UnknownNameError: It holds none of this name.
    """
    entries = _of_method(path)
    if any(entry.home is None for entry in entries):
        return entries
    if not (named := [each for each in entries if each.folder == name]):
        names = [each.folder for each in entries]
        raise UnknownNameError("entry", name, names, f"looked in {str(path)!r}", most=5)
    return named


def _of_method(path: Path) -> list[CheckedEntry]:
    """The entries of a method folder, before them one with the findings on its files if any."""
    folder = CheckedEntry(shown_name(path.name))
    for name in sorted({*os.listdir(path)} - {ENTRIES, FACTS}):
        expected, wrong = f"{ENTRIES} and {FACTS} alone", "it is none of a method's files"
        folder.add(Finding(shown_name(name), "file", None, expected, wrong))
    listed, rows = list[bytes](), ROWS.empty_table()
    expected = "the file as kgbench submit writes it"
    with folder.reading(ENTRIES, "list", expected):
        listed = lines(path / ENTRIES)
    with folder.reading(FACTS, "Parquet", expected):
        rows = SANDBOX.read(read_regular(path / FACTS, limits.FACTS_OF_METHOD), ROWS)
    entries = [_listed(f"{folder.folder}:{number}", line) for number, line in enumerate(listed, 1)]
    home = MethodFolder(path, {entry.folder: entry.documents for entry in entries})
    left = rows.num_rows
    for entry in entries:
        entry.home, entry.table = home, rows_of(rows, entry.folder)
        left -= entry.table.num_rows
        if not entry.table.num_rows:
            wrong = "there are none that read"
            entry.add(Finding(FACTS, "rows", None, "its per-fact rows", wrong))
    if left > 0:
        wrong = f"{{}} of its rows are of no entry that {ENTRIES} lists"
        folder.add(Finding(FACTS, ENTRY, left, "rows of entries alone", wrong))
    return entries if folder.accepted else [folder, *entries]


def _listed(place: str, line: bytes) -> CheckedEntry:
    """The entry of a line in the list of a method's.

    Args:
        place: Where the line is, which names an entry whose own name does not read.
        line: Its bytes.
    """
    entry = CheckedEntry(place)
    with entry.reading("", "JSON", "a JSON object in UTF-8"):
        if len(line) > limits.LINE:
            raise DataError(f"it is too large: it has more than {limits.LINE} bytes")
        name, documents = named_documents({ENTRY: None, **json.loads(line)})
        # Neither blanks nor a key that stands twice: parsers differ in which one they take.
        as_written = entry_line(name, documents) == line.decode()
        if not isinstance(name, str) or not NAME.fullmatch(name):
            entry.add(Finding("", ENTRY, name, _FIT))
            return entry
        entry.folder = name
        if not documents.keys() <= DOCUMENTS.keys() or not as_written:
            expected = "a record, its submission and verification alone, as kgbench writes them"
            entry.add(Finding("", "content", sorted(documents), expected, "it holds {}"))
        if RECORD not in documents:
            expected = "the record of each entry"
            entry.add(Finding(RECORD, "file", None, expected, "it is missing"))
        entry.documents = {key: documents[key] for key in DOCUMENTS if key in documents}
    return entry


def _run(path: Path) -> CheckedEntry:
    """A run's own folder, of which record and rows are submitted, and nothing else."""
    run = CheckedEntry(shown_name(path.resolve().name))
    with run.reading(RECORD, "JSON", "the record of a run"):
        values = dict(json.loads(read_regular(path / RECORD, limits.FILE[RECORD])))
        # Figures are made of the rows, whatever it holds.
        run.documents[RECORD] = {key: values[key] for key in values if key not in MADE}
    with run.reading(FACTS, "Parquet", "a facts.parquet as kgbench eval writes it of first tokens"):
        run.table = SANDBOX.read(read_regular(path / FACTS, limits.FILE[FACTS]), STORED)
    return run
