"""The documents and rows of entries: read without following a link, as strict JSON."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from pydantic import ValidationError

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
from kgbench.records import SEAL, SOURCES, Record, Result, Strict, canonical_json
from kgbench.records.fact_rows import STORED
from kgbench.records.identity import private_kind, texts_in, texts_of

# ---------------------------------------------------------------------------------------- findings


_LONGEST = 80
"""Characters of a submitter's own text that a finding repeats."""


@dataclass(frozen=True)
class Finding:
    """Finding of a check."""

    field: str
    """Field of a JSON file, column of the per-fact rows, or property of the file."""
    wrong: str
    expected: str = ""
    refuses: bool = True
    """Whether the result is refused for it; otherwise it is a remark."""
    file: str = ""
    """Folder and name of the file, or the folder; set by `CheckedEntry.add`."""

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
            "expected": self.expected or None,
            "kind": "refusal" if self.refuses else "note",
        }


Law = tuple[str, object, bool, str]
"""A field, its value, whether it is as it must be, and what was expected."""


def unmet(laws: Iterable[Law], refuses: bool = True) -> Iterator[Finding]:
    """A finding for each field that is not as it must be."""
    for name, value, holds, expected in laws:
        if not holds:
            yield Finding(name, f"it is {shown(value)}", expected, refuses)


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """Those for which a result is refused."""
    return [finding for finding in findings if finding.refuses]


def shown(value: object) -> str:
    """A submitter's value as it can be printed anywhere: escaped, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


# ------------------------------------------------------------------------------------------- files


_M = TypeVar("_M", bound=Strict)
_T = TypeVar("_T")


RUN = (RECORD, FACTS)
"""Files of a run; without them there is no entry."""

OWN = re.compile(rf"(chart|curve|map)(-[\w.-]+)?\.(png|svg)|{re.escape(SEAL)}|{re.escape(SOURCES)}")
"""Files that kgbench writes next to a run's record and an entry lacks, such as pictures."""

MADE = Record.model_fields.keys() - Result.model_fields.keys()
"""Fields of a run's record that follow from its rows, and from its map and plant."""

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
        return not refusals(self.findings)

    @property
    def entry(self) -> Entry | None:
        """What a board shows of it; None where the record does not read, or it is on none."""
        if self.result is None or self.home is None:
            return None
        rows, hits = self.home.rows, self.home.hits
        return Entry(
            self.home.path / self.folder,
            self.record or self.result,
            self.submission,
            self.verification,
            self.documents,
            partial(rows, self.folder),
            partial(hits, self.folder),
        )

    def add(self, findings: Iterable[Finding], document: str = "") -> None:
        """Add the findings of a check of one of its documents, or of the whole."""
        file = f"{self.folder}/{document}" if document else self.folder
        self.findings += [replace(finding, file=file) for finding in findings]

    def attempt(
        self, read: Callable[[], _T], field: str, expected: str, document: str = ""
    ) -> _T | None:
        """What a reader gives; None where it finds that something is wrong, which is added.

        Args:
            read: The reader.
            field: Property of the file that it reads.
            expected: What was expected of it.
            document: The file.
        """
        try:
            return read()
        except DataError as error:
            self.add([Finding(field, str(error), expected)], document)
            return None

    def read(self, document: str, model: type[_M]) -> _M | None:
        """The content of one of its documents; None where it is not there, or is refused.

        Args:
            document: Its name.
            model: Type of its content.
        """
        if document not in self.documents:
            return None
        content, findings = _content(self.documents[document], model)
        self.add(findings, document)
        return content

    def hashes(self) -> dict[str, str]:
        """Hash of each document, and of the rows."""
        found = {name: document_hash(value) for name, value in self.documents.items()}
        return found if self.table is None else {**found, FACTS: rows_hash(self.table)}


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
    whole, path = CheckedEntry(shown_name(item.name)), Path(item.path)
    if not item.is_dir(follow_symlinks=False):
        wrong = f"it is {'a symbolic link' if item.is_symlink() else 'a file'}"
        expected = f"nothing but the folders of {'methods' if in_board else 'entries or runs'}"
        whole.add([Finding("kind", wrong, expected)])
        yield whole
    elif not NAME.fullmatch(item.name):
        expected = "letters, digits and . _ + -, at most 120"
        whole.add([Finding("name", "it is not fit for a folder", expected)])
        yield whole
    elif in_board or (path / ENTRIES).exists():
        yield from _of_method(path)
    elif item.name in BOARDS and not (path / RECORD).exists():
        for below in _items(path):
            yield from _below(below, strict, in_board=True)
    else:
        yield _run(path, item.name, strict)


