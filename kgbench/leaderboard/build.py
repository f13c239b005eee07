"""From entries to boards, and from boards to the files that show them."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kgbench.errors import InputError, OutputError
from kgbench.leaderboard.boards.budget import budget_board
from kgbench.leaderboard.boards.cost import cost_board
from kgbench.leaderboard.boards.pathways import pathways_board
from kgbench.leaderboard.boards.plant_pathways import plant_pathways_board
from kgbench.leaderboard.boards.planted import components_board, positions_board
from kgbench.leaderboard.boards.published import published_board
from kgbench.leaderboard.entries import Entry, read_entries
from kgbench.leaderboard.markdown import render_markdown
from kgbench.leaderboard.model import Board, Leaderboard
from kgbench.leaderboard.site import render_site

__all__ = [
    "MARKDOWN",
    "RESULTS",
    "SITE",
    "build",
    "differences",
    "make_leaderboard",
    "outputs",
    "results_folder",
]

RESULTS, MARKDOWN, SITE = "results", "LEADERBOARD.md", "site"


def make_leaderboard(entries: Sequence[Entry]) -> Leaderboard:
    """All boards of some entries, whatever order these come in."""
    found = sorted(entries, key=lambda entry: (entry.method, entry.pair, entry.record.id))
    boards = (
        components_board(found),
        positions_board(found),
        plant_pathways_board(found),
        pathways_board(found),
        budget_board(found),
        cost_board(found),
        published_board(),
    )
    marks: Mapping[str, Callable[[Entry], bool]] = {
        "metric version 1: ties counted for the method": lambda entry: (
            entry.record.identity.ties_count_for_the_target
        ),
        "contract not run: no record that the laws of localizers were tried": lambda entry: (
            entry.submission is not None and entry.contract is None
        ),
    }
    about = {
        note: frozenset(entry.record.id for entry in found if marked(entry))
        for note, marked in marks.items()
    }
    return Leaderboard(tuple(_marked(board, about) for board in boards), tuple(found))


def _marked(board: Board, about: Mapping[str, AbstractSet[str]]) -> Board:
    """The board, with footnotes on methods.

    Args:
        board: The board.
        about: By footnote, the ids of the records that it is about.
    """
    tables = []
    for table in board.tables:
        names = {
            note: [line.method for line in table.lines if not ids.isdisjoint(line.runs)]
            for note, ids in about.items()
        }
        who = {
            note: "all methods" if len(found) == len(table.lines) else ", ".join(found)
            for note, found in names.items()
            if found
        }
        tables.append(
            replace(
                table, notes=(*table.notes, *(f"{note} ({found})" for note, found in who.items()))
            )
        )
    return replace(board, tables=tuple(tables))


def results_folder(root: Path) -> Path:
    """The folder of a leaderboard's entries.

    Raises:
        InputError: If there is none.
    """
    if not (root / RESULTS).is_dir():
        raise InputError(
            f"{root} is no leaderboard: expected a folder {RESULTS!r} in it; give the place by "
            "--root"
        )
    return root / RESULTS


def outputs(root: Path) -> Iterator[tuple[str, bytes]]:
    """Every file that the entries below a folder give, by its path in the folder; the same entries give the same bytes.

    Raises:
        DataError: If an entry does not read.
        InputError: If the folder holds no results.
    """
    leaderboard = make_leaderboard(list(read_entries(results_folder(root))))
    yield MARKDOWN, render_markdown(leaderboard).encode()
    for path, content in render_site(leaderboard):
        yield f"{SITE}/{path}", content


def build(root: Path) -> tuple[int, int]:
    """Write the board; files that are right already are left as they are, and pages of records that are gone are deleted.

    All files are made beside the board first, so that an error leaves it as it was.

    Returns:
        How many files there are, and how many of them were written or deleted.

    Raises:
        OutputError: If one cannot be written, or a link leads out of the board.
    """
    results_folder(root)
    if links := _links(root):
        raise OutputError(
            f"{links[0]} is a link, and the board is written to plain folders only; delete it"
        )
    try:
        with _uncollected(), TemporaryDirectory(prefix=".build-", dir=root) as stage:
            return _build(root, Path(stage))
    except OSError as error:
        raise OutputError(
            f"cannot write the board to {str(root)!r}: {error.strerror or error}"
        ) from error


def _build(root: Path, stage: Path) -> tuple[int, int]:
    """Make all files in a folder of the same disk, then put those that differ in their places."""
    made, new = set(), []
    for name, content in outputs(root):
        made.add(name)
        if not (root / name).is_file() or (root / name).read_bytes() != content:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_bytes(content)
            new.append(name)
    stale = _there(root) - made
    for name in stale:
        (root / name).unlink()
    _remove_empty(root / SITE)
    for name in sorted(new, key=lambda name: name == MARKDOWN):  # the summary last
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).replace(root / name)
    return len(made), len(new) + len(stale)


def _links(root: Path) -> list[Path]:
    """Links in the place of a file or folder of the board, and below its folders."""
    site = root / SITE
    below = (
        Path(folder) / name
        for folder, folders, files in os.walk(site)
        for name in (*folders, *files)
    )
    return [path for path in (root / MARKDOWN, site, *below) if path.is_symlink()]


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection, which is slow over the million objects of a thousand records."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def differences(root: Path) -> list[str]:
    """Where the Markdown differs from what the entries give; the pages are rendered too, and compared with nothing.

    Raises:
        DataError: If an entry does not read, or gives no page.
        InputError: If the folder holds no results.
    """
    path, made = root / MARKDOWN, b""
    for name, content in outputs(root):
        made = content if name == MARKDOWN else made
    if path.is_symlink():
        return [f"{path}: it is a link"]
    if not path.is_file():
        return [f"{path}: it is missing; run kgbench leaderboard build"]
    found = path.read_bytes()
    return [] if found == made else [f"{path}: {_first_difference(found, made)}"]


def _first_difference(found: bytes, expected: bytes) -> str:
    place = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b),
        min(len(found), len(expected)),
    )
    line = found[:place].count(b"\n") + 1
    return (
        f"line {line}, byte {place}: it has {_near(found, place)}, and the entries give "
        f"{_near(expected, place)}"
    )


def _near(content: bytes, place: int) -> str:
    return (
        ascii(content[place : place + 40].decode(errors="replace"))
        if place < len(content)
        else "the end"
    )


def _there(root: Path) -> set[str]:
    """The board's files that exist, by their paths in the folder."""
    site = {
        path.relative_to(root).as_posix()
        for path in (root / SITE).rglob("*")
        if path.is_file() or path.is_symlink()
    }
    return site | ({MARKDOWN} if (root / MARKDOWN).is_file() else set())


def _remove_empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            shutil.rmtree(path)
