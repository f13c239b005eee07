"""A folder that is a copy of a URL: records are looked up, fetched and published there.

At the URL a record is `ID[:2]/ID/`, so that it is found without a list. Its `record.json` is
created last and never replaced, so that a record that is there is whole, and of two writers one
wins.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import platformdirs

from kgbench.errors import InputError, OutputError, first_line
from kgbench.records.journal import write_whole

SOURCES = "sources.json"
"""Paths of a run's parts on one machine (`kgbench.runner.sources`); copies of a run lack it."""
MARK = "mirror.json"
"""Names the URL, in the folder that is its copy."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_EXTRAS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs"}


def is_url(place: str) -> bool:
    """Whether a place is a URL rather than a folder; `file://` is one too."""
    return _URL.match(place) is not None


def folder_of(place: str | os.PathLike[str]) -> Path:
    """The folder of records of a place: itself, or of a URL the folder that is its copy.

    Args:
        place: A folder or a URL such as `s3://BUCKET/STUDY`.

    Raises:
        InputError: Nothing is installed that reads such a URL, or no folder has such a name.
    """
    text = os.fspath(place)
    if not is_url(text):
        folder = Path(text).expanduser()
        try:
            folder.stat()
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            pass  # it is made, or refused, on the first write
        except (OSError, ValueError) as error:  # too long, a link to itself, or with a NUL
            why = getattr(error, "strerror", None) or first_line(error)
            raise InputError(f"{text[:80]!r} cannot be a folder of records: {why}") from None
        return folder
    url = text.rstrip("/")
    folder = _copy_of(url)
    Mirror(url, folder)._place  # noqa: B018 (finds what reads the URL)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / MARK, json.dumps({"url": url}).encode())
    return folder


def _copy_of(url: str) -> Path:
    """The folder in kgbench's cache that is the copy of a URL."""
    folder = platformdirs.user_cache_path("kgbench", appauthor=False)
    if home := os.environ.get("KGBENCH_HOME"):
        folder = Path(home).expanduser()
    return folder / "mirrors" / sha256(url.encode()).hexdigest()[:16]


def mirror_of(folder: Path) -> Mirror | None:
    """The URL that a folder is a copy of; None of a plain folder.

    A mark outside kgbench's cache may be written by anyone, and is ignored.
    """
    try:
        url = str(json.loads((folder / MARK).read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return Mirror(url, folder) if folder.resolve() == _copy_of(url).resolve() else None


class Mirror:
    """A URL and the folder that holds copies of what is there."""

    def __init__(self, url: str, folder: Path) -> None:
        """Name both; nothing is asked yet.

        Args:
            url: As of fsspec.
            folder: The copy.
        """
        self.url, self.folder = url, folder

    @cached_property
    def _place(self) -> tuple[Any, str]:
        """File system, and path of the URL on it."""
        import fsspec

        kind = self.url.partition("://")[0].lower()
        try:
            options = {"auto_mkdir": True} if kind in ("file", "local") else {}
            system, path = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **options)
        except Exception as error:  # file systems raise what they like
            package = _EXTRAS.get(kind)
            hint = f"pip install {package}" if package else "expected such as s3://BUCKET/FOLDER"
            raise InputError(f"{self.url!r} cannot be read ({first_line(error)}): {hint}") from None
        return system, str(path).rstrip("/")

    def _record(self, id: str) -> str:
        return f"{self._place[1]}/{id[:2]}/{id}"

    def has(self, id: str) -> bool:
        """Whether the URL has the record of this identity.

        Raises:
            OutputError: It does not answer.
        """
        with self._answered():
            return bool(self._place[0].exists(f"{self._record(id)}/record.json"))

    def ids(self, prefix: str = "") -> list[str]:
        """Ids of all records at the URL, or of those that start so.

        Raises:
            OutputError: It does not answer.
        """
        system, root = self._place
        start = prefix[:2] if len(prefix) >= 2 else "??"
        with self._answered():
            paths = system.glob(f"{root}/{start}/{prefix}*/record.json")
        return sorted(path.split("/")[-2] for path in paths)

    def fetch(self, id: str, target: Path) -> None:
        """Copy the files of a record into a new folder.

        Raises:
            OutputError: The URL does not answer.
        """
        system, _ = self._place
        with self._answered():
            for path in system.ls(self._record(id), detail=False):
                name = str(path).rstrip("/").rsplit("/", 1)[-1]
                if name == SOURCES:
                    continue
                (target / name).write_bytes(system.cat_file(path))

    def push(self, id: str, folder: Path) -> None:
        """Publish a record; one that is there stays as it is.

        Args:
            id: Its id.
            folder: Where it lies on this machine.

        Raises:
            OutputError: The URL does not take it. What is there is no record then.
        """
        system, _ = self._place
        if self.has(id):
            return
        files = sorted(path for path in folder.iterdir() if path.is_file())
        with self._answered():
            for path in files:
                if path.name not in ("record.json", SOURCES):
                    system.pipe_file(f"{self._record(id)}/{path.name}", path.read_bytes())
            self._create(f"{self._record(id)}/record.json", (folder / "record.json").read_bytes())

    def _create(self, path: str, content: bytes) -> None:
        system, _ = self._place
        with suppress(FileExistsError):
            try:
                system.pipe_file(path, content, mode="create")
            except (NotImplementedError, TypeError, ValueError):
                # A store that cannot create exclusively; equal identities have equal rows.
                if not system.exists(path):
                    system.pipe_file(path, content)

    def read(self, names: Iterable[str]) -> dict[str, bytes]:
        """Those of some files at the URL that there are, by name.

        Raises:
            OutputError: The URL does not answer.
        """
        system, root = self._place
        paths_of = {f"{root}/{name}": name for name in names}
        folders = {path.rpartition("/")[0] for path in paths_of}
        with self._answered():
            there: set[str] = set()
            for folder in folders:
                with suppress(FileNotFoundError):
                    there.update(map(str, system.ls(folder, detail=False)))
            paths = {path: name for path, name in paths_of.items() if path in there}
            answers = system.cat(list(paths), on_error="return") if paths else {}
        contents = answers if isinstance(answers, dict) else dict.fromkeys(paths, answers)
        read = {}
        for path, content in contents.items():
            if isinstance(content, bytes):
                read[paths[path]] = content
            elif not isinstance(content, FileNotFoundError):
                raise OutputError(f"{self.url} does not answer: {first_line(content)}")
        return read

    def write(self, name: str, content: bytes) -> None:
        """Write a file at the URL, in the place of an earlier one.

        Raises:
            OutputError: The URL does not take it.
        """
        system, root = self._place
        with self._answered():
            system.pipe_file(f"{root}/{name}", content)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Errors of a file system, whatever their type, in one line.

        Raises:
            OutputError: In place of any other error.
        """
        try:
            yield
        except Exception as error:
            raise OutputError(
                f"{self.url} does not answer: {first_line(error)}; what is finished is kept on "
                "this machine, and the same command goes on"
            ) from error
