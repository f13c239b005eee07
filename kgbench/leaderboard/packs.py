"""Packs: the entries of one method on one board in one file, a tar of their files, xz-compressed.

Records of one method repeat each other, so that a pack takes a third of the space of its entries as
folders. The files of an entry come out of it byte for byte, and no others are in it: a pack is read
only where packing its entries again gives the same tar, so that it holds no link, no name that
leads elsewhere, no file twice and nothing between its files. `tar xf PACK` unpacks it.
"""

from __future__ import annotations

import lzma
import os
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from kgbench.errors import DataError, InputError, OutputError
from kgbench.leaderboard import limits
from kgbench.leaderboard.limits import FILES, VERIFICATION
from kgbench.records import write_whole

SUFFIX = ".tar.xz"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,119}")
"""Names of entries."""

Files = Mapping[str, bytes]
"""Content by the name of the file."""

_LOCK = ".lock"
_BLOCK = 512


def pack(entries: Mapping[str, Files]) -> bytes:
    """A pack of entries; equal entries give equal bytes under one version of xz.

    Args:
        entries: By the entry's name, its files.
    """
    return lzma.compress(_tar(entries), preset=6)


def _tar(entries: Mapping[str, Files]) -> bytes:
    """All records, then all rows, and so on: similar content is adjacent and compresses well."""
    parts = []
    for file in FILES:
        for name in sorted(entries):
            if (content := entries[name].get(file)) is None:
                continue
            info = tarfile.TarInfo(f"{name}/{file}")
            info.size = len(content)
            head = info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
            parts += [head, content, bytes(-len(content) % _BLOCK)]
    return b"".join((*parts, bytes(2 * _BLOCK)))


def unpack(content: bytes) -> dict[str, dict[str, bytes]]:
    """The files of each entry of a pack, in memory.

    Raises:
        DataError: It is no pack as `pack` makes them, or unpacks to more than is allowed.
    """
    tar = _decompressed(content)
    entries: dict[str, dict[str, bytes]] = {}
    for count, (name, file, data) in enumerate(_members(tar)):
        if count == limits.FILES_IN_PACK:
            raise DataError(f"it holds more than {limits.FILES_IN_PACK} files")
        entries.setdefault(name, {})[file] = data
    if not entries:
        raise DataError("it holds no entry")
    if _tar(entries) != tar:
        raise DataError("it holds more than the files of its entries, each once and in order")
    return {name: entries[name] for name in sorted(entries)}


def _decompressed(content: bytes) -> bytes:
    reader = lzma.LZMADecompressor(lzma.FORMAT_XZ, limits.MEMORY)
    try:
        tar = reader.decompress(content, limits.UNPACKED + 1)
    except lzma.LZMAError as error:
        raise DataError(f"it does not unpack ({error})") from error
    if len(tar) > limits.UNPACKED:
        raise DataError(f"it holds more than {limits.UNPACKED} bytes, unpacked")
    if not reader.eof or reader.unused_data:
        raise DataError("it is cut short, or goes on after its end")
    return tar


def _members(tar: bytes) -> Iterator[tuple[str, str, bytes]]:
    """Entry, name and content of each file, up to the first empty block."""
    at = 0
    while (head := tar[at : at + _BLOCK]).strip(b"\0"):
        try:
            info = tarfile.TarInfo.frombuf(head, "ascii", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise DataError(f"the head of a file does not read ({type(error).__name__})") from error
        name, _, file = info.name.partition("/")
        if not NAME.fullmatch(name) or file not in FILES:
            raise DataError(f"it holds {ascii(info.name)[:80]}, which is no file of an entry")
        if not 0 <= info.size <= limits.FILE[file]:
            raise DataError(f"{name}/{file} is too large: at most {limits.FILE[file]} bytes")
        at += _BLOCK
        yield name, file, tar[at : at + info.size]
        at += info.size + -info.size % _BLOCK


def read_pack(path: Path) -> dict[str, dict[str, bytes]]:
    """The files of each entry of a pack, by name.

    Raises:
        DataError: It does not read.
    """
    try:
        content = read_regular(path, limits.PACK)
        if len(content) > limits.PACK:
            raise DataError(f"it is too large: it has more than {limits.PACK} bytes")
        return unpack(content)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def read_regular(path: Path, most: int) -> bytes:
    """Bytes of a regular file, one more than allowed where there are more.

    Args:
        path: The file.
        most: Number of bytes that are allowed.

    Raises:
        DataError: It is a link, has another name elsewhere, is no regular file, or cannot be read.
    """
    # Opened so that a link or a pipe put there meanwhile is not followed or waited for.
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        before = os.lstat(path)
        if stat.S_ISLNK(before.st_mode):
            raise DataError("it is a symbolic link")
        if not stat.S_ISREG(before.st_mode):
            raise DataError("it is no regular file")
        if before.st_nlink > 1:
            raise DataError("it is a hard link: the same file has another name elsewhere")
        with os.fdopen(os.open(path, flags), "rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise DataError(f"it cannot be read ({error.strerror})") from error


def packs_below(results: Path) -> list[Path]:
    """The packs of a leaderboard's results, each in the folder of its board."""
    return sorted(results.glob(f"*/*{SUFFIX}"))


def inside_pack(path: Path) -> tuple[Path, str] | None:
    """The pack that a path is or leads into, and the entry's name in it; None where it does not.

    Args:
        path: Such as `results/planted/snip.tar.xz`, or with the name of an entry after it.
    """
    for place in (path, *path.parents):
        if place.name.endswith(SUFFIX) and place.is_file():
            return place, next(iter(path.relative_to(place).parts), "")
    return None


def add(path: Path, entries: Mapping[str, Files]) -> None:
    """Add entries to a pack, or a verification to an entry, whole or not at all.

    Args:
        path: The pack, in the folder of its board in the results; it need not be there.
        entries: By name, files; of an entry that is there, only the verification may be another.

    Raises:
        DataError: The pack does not read.
        InputError: An entry is there with other content.
        OutputError: It cannot be written.
    """
    with _locked(path):
        there = read_pack(path) if path.exists() else {}
        for name, files in entries.items():
            before = there.setdefault(name, {})
            for file, content in files.items():
                if file != VERIFICATION and before.get(file, content) != content:
                    raise InputError(
                        f"{path / name} is there with another {file}: an entry is never edited"
                    )
            before.update(files)
        write_whole(path, pack(there))


def replace_pack(path: Path, entries: Mapping[str, Files]) -> None:
    """Make a pack hold these entries and no others, whole or not at all; without any it is deleted.

    Args:
        path: The pack, in the folder of its board in the results; it need not be there.
        entries: By name, files.

    Raises:
        OutputError: It cannot be written.
    """
    with _locked(path):
        if entries:
            write_whole(path, pack(entries))
        else:
            path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a pack meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.absolute().parents[2] / _LOCK):
            yield
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
