"""The files of entries, in folders or packs, read without following a link; and findings."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    "NEEDED",
    "PICTURE",
    "EntryFiles",
    "Finding",
    "folder_name",
    "folders_below",
    "foreign_file",
    "refusals",
    "shown",
    "too_large",
]

# ---------------------------------------------------------------------------------------- findings


_LONGEST = 80
"""Characters of a submitter's own text that a finding repeats."""


@dataclass(frozen=True)
class Finding:
    """One thing that a check found."""

    file: str
    """Folder and name of the file, or the folder."""
    field: str
    """Field of a JSON file, column of the per-fact rows, or what about the file."""
    wrong: str
    expected: str = ""
    refuses: bool = True
    """Whether the result is refused for it; otherwise it is a remark."""

    def __str__(self) -> str:
        expected = f"; expected {self.expected}" if self.expected else ""
        return (
            f"{'' if self.refuses else 'note: '}{self.file}: {self.field}: {self.wrong}{expected}"
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        found = {
            "file": self.file,
            "field": self.field,
            "wrong": self.wrong,
            "expected": self.expected or None,
        }
        return {**found, "kind": "refusal" if self.refuses else "note"}


def refusals(findings: list[Finding]) -> list[Finding]:
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
        """How a finding names one of its files."""
        return f"{self.name}/{file}"

    def hashes(self) -> dict[str, bytes]:
        """SHA-256 of each file."""
        return {name: sha256(data).digest() for name, data in self.files.items()}

    def close(self) -> None:
        """See whether all is there that is needed, and not too much in all."""
        tried = {finding.file for finding in self.findings}
        for name in NEEDED:
            if name not in self.files and self.at(name) not in tried:
                self.findings.append(
                    Finding(
                        self.at(name),
                        "file",
                        "it is missing",
                        f"{' and '.join(NEEDED)} in each folder",
                    )
                )
        if (size := sum(map(len, self.files.values()))) > limits.ENTRY:
            self.findings.append(
                Finding(
                    self.name,
                    "size",
                    f"its files have {size} bytes",
                    f"at most {limits.ENTRY} in all",
                )
            )


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
        inside = sorted(os.scandir(path), key=lambda item: item.name)
        if any(item.name in FILES for item in inside):
            yield _folder(path, path.resolve().name, strict)
            return
        found = [item for item in inside if not _passed_over(item, strict)]
        if not found:
            raise InputError(
                f"{str(path)!r} holds no entry: expected {RECORD} in it, or in folders in it"
            )
        for item in found:
            yield from _below(item, strict)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _passed_over(item: os.DirEntry[str], strict: bool) -> bool:
    """Whether an item is a hidden file of a store of runs, and no entry."""
    return item.name == ".gitkeep" or (item.name.startswith(".") and not strict)


def _below(item: os.DirEntry[str], strict: bool) -> Iterator[EntryFiles]:
    """The entries of a folder's item: itself, those of a pack, or those of a board's packs."""
    folder, path = EntryFiles(folder_name(item.name)), Path(item.path)
    if item.name.endswith(SUFFIX) and item.is_file(follow_symlinks=False):
        yield from _packed(path)
        return
    if item.is_symlink() or not item.is_dir(follow_symlinks=False):
        what = "it is a symbolic link" if item.is_symlink() else "it is a file"
        expected = "nothing beside the entries' own folders and packs"
        folder.findings.append(Finding(folder.name, "kind", what, expected))
    elif not NAME.fullmatch(item.name):
        folder.findings.append(
            Finding(
                folder.name,
                "name",
                "it is not fit for a folder",
                "letters, digits and . _ + -, at most 120",
            )
        )
    elif item.name in BOARDS and not (path / RECORD).exists():
        for below in sorted(os.scandir(path), key=lambda below: below.name):
            yield from _of_board(below)
        return
    else:
        folder = _folder(path, item.name, strict)
    yield folder


def _of_board(item: os.DirEntry[str]) -> Iterator[EntryFiles]:
    """The entries of an item of a board's folder, which holds packs alone."""
    if item.name.endswith(SUFFIX) and item.is_file(follow_symlinks=False):
        yield from _packed(Path(item.path))
        return
    folder = EntryFiles(folder_name(item.name))
    what = "it is a symbolic link" if item.is_symlink() else "it is no pack"
    folder.findings.append(Finding(folder.name, "kind", what, f"packs, METHOD{SUFFIX}"))
    yield folder


def _packed(path: Path) -> list[EntryFiles]:
    """The entries of a pack; where it does not read, one folder that holds the finding."""
    whole = EntryFiles(folder_name(path.name))
    try:
        content = _content(path, limits.PACK)
        if len(content) > limits.PACK:
            raise DataError(f"it is too large: at most {limits.PACK} bytes")
        entries = unpack(content)
    except (DataError, OSError) as error:
        wrong = error.strerror if isinstance(error, OSError) else str(error)
        expected = "a pack as kgbench submit or kgbench leaderboard pack writes it"
        whole.findings.append(Finding(whole.name, "pack", str(wrong), expected))
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
    found = _packed(pack)
    if not name or any(folder.pack is None for folder in found):
        return found
    if not (named := [folder for folder in found if folder.name == name]):
        names = [folder.name for folder in found]
        raise UnknownNameError("entry", name, names, f"looked in {str(pack)!r}", most=5)
    return named


def _folder(path: Path, name: str, strict: bool) -> EntryFiles:
    folder = EntryFiles(folder_name(name))
    for item in sorted(os.scandir(path), key=lambda item: item.name):
        if item.name in FILES:
            _take_up(Path(item.path), folder)
        else:
            folder.findings += foreign_file(folder, item.name, strict)
    folder.close()
    return folder


def _take_up(path: Path, folder: EntryFiles) -> None:
    """Read a file into its folder, or add the reason to its findings."""
    try:
        folder.files[path.name] = _content(path, limits.FILE[path.name])
    except DataError as error:
        folder.findings.append(
            Finding(folder.at(path.name), "file", str(error), "a regular file of its own")
        )
    except OSError as error:
        folder.findings.append(
            Finding(folder.at(path.name), "file", f"it cannot be read ({error.strerror})")
        )
    else:
        if len(folder.files[path.name]) > limits.FILE[path.name]:
            del folder.files[path.name]
            folder.findings.append(too_large(folder, path.name))


def _content(path: Path, most: int) -> bytes:
    """Bytes of a regular file, one more than allowed where there are more.

    Args:
        path: The file.
        most: How many are allowed.

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
    handle = os.open(
        path,
        os.O_RDONLY
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_NONBLOCK", 0)
        | getattr(os, "O_BINARY", 0),
    )
    with os.fdopen(handle, "rb") as file:
        return file.read(most + 1)


def too_large(folder: EntryFiles, name: str) -> Finding:
    """That a file is larger than allowed."""
    return Finding(folder.at(name), "size", "it is too large", f"at most {limits.FILE[name]} bytes")


def foreign_file(folder: EntryFiles, name: str, strict: bool) -> list[Finding]:
    """Findings on a file that is none of an entry's; by default a run's own files give none."""
    if not strict and OWN.fullmatch(name):
        return []
    refuses = strict or not PICTURE.fullmatch(name)
    wrong = "it is none of an entry's files" if refuses else "a picture, which is not submitted"
    where = f"{folder.name}/{folder_name(name)}"
    return [Finding(where, "file", wrong, f"{', '.join(FILES)} and nothing else", refuses)]


def folder_name(name: str) -> str:
    """A name as findings give it: as it is where it is harmless."""
    return name if re.fullmatch(r"[\w.+-]{1,120}", name, re.ASCII) else shown(name)