def _of_method(path: Path) -> list[CheckedEntry]:
    """The entries of a method folder, before them one with the findings on its files if any."""
    whole = CheckedEntry(shown_name(path.name))
    for item in _items(path):
        if item.name not in (ENTRIES, FACTS):
            expected = f"{ENTRIES} and {FACTS} alone"
            finding = Finding("file", "it is none of a method's files", expected)
            whole.add([finding], shown_name(item.name))

    def listed() -> list[CheckedEntry]:
        found = enumerate(lines(path / ENTRIES))
        return [_listed(f"{whole.folder}:{number + 1}", line) for number, line in found]

    def rows_of_all() -> pa.Table:
        return SANDBOX.read(read_regular(path / FACTS, limits.FACTS_OF_METHOD), ROWS)

    expected = "the file as kgbench submit writes it"
    entries = whole.attempt(listed, "list", expected, ENTRIES) or []
    rows = whole.attempt(rows_of_all, "Parquet", expected, FACTS) or ROWS.empty_table()
    home = MethodFolder(path, {entry.folder: entry.documents for entry in entries})
    left = rows.num_rows
    for entry in entries:
        entry.home, entry.table = home, rows_of(rows, entry.folder)
        left -= entry.table.num_rows
        if not entry.table.num_rows:
            entry.table = None
            entry.add([Finding("rows", "there are none that read", "its per-fact rows")], FACTS)
    if left > 0:
        wrong = f"{left} of its rows are of no entry that {ENTRIES} lists"
        whole.add([Finding(ENTRY, wrong, "rows of entries alone")], FACTS)
    return entries if whole.accepted else [whole, *entries]


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
    values = entry.attempt(partial(read_json, line), "JSON", STRICT_JSON)
    if values is None:
        return entry
    name, documents = named_documents({ENTRY: None, **values})
    if not isinstance(name, str) or not NAME.fullmatch(name):
        expected = "letters, digits and . _ + -, at most 120"
        entry.add([Finding(ENTRY, f"it is {shown(name)}", expected)])
        return entry
    entry.folder, entry.documents = name, documents
    strange = sorted(documents.keys() - {RECORD, SUBMISSION, VERIFICATION})
    if strange or entry_line(name, documents) != line.decode():
        wrong = f"it holds {shown(strange[0])}" if strange else "it is not as kgbench writes it"
        entry.add([Finding("content", wrong, "a record, its submission and verification alone")])
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
    run = CheckedEntry(shown_name(name))
    contents: dict[str, bytes | None] = {}
    for item in _items(path):
        if item.name in RUN:
            read = partial(read_regular, Path(item.path), limits.FILE[item.name])
            contents[item.name] = run.attempt(read, "file", "a regular file of its own", item.name)
        elif strict or not OWN.fullmatch(item.name):
            refuses = strict or not PICTURE.fullmatch(item.name)
            wrong = "it is none of an entry's files"
            if not refuses:
                wrong = "a picture, which is not submitted"
            expected = f"{', '.join(RUN)} and nothing else"
            run.add([Finding("file", wrong, expected, refuses)], shown_name(item.name))
    for file in RUN:
        if file not in contents:
            expected = f"{' and '.join(RUN)} in each folder"
            run.add([Finding("file", "it is missing", expected)], file)
    if (record := contents.get(RECORD)) is not None:
        value = run.attempt(partial(read_json, record), "JSON", STRICT_JSON, RECORD)
        if value is not None:  # figures are made of the rows, whatever it holds
            stated = {key: part for key, part in value.items() if key not in MADE}
            run.documents = {RECORD: stated}
    if (facts := contents.get(FACTS)) is not None:
        read_rows = partial(SANDBOX.read, facts, STORED)
        expected = "a facts.parquet as kgbench eval writes it"
        run.table = run.attempt(read_rows, "Parquet", expected, FACTS)
    return run


def shown_name(name: str) -> str:
    """A name as findings give it: as it is where it is harmless."""
    return name if re.fullmatch(r"[\w.+-]{1,120}", name, re.ASCII) else shown(name)


# ---------------------------------------------------------------------------------- JSON and texts


STRICT_JSON = "strict JSON: UTF-8, each key once, finite numbers"

_DEEPEST = 16
_CONTAINERS = (dict, list)
_LONGEST_NUMBER = 40
"""Characters."""
_LARGEST = 2**53
"""From here on not every whole number has a place in a float."""

