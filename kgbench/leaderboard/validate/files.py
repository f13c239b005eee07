"""The files of entries, in folders or packs: read without following a link, as strict JSON."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
from pydantic import ValidationError

from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.leaderboard import limits
from kgbench.leaderboard.entries import BOARDS, Entry, Submission, Verification
from kgbench.leaderboard.limits import FILES, RECORD
from kgbench.leaderboard.packs import NAME, SUFFIX, inside_pack, read_pack, read_regular
from kgbench.records import SEAL, Record, Strict
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
    """Folder and name of the file, or the folder; set by `in_file`."""

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


def in_file(file: str, findings: Iterable[Finding]) -> list[Finding]:
    """The findings of a check of one file, with its name."""
    return [replace(finding, file=file) for finding in findings]


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """Those for which a result is refused."""
    return [finding for finding in findings if finding.refuses]


def shown(value: object) -> str:
    """A submitter's value as it can be printed anywhere: escaped, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


# ------------------------------------------------------------------------------------------- files


_M = TypeVar("_M", bound=Strict)


NEEDED = FILES[:2]
"""Files without which there is no entry."""

OWN = re.compile(rf"(chart|curve|map)(-[\w.-]+)?\.(png|svg)|{re.escape(SEAL)}")
"""Files that kgbench writes next to a run's record and an entry lacks: pictures and the seal."""

PICTURE = re.compile(r"[\w.-]+\.(png|svg)")
"""Other files that a run's own folder may hold."""

RESULTS = "results"
"""The folder of a leaderboard that holds the entries."""


@dataclass
class CheckedEntry:
    """The files of one entry, what they hold as far as they read, and the findings on them."""

    folder: str
    """Its name."""
    files: dict[str, bytes] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    pack: Path | None = None
    """The pack that it is in."""
    path: Path | None = None
    """The folder that it is, where it is one."""
    record: Record | None = None
    table: pa.Table | None = None
    """Its per-fact rows."""
    submission: Submission | None = None
    verification: Verification | None = None

    @property
    def accepted(self) -> bool:
        """Whether nothing in it is refused."""
        return not refusals(self.findings)

    @property
    def entry(self) -> Entry | None:
        """What a board shows of it; None where the record does not read."""
        if self.record is None:
            return None
        place = self.path or (self.pack or Path()) / self.folder
        packed = self.files if self.path is None else None
        return Entry(place, self.record, self.submission, self.verification, packed)

    def at(self, file: str) -> str:
        """Name of one of its files in findings."""
        return f"{self.folder}/{file}"

    def add(self, findings: Iterable[Finding], file: str = "") -> None:
        """Add the findings of a check of one of its files, or of the folder."""
        self.findings += in_file(self.at(file) if file else self.folder, findings)

    def read(self, file: str, model: type[_M]) -> _M | None:
        """The content of one of its JSON files; None where it is not there, or is refused.

        Args:
            file: Its name.
            model: Type of its content.
        """
        if file not in self.files:
            return None
        content, findings = _content(self.files[file], model)
        self.add(findings, file)
        return content

    def hashes(self) -> dict[str, bytes]:
        """SHA-256 of each file."""
        return {name: sha256(data).digest() for name, data in self.files.items()}

    def close(self) -> None:
        """Check the size of each file and of all, and that no needed file is missing."""
        for name, data in list(self.files.items()):
            if len(data) > limits.FILE[name]:
                del self.files[name]
                expected = f"at most {limits.FILE[name]} bytes"
                self.add([Finding("size", "it is too large", expected)], name)
        checked = {finding.file for finding in self.findings}
        for name in NEEDED:
            if name not in self.files and self.at(name) not in checked:
                expected = f"{' and '.join(NEEDED)} in each folder"
                self.add([Finding("file", "it is missing", expected)], name)
        if (size := sum(map(len, self.files.values()))) > limits.ENTRY:
            wrong = f"its files have {size} bytes"
            self.add([Finding("size", wrong, f"at most {limits.ENTRY} in all")])


def folders_below(path: Path, strict: bool) -> Iterator[CheckedEntry]:
    """The entry that a path is, or those in it, by name.

    Args:
        path: A folder with a record, its `record.json`, a pack, alone or with the name of an entry
            after it, a folder of such folders and packs, or a leaderboard's.
        strict: Whether files other than the known ones are refused, also a run's own pictures.

    Raises:
        InputError: There is no such path, or nothing in it is an entry.
    """
    if (place := inside_pack(path)) is not None:
        yield from _named(*place)
        return
    if path.name == RECORD and not path.is_dir():
        path = path.parent
    if (path / RESULTS).is_dir() and not (path / RECORD).exists():
        path = path / RESULTS
    if not path.is_dir():
        raise InputError(
            f"{str(path)!r}: no folder, {RECORD} or pack is there; give a run's folder, "
            f"a folder of such, or a {SUFFIX}"
        )
    try:
        inside = _items(path)
        if any(item.name in FILES for item in inside):
            yield _folder(path, path.resolve().name, strict)
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
    """The entries of a folder's item: itself, those of a pack, or those of a board's packs.

    Args:
        item: An item of a folder of entries, or of a board's folder, which holds packs alone.
        strict: As of `folders_below`.
        in_board: Whether it is in a board's folder.
    """
    folder, path = CheckedEntry(folder_name(item.name)), Path(item.path)
    is_folder = item.is_dir(follow_symlinks=False)
    if item.name.endswith(SUFFIX) and item.is_file(follow_symlinks=False):
        yield from _packed(path)
        return
    if in_board or not is_folder:
        what = "no pack" if in_board else "a file"
        wrong = f"it is {'a symbolic link' if item.is_symlink() else what}"
        expected = f"nothing but entries' own folders and packs, METHOD{SUFFIX}"
        folder.add([Finding("kind", wrong, expected)])
    elif not NAME.fullmatch(item.name):
        expected = "letters, digits and . _ + -, at most 120"
        folder.add([Finding("name", "it is not fit for a folder", expected)])
    elif item.name in BOARDS and not (path / RECORD).exists():
        for below in _items(path):
            yield from _below(below, strict, in_board=True)
        return
    else:
        folder = _folder(path, item.name, strict)
    yield folder


