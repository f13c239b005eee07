"""Weights of shipped pairs that wheels leave out: they come with the release, in one file.

A clone has them all. `release.toml` holds the SHA-256 of each, and nothing else of the file is read.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen
from zipfile import BadZipFile, ZipFile

from filelock import FileLock

from kgbench.errors import ModelError, first_line
from kgbench.models.catalog import HOME, release_folder, zoo_path
from kgbench.resources import read_toml
from kgbench.version import __version__

RELEASE = "KGBENCH_RELEASE"
"""Environment variable: the release's file of weights, or its URL."""

FILE = f"kgbench-pairs-{__version__}.zip"
"""Name of that file."""

LARGEST = 32 << 20
"""Bytes of one of its members."""


@cache
def release_hashes() -> Mapping[str, str]:
    """SHA-256, in hexadecimal, of each file that wheels leave out, by its path in the zoo."""
    return read_toml(__package__, "release")


def complete_folder(source: str, folder: Path) -> Path:
    """The folder of a shipped checkpoint with its weights, fetched where this installation has none.

    Args:
        source: Its name.
        folder: Where it is, as of `zoo_path`.

    Raises:
        ModelError: The release's file is not given, does not read, or holds other weights.
    """
    inner = source.partition(":")[2]
    names = [name for name in release_hashes() if name.startswith(f"{inner}/")]
    if all((folder / Path(name).name).is_file() for name in names):
        return folder
    place = os.environ.get(RELEASE, "")
    if not place:
        raise ModelError(
            f"the weights of {inner} are not in this installation: download {FILE} of the release "
            f"of kgbench {__version__} and set {RELEASE} to it (a path or an https:// URL), or "
            "run kgbench from a clone (pip install -e .), which has them"
        )
    target = release_folder()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")), TemporaryDirectory(dir=target.parent) as work:
            if not all((target / name).is_file() for name in names):  # else another was first
                _unpack(_downloaded(place, Path(work, FILE)), place, Path(work, "zoo"))
                shutil.rmtree(target, ignore_errors=True)
                Path(work, "zoo").replace(target)
    except (OSError, HTTPException, BadZipFile, ValueError, RuntimeError, zlib.error) as error:
        raise ModelError(
            f"{RELEASE} {place!r} cannot be unpacked into {target} ({first_line(error)}): give "
            f"{FILE} of the release, and with {HOME} a folder that can be written"
        ) from error
    return zoo_path(source) or folder


def _downloaded(place: str, target: Path) -> Path:
    """The release's file on this machine."""
    if not place.startswith(("https://", "http://")):
        return Path(place).expanduser()
    with closing(urlopen(place, timeout=60)) as answer, target.open("wb") as out:
        shutil.copyfileobj(answer, out)
    return target


def _unpack(file: Path, place: str, target: Path) -> None:
    """Write the weights, each with the files that the package has of its checkpoint.

    Raises:
        ModelError: One is missing, or another one than expected.
    """
    with ZipFile(file) as held:
        members = {member.filename: member for member in held.infolist()}
        for name, expected in release_hashes().items():
            member = members.get(name)
            if member is None or member.file_size > LARGEST:
                raise ModelError(f"{place} holds no {name}: give {FILE} of the release")
            content = held.read(member)
            if (digest := sha256(content).hexdigest()) != expected:
                raise ModelError(
                    f"{place}: {name} has the SHA-256 {digest}, expected {expected}: fetch {FILE} "
                    f"of the release of kgbench {__version__} again"
                )
            shipped = zoo_path(f"zoo:{Path(name).parent.as_posix()}")
            assert shipped is not None
            shutil.copytree(shipped, target / Path(name).parent, dirs_exist_ok=True)
            (target / name).write_bytes(content)