_MARKUP = re.compile(r"<[A-Za-z/!?]|&#|\b(javascript|vbscript|data)\s*:", re.IGNORECASE)
_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode categories of invisible characters: control, format and direction marks, lone surrogates,
private and unassigned ones, line ends."""

_MOST = 5
"""Findings of one kind that are listed of one file."""


def read_json(data: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        DataError: It is no UTF-8 or no JSON object, repeats a key, holds NaN, an infinity or a
            number out of range, or nests too deep.
    """
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_whole,
            parse_float=_number,
        )
        depth = _depth(value)
    except RecursionError:
        raise DataError("it nests too deep") from None
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"byte {error.start} is no UTF-8") from None
    except ValueError as error:
        raise DataError(f"it is no JSON ({str(error)[:100]})") from None
    if not isinstance(value, dict):
        raise DataError("it is no JSON object")
    if depth > _DEEPEST:
        raise DataError(f"it nests deeper than {_DEEPEST} levels")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for key, value in pairs:
        if key in keys:
            raise DataError(f"the key {shown(key)} stands twice in one object")
        keys[key] = value
    return keys


def _constant(name: str) -> NoReturn:
    raise DataError(f"{name} is no number that JSON has")


def _number(text: str) -> float:
    if len(text) <= _LONGEST_NUMBER and isfinite(number := float(text)):
        return number
    raise DataError(f"the number {shown(text)} is out of range")


def _whole(text: str) -> int:
    if abs(_number(text)) <= _LARGEST:
        return int(text)
    raise DataError(f"the number {shown(text)} is out of range")


def _depth(value: Any) -> int:
    if type(value) not in _CONTAINERS:
        return 0
    inner = value.values() if type(value) is dict else value
    return 1 + max((_depth(each) for each in inner if type(each) in _CONTAINERS), default=0)


def _key_name(key: str) -> str:
    """A key as places show it."""
    return key if re.fullmatch(r"[\w +()^%.:@;=-]{1,80}", key) else shown(key)


def bad_text(text: str) -> str | None:
    """Why a text cannot be shown on a page, in a table or on a terminal; None where it can."""
    if len(text) > limits.TEXT:
        return f"a text of {len(text)} characters"
    if not text.isprintable() and any(
        unicodedata.category(character) in _HIDDEN for character in text
    ):
        return "characters that are not seen, such as control or direction marks"
    return "what a browser could take for markup" if _MARKUP.search(text) else None


def _content(raw: Any, model: type[_M]) -> tuple[_M | None, list[Finding]]:
    """The content of a document, None where it is refused, and the findings on it."""
    if wrong := {text for text in texts_in(raw) if bad_text(text) or private_kind(text)}:
        places = texts_of(raw, named=_key_name)
        unfit = (_text_finding(where, text) for where, text in places if text in wrong)
        return None, list(islice(unfit, _MOST))
    try:
        made = model.model_validate(raw)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:_MOST]
        return None, [_schema_finding(dict(each)) for each in errors]
    written = made.model_dump(mode="json", exclude_none=True)
    if canonical_json(raw) == canonical_json(written):  # naming places takes several times as long
        return made, []
    found = [
        Finding(where, f"it is {shown(own)}", f"{shown(expected)}, as kgbench writes it")
        for where, own, expected in islice(_unequal(raw, written), _MOST)
    ]
    if not found:
        found = [Finding("content", "it is not as kgbench writes it")]
    return made, found


def _text_finding(where: str, text: str) -> Finding:
    """What is wrong with a text."""
    if (reason := bad_text(text)) is not None:
        return Finding(where, f"it holds {reason}", "plain text")
    expected = "no absolute path and no credential in a result"
    return Finding(where, f"it {private_kind(text)}", expected)


def _unequal(own: Any, made: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Places where two JSON values differ, and both values."""
    if isinstance(own, Mapping) and isinstance(made, Mapping):
        for key in dict.fromkeys([*own, *made]):
            name = key if str(key).isidentifier() else shown(key)
            yield from _unequal(own.get(key), made.get(key), f"{where}.{name}".lstrip("."))
    elif isinstance(own, list | tuple) and isinstance(made, list | tuple):
        if len(own) != len(made):
            yield where, f"{len(own)} of them", f"{len(made)} of them"
        for index, (one, other) in enumerate(zip(own, made, strict=False)):
            yield from _unequal(one, other, f"{where}[{index}]")
    elif own != made or isinstance(own, bool) != isinstance(made, bool):
        yield where, own, made


def _schema_finding(error: Mapping[str, Any]) -> Finding:
    parts = []
    for part in map(str, error["loc"]):
        parts.append(part if re.fullmatch(r"[\w.+^()% -]{1,60}", part) else shown(part))
    # The library's message can repeat what was submitted.
    wrong = shown(error["msg"].removeprefix("Value error, "))[1:-1]
    if error["type"] != "missing" and not isinstance(error["input"], dict | list):
        wrong += f", and it is {shown(error['input'])}"
    expected = "what the published JSON Schema says (kgbench validate --schema)"
    # The one law of a whole object is that the id of a record is the hash of its identity.
    return Finding(".".join(parts) or "id", wrong, expected)
