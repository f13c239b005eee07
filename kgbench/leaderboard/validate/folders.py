"""Entries as they lie on a disk, read without following a link."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from kgbench.errors import DataError, InputError
from kgbench.leaderboard.entries import FILES, RECORD
from kgbench.leaderboard.validate import limits
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.records import SEAL

__all__ = ["NEEDED", "PICTURE", "Folder", "folder_name", "folders_below", "foreign_file", "too_large"]

NEEDED = FILES[:2]
"""Files without which there is no entry."""

OWN = re.compile(rf"(chart|curve|map)(-[\w.-]+)?\.(png|svg)|{re.escape(SEAL)}")
"""What kgbench itself writes beside a run's record, and an entry does not hold: its pictures, and the seal."""

PICTURE = re.compile(r"[\w.-]+\.(png|svg)")
"""What may lie in a run's own folder beside that."""

RESULTS = "results"
"""The folder of a leaderboard that holds the entries."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}")


@dataclass
class Folder:
    """The files of one entry, and what was found in taking them up."""

    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

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
                self.findings.append(Finding(self.at(name), "file", "it is missing", f"{' and '.join(NEEDED)} in each folder"))
        if (size := sum(map(len, self.files.values()))) > limits.ENTRY:
            self.findings.append(Finding(self.name, "size", f"its files have {size} bytes", f"at most {limits.ENTRY} in all"))


def folders_below(path: Path, strict: bool) -> Iterator[Folder]:
    """The entry that a path is, or those in it, by name.

    Args:
        path: A folder with a record, its `record.json`, a folder of such folders, or a leaderboard's.
        strict: Whether files beside the known ones are refused, also a run's own pictures.

    Raises:
        InputError: There is no such path, or nothing in it is an entry.
    """
    if path.name == RECORD and not path.is_dir():
        path = path.parent
    if (path / RESULTS).is_dir() and not (path / RECORD).exists():
        path = path / RESULTS
    if not path.is_dir():
        raise InputError(
            f"{str(path)!r}: no folder, {RECORD} or archive is there; give a run's folder, a folder of such, a .zip or a .tar.gz"
        )
    try:
        inside = sorted(os.scandir(path), key=lambda item: item.name)
        if any(item.name in FILES for item in inside):
            yield _folder(path, path.resolve().name, strict)
            return
        found = [item for item in inside if not _passed_over(item, strict)]
        if not found:
            raise InputError(f"{str(path)!r} holds no entry: expected {RECORD} in it, or in folders in it")
        for item in found:
            yield _below(item, strict)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _passed_over(item: os.DirEntry[str], strict: bool) -> bool:
    """Whether it is no entry and none of what could become one: what a store of runs keeps for itself."""
    return item.name == ".gitkeep" or (item.name.startswith(".") and not strict)


def _below(item: os.DirEntry[str], strict: bool) -> Folder:
    folder = Folder(folder_name(item.name))
    if item.is_symlink() or not item.is_dir(follow_symlinks=False):
        what = "it is a symbolic link" if item.is_symlink() else "it is a file"
        folder.findings.append(Finding(folder.name, "kind", what, "nothing beside the entries' own folders"))
    elif not _NAME.fullmatch(item.name):
        folder.findings.append(Finding(folder.name, "name", "it is not fit for a folder", "letters, digits and . _ + -, at most 120"))
    else:
        return _folder(Path(item.path), item.name, strict)
    return folder


def _folder(path: Path, name: str, strict: bool) -> Folder:
    folder = Folder(folder_name(name))
    for item in sorted(os.scandir(path), key=lambda item: item.name):
        if item.name in FILES:
            _take_up(Path(item.path), folder)
        else:
            folder.findings += foreign_file(folder, item.name, strict)
    folder.close()
    return folder


def _take_up(path: Path, folder: Folder) -> None:
    """Read a file into its folder, or say why not."""
    try:
        folder.files[path.name] = _content(path)
    except DataError as error:
        folder.findings.append(Finding(folder.at(path.name), "file", str(error), "a regular file of its own"))
    except OSError as error:
        folder.findings.append(Finding(folder.at(path.name), "file", f"it cannot be read ({error.strerror})"))
    else:
        if len(folder.files[path.name]) > limits.FILE[path.name]:
            del folder.files[path.name]
            folder.findings.append(too_large(folder, path.name))


def _content(path: Path) -> bytes:
    """Bytes of a regular file, one more than allowed where there are more.

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
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        return file.read(limits.FILE[path.name] + 1)


def too_large(folder: Folder, name: str) -> Finding:
    """That a file is larger than allowed."""
    return Finding(folder.at(name), "size", "it is too large", f"at most {limits.FILE[name]} bytes")


def foreign_file(folder: Folder, name: str, strict: bool) -> list[Finding]:
    """That a file is none of an entry's; nothing of what kgbench wrote beside a run, unless `strict`."""
    if not strict and OWN.fullmatch(name):
        return []
    refuses = strict or not PICTURE.fullmatch(name)
    wrong = "it is none of an entry's files" if refuses else "a picture, which is not submitted"
    where = f"{folder.name}/{folder_name(name)}"
    return [Finding(where, "file", wrong, f"{', '.join(FILES)} and nothing else", refuses)]


def folder_name(name: str) -> str:
    """A name as findings give it: as it is where it is harmless."""
    return name if re.fullmatch(r"[\w.+-]{1,120}", name, re.ASCII) else shown(name)
