"""The files of entries, in folders or packs, read without following a link; and findings."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.leaderboard import limits
from kgbench.leaderboard.entries import BOARDS
from kgbench.leaderboard.limits import FILES, RECORD
from kgbench.leaderboard.packs import NAME, SUFFIX, inside_pack, unpack
from kgbench.records import SEAL

__all__ = [
    "EntryFiles",
    "Finding",
    "folders_below",
    "in_file",
    "refusals",
    "shown",
]

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


NEEDED = FILES[:2]
"""Files without which there is no entry."""

OWN = re.compile(rf"(chart|curve|map)(-[\w.-]+)?\.(png|svg)|{re.escape(SEAL)}")
"""Files that kgbench writes next to a run's record and an entry lacks: pictures and the seal."""

PICTURE = re.compile(r"[\w.-]+\.(png|svg)")
"""Other files that a run's own folder may hold."""

RESULTS = "results"
"""The folder of a leaderboard that holds the entries."""


@dataclass
class EntryFiles:
    """The files of one entry, and the findings of reading them."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    pack: Path | None = None
    """The pack that it is in."""

    def at(self, file: str) -> str:
        """Name of one of its files in findings."""
        return f"{self.name}/{file}"

    def add(self, findings: Iterable[Finding], file: str = "") -> None:
        """Add the findings of a check of one of its files, or of the folder."""
        self.findings += in_file(self.at(file) if file else self.name, findings)

    def hashes(self) -> dict[str, bytes]:
        """SHA-256 of each file."""
        return {name: sha256(data).digest() for name, data in self.files.items()}

    def close(self) -> None:
        """Check that no needed file is missing, and the size of all files."""
        checked = {finding.file for finding in self.findings}
        for name in NEEDED:
            if name not in self.files and self.at(name) not in checked:
                expected = f"{' and '.join(NEEDED)} in each folder"
                self.add([Finding("file", "it is missing", expected)], name)
        if (size := sum(map(len, self.files.values()))) > limits.ENTRY:
            wrong = f"its files have {size} bytes"
            self.add([Finding("size", wrong, f"at most {limits.ENTRY} in all")])


def folders_below(path: Path, strict: bool) -> Iterator[EntryFiles]:
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
        # Hidden files belong to a store of runs.
        items = [
            item
            for item in inside
            if item.name != ".gitkeep" and (strict or not item.name.startswith("."))
        ]
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


def _below(item: os.DirEntry[str], strict: bool) -> Iterator[EntryFiles]:
    """The entries of a folder's item: itself, those of a pack, or those of a board's packs."""
    folder, path = EntryFiles(folder_name(item.name)), Path(item.path)
    if _is_pack(item):
        yield from _packed(path)
        return
    if item.is_symlink() or not item.is_dir(follow_symlinks=False):
        what = "it is a symbolic link" if item.is_symlink() else "it is a file"
        folder.add([Finding("kind", what, "nothing beside the entries' own folders and packs")])
    elif not NAME.fullmatch(item.name):
        expected = "letters, digits and . _ + -, at most 120"
        folder.add([Finding("name", "it is not fit for a folder", expected)])
    elif item.name in BOARDS and not (path / RECORD).exists():
        for below in _items(path):
            yield from _of_board(below)
        return
    else:
        folder = _folder(path, item.name, strict)
    yield folder


def _is_pack(item: os.DirEntry[str]) -> bool:
    return item.name.endswith(SUFFIX) and item.is_file(follow_symlinks=False)


def _of_board(item: os.DirEntry[str]) -> Iterator[EntryFiles]:
    """The entries of an item of a board's folder, which holds packs alone."""
    if _is_pack(item):
        yield from _packed(Path(item.path))
        return
    folder = EntryFiles(folder_name(item.name))
    what = "it is a symbolic link" if item.is_symlink() else "it is no pack"
    folder.add([Finding("kind", what, f"packs, METHOD{SUFFIX}")])
    yield folder


def _packed(path: Path) -> list[EntryFiles]:
    """The entries of a pack; where it does not read, one folder that holds the finding."""
    try:
        content = _content(path, limits.PACK)
        if len(content) > limits.PACK:
            raise DataError(f"it is too large: at most {limits.PACK} bytes")
        entries = unpack(content)
    except (DataError, OSError) as error:
        wrong = error.strerror if isinstance(error, OSError) else str(error)
        expected = "a pack as kgbench submit or kgbench leaderboard pack writes it"
        whole = EntryFiles(folder_name(path.name))
        whole.add([Finding("pack", str(wrong), expected)])
        return [whole]
    folders = [EntryFiles(name, files, pack=path) for name, files in entries.items()]
    for folder in folders:
        folder.close()
    return folders


def _named(pack: Path, name: str) -> list[EntryFiles]:
    """The entries of a pack, or the one of a name.

    Raises:
        UnknownNameError: It holds none of this name.
    """
    folders = _packed(pack)
    if not name or any(folder.pack is None for folder in folders):
        return folders
    if not (named := [folder for folder in folders if folder.name == name]):
        names = [folder.name for folder in folders]
        raise UnknownNameError("entry", name, names, f"looked in {str(pack)!r}", most=5)
    return named


def _folder(path: Path, name: str, strict: bool) -> EntryFiles:
    folder = EntryFiles(folder_name(name))
    for item in _items(path):
        if item.name in FILES:
            _take_up(Path(item.path), folder)
        elif strict or not OWN.fullmatch(item.name):
            refuses = strict or not PICTURE.fullmatch(item.name)
            wrong = "it is none of an entry's files"
            if not refuses:
                wrong = "a picture, which is not submitted"
            expected = f"{', '.join(FILES)} and nothing else"
            folder.add([Finding("file", wrong, expected, refuses)], folder_name(item.name))
    folder.close()
    return folder


def _take_up(path: Path, folder: EntryFiles) -> None:
    """Read a file into its folder, or add the reason to its findings."""
    most = limits.FILE[path.name]
    try:
        content = _content(path, most)
    except DataError as error:
        finding = Finding("file", str(error), "a regular file of its own")
    except OSError as error:
        finding = Finding("file", f"it cannot be read ({error.strerror})")
    else:
        if len(content) <= most:
            folder.files[path.name] = content
            return
        finding = Finding("size", "it is too large", f"at most {most} bytes")
    folder.add([finding], path.name)


def _content(path: Path, most: int) -> bytes:
    """Bytes of a regular file, one more than allowed where there are more.

    Args:
        path: The file.
        most: Number of bytes that are allowed.

    Raises:
        DataError: It is a link, has another name elsewhere, or is no regular file.
    """
    before = os.lstat(path)
    if stat.S_ISLNK(before.st_mode):
        raise DataError("it is a symbolic link")
    if not stat.S_ISREG(before.st_mode):
        raise DataError("it is no regular file")
    if before.st_nlink > 1:
        raise DataError("it is a hard link: the same file has another name elsewhere")
    # Opened so that a link or a pipe put there meanwhile is not followed or waited for.
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        return file.read(most + 1)


def folder_name(name: str) -> str:
    """A name as findings give it: as it is where it is harmless."""
    return name if re.fullmatch(r"[\w.+-]{1,120}", name, re.ASCII) else shown(name)
