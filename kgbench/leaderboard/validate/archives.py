"""Entries in an archive, read in memory: nothing is ever unpacked."""

from __future__ import annotations

import gzip
import io
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kgbench.errors import DataError, InputError
from kgbench.leaderboard.entries import FILES
from kgbench.leaderboard.validate import limits
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.leaderboard.validate.folders import Folder, folder_name, foreign_file, too_large

__all__ = ["ARCHIVES", "folders_in"]

ARCHIVES = (".zip", ".tar.gz", ".tgz", ".tar")
"""How the names of archives end."""

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}")


@dataclass(frozen=True)
class _Member:
    """A file of an archive."""

    name: str
    kind: str
    """`file`, `folder`, or what else it is."""
    content: bytes
    """One byte more than allowed where there are more; of an unknown file nothing."""


def folders_in(path: Path, strict: bool) -> list[Folder]:
    """The entries of an archive, by name; where it does not read, one folder that says so.

    Args:
        path: A file whose name ends as an archive's does.
        strict: Whether files beside the known ones are refused, also pictures.

    Raises:
        InputError: The file cannot be opened.
    """
    try:
        data = _bounded(path)
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    whole = Folder(folder_name(path.name))
    if len(data) > limits.ARCHIVE:
        whole.findings.append(Finding(whole.name, "size", "it is too large", f"at most {limits.ARCHIVE} bytes"))
        return [whole]
    folders: dict[str, Folder] = {}
    try:
        for member in _zipped(data) if path.name.lower().endswith(".zip") else _tarred(data):
            _sort_in(member, folders, whole, strict)
    except DataError as error:
        whole.findings.append(Finding(whole.name, "archive", str(error)))
    except Exception as error:  # the archive libraries raise what they like on broken bytes
        whole.findings.append(Finding(whole.name, "archive", f"it does not read ({type(error).__name__})", "a whole .zip or .tar.gz"))
    if not folders and not whole.findings:
        whole.findings.append(Finding(whole.name, "archive", "it holds no entry", f"a folder with {FILES[0]}"))
    for folder in folders.values():
        folder.close()
    return ([whole] if whole.findings else []) + [folders[name] for name in sorted(folders)]


def _bounded(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(limits.ARCHIVE + 1)


def _sort_in(member: _Member, folders: dict[str, Folder], whole: Folder, strict: bool) -> None:
    """Put a file of an archive into its folder, or say why not."""
    place = member.name.removeprefix("./")
    where = f"{whole.name}: {place if _harmless(place) else shown(member.name)}"
    if member.kind == "folder" and (place in ("", ".") or _harmless(place)):
        return
    if not _harmless(place):
        whole.findings.append(Finding(where, "name", "such a name could lead elsewhere", "names of folders and files, with / between"))
        return
    parent, _, name = place.rpartition("/")
    owner = parent.rpartition("/")[2] or whole.name
    if member.kind != "file":
        whole.findings.append(Finding(where, "kind", f"it is a {member.kind}", "regular files"))
        return
    folder = folders.setdefault(parent.casefold(), Folder(owner))
    if (name in FILES and name in folder.files) or (name not in FILES and name.casefold() in FILES):
        folder.findings.append(Finding(folder.at(name), "name", "the archive holds it twice, or in another spelling", "each file once"))
    elif name not in FILES:
        folder.findings += foreign_file(folder, name, strict)
    elif len(member.content) > limits.FILE[name]:
        folder.findings.append(too_large(folder, name))
    else:
        folder.files[name] = member.content


def _harmless(name: str) -> bool:
    return len(name) < 400 and all(_PART.fullmatch(part) for part in name.split("/"))


def _zipped(data: bytes) -> Iterator[_Member]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        listed = archive.infolist()
        _check_count(len(listed))
        total = 0
        for info in listed:
            mode = info.external_attr >> 16
            if info.is_dir() and not stat.S_ISLNK(mode):
                yield _Member(info.orig_filename.removesuffix("/"), "folder", b"")
                continue
            kind = "file" if not stat.S_IFMT(mode) or stat.S_ISREG(mode) else "link" if stat.S_ISLNK(mode) else "device"
            if info.flag_bits & 1:
                raise DataError(f"{shown(info.filename)} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(f"{shown(info.filename)} is compressed in a way that is not read; deflate is")
            limit = _limit(info.orig_filename)
            with archive.open(info) as file:
                content = file.read(limit + 1) if kind == "file" and limit else b""
            total += len(content)
            _check_total(total)
            yield _Member(info.orig_filename, kind, content)


def _tarred(data: bytes) -> Iterator[_Member]:
    packed = data[:2] == b"\x1f\x8b"
    source: BinaryIO = io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=io.BytesIO(data)))) if packed else io.BytesIO(data)
    count = 0
    with tarfile.open(fileobj=source, mode="r|") as archive:
        for info in archive:
            count += 1
            _check_count(count)
            if info.isdir():
                yield _Member(info.name.removesuffix("/"), "folder", b"")
                continue
            regular = info.isreg() and not info.issparse()
            kind = "file" if regular else "link" if info.issym() or info.islnk() else "device"
            limit = _limit(info.name)
            file = archive.extractfile(info) if regular and limit else None
            yield _Member(info.name, kind, file.read(limit + 1) if file is not None else b"")


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than an archive may hold."""

    def __init__(self, source: gzip.GzipFile) -> None:
        self._source, self._total = source, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any writable buffer
        data = self._source.read(len(buffer))
        self._total += len(data)
        _check_total(self._total)
        buffer[: len(data)] = data
        return len(data)


def _limit(name: str) -> int:
    """How many bytes of a file are of use; none where it is no entry's."""
    return limits.FILE.get(name.rpartition("/")[2], 0)


def _check_count(count: int) -> None:
    if count > limits.FILES_IN_ARCHIVE:
        raise DataError(f"it holds more than {limits.FILES_IN_ARCHIVE} files")


def _check_total(total: int) -> None:
    if total > limits.UNPACKED:
        raise DataError(f"it holds more than {limits.UNPACKED} bytes, unpacked")