def _packed(path: Path) -> list[CheckedEntry]:
    """The entries of a pack; where it does not read, one folder that holds the finding."""
    try:
        entries = read_pack(path)
    except DataError as error:
        wrong = str(error).removeprefix(f"{path}: ")
        expected = "a pack as kgbench submit or kgbench leaderboard pack writes it"
        whole = CheckedEntry(folder_name(path.name))
        whole.add([Finding("pack", wrong, expected)])
        return [whole]
    checked = [CheckedEntry(name, files, pack=path) for name, files in entries.items()]
    for entry in checked:
        entry.close()
    return checked


def _named(pack: Path, name: str) -> list[CheckedEntry]:
    """The entries of a pack, or the one of a name.

    Raises:
        UnknownNameError: It holds none of this name.
    """
    folders = _packed(pack)
    if not name or any(folder.pack is None for folder in folders):
        return folders
    if not (named := [each for each in folders if each.folder == name]):
        names = [each.folder for each in folders]
        raise UnknownNameError("entry", name, names, f"looked in {str(pack)!r}", most=5)
    return named


def _folder(path: Path, name: str, strict: bool) -> CheckedEntry:
    folder = CheckedEntry(folder_name(name), path=path)
    for item in _items(path):
        if item.name in FILES:
            try:
                folder.files[item.name] = read_regular(Path(item.path), limits.FILE[item.name])
            except DataError as error:
                expected = "a regular file of its own"
                folder.add([Finding("file", str(error), expected)], item.name)
        elif strict or not OWN.fullmatch(item.name):
            refuses = strict or not PICTURE.fullmatch(item.name)
            wrong = "it is none of an entry's files"
            if not refuses:
                wrong = "a picture, which is not submitted"
            expected = f"{', '.join(FILES)} and nothing else"
            folder.add([Finding("file", wrong, expected, refuses)], folder_name(item.name))
    folder.close()
    return folder


def folder_name(name: str) -> str:
    """A name as findings give it: as it is where it is harmless."""
    return name if re.fullmatch(r"[\w.+-]{1,120}", name, re.ASCII) else shown(name)


# ---------------------------------------------------------------------------------- JSON and texts


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
    if len(text) <= _LONGEST_NUMBER and abs(float(text)) <= _LARGEST:
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


def _content(data: bytes, model: type[_M]) -> tuple[_M | None, list[Finding]]:
    """The content of a JSON file, None where it is refused, and the findings on it."""
    try:
        raw = read_json(data)
    except DataError as error:
        expected = "strict JSON: UTF-8, each key once, finite numbers"
        return None, [Finding("JSON", str(error), expected)]
    if wrong := {text for text in texts_in(raw) if bad_text(text) or private_kind(text)}:
        places = texts_of(raw, named=_key_name)
        found = (_text_finding(where, text) for where, text in places if text in wrong)
        return None, list(islice(found, _MOST))
    try:
        made = model.model_validate(raw)
    except ValidationError as error:
        errors = error.errors(include_url=False)[:_MOST]
        return None, [_schema_finding(dict(each)) for each in errors]
    return made, list(_coerced(raw, made.model_dump(mode="json"), ""))


def _text_finding(where: str, text: str) -> Finding:
    """What is wrong with a text."""
    if (reason := bad_text(text)) is not None:
        return Finding(where, f"it holds {reason}", "plain text")
    expected = "no absolute path and no credential in a result"
    return Finding(where, f"it {private_kind(text)}", expected)


def _coerced(raw: Any, made: Any, where: str) -> Iterator[Finding]:
    """Values of another JSON type than their field, which the model read all the same."""
    if isinstance(raw, dict) and isinstance(made, dict):
        for key in raw.keys() & made.keys():
            own, other = raw[key], made[key]
            if type(own) is not type(other) or type(own) in _CONTAINERS:
                yield from _coerced(own, other, f"{where}.{key}".lstrip("."))
    elif isinstance(raw, list) and isinstance(made, list):
        for index, (own, other) in enumerate(zip(raw, made, strict=False)):
            if type(own) is not type(other) or type(own) in _CONTAINERS:
                yield from _coerced(own, other, f"{where}[{index}]")
    elif (kind := _kind(raw)) != (expected := _kind(made)) and "object" not in (kind, expected):
        yield Finding(where, f"{shown(raw)} is a {kind}", f"a {expected}")


def _kind(value: object) -> str:
    """JSON type of a value."""
    return _KINDS.get(type(value), "object")


_KINDS: Mapping[type, str] = {
    bool: "truth value",
    int: "number",
    float: "number",
    str: "text",
    type(None): "nothing",
}


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
