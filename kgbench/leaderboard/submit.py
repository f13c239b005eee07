"""Submit recorded runs: make entries of the leaderboard, check and pack them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import ValidationError

from kgbench.errors import DataError, InputError
from kgbench.leaderboard.build import RESULTS, make_leaderboard, results_folder
from kgbench.leaderboard.entries import (
    Entry,
    entry_name,
    loose_entries,
    pack_name,
    read_entries,
    read_entry,
)
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION
from kgbench.leaderboard.model import Board, Line, Table
from kgbench.leaderboard.packs import add
from kgbench.leaderboard.submission import Contract, Submission
from kgbench.leaderboard.validate import CheckedEntry, Finding, validate_folders
from kgbench.leaderboard.validate.entry_files import folders_below
from kgbench.leaderboard.validate.known import known
from kgbench.records import Record, StoredRecord
from kgbench.records.fact_rows import write_facts

__all__ = [
    "Draft",
    "Standing",
    "checked",
    "drafts",
    "pack_loose",
    "packed",
    "publish",
    "staged",
    "standings",
]

_GROUP = "kgbench.localizers"
"""Entry points of installed packages that hold methods."""

_HINTS: Mapping[str, str] = {
    "name": "1 to 60 letters, digits, blanks and . _ + ( ) = , - that begin with a letter or digit; give another by --as",
    "code": "URL@COMMIT, such as https://github.com/me/method@0123abc, or PACKAGE==VERSION",
    "paper": "an address that begins with https://",
}


@dataclass(frozen=True)
class Draft:
    """A run that is to become an entry."""

    run: StoredRecord
    submission: Submission

    @property
    def folder(self) -> str:
        """The entry's folder."""
        return entry_name(self.run.record, self.submission.name)


@dataclass(frozen=True)
class Standing:
    """A table with new lines among those to compare with."""

    board: Board
    table: Table
    lines: tuple[Line, ...]
    """The new ones, the best of the others, and the points of reference."""
    new: frozenset[str]
    """Methods whose line is new or changed."""


def drafts(
    runs: Sequence[StoredRecord],
    contracts: Mapping[str, Contract],
    name: str | None = None,
    code: str | None = None,
    paper: str | None = None,
) -> tuple[Draft, ...]:
    """Runs with what is to be said of them.

    Args:
        runs: Recorded runs.
        contracts: By id of a record, what came of trying the laws on its method; those that were
            not tried are left out.
        name: The method's name on the board; by default the localizer's.
        code: Where its code is; by default the kgbench that ran, or the installed package that
            holds the localizer.
        paper: Address of a paper.

    Raises:
        InputError: A name, code or address is not fit, or nobody knows where the code is.
    """
    said = {run.record.id: _submission(run.record, name, code, paper) for run in runs}
    return tuple(
        Draft(
            run, said[run.record.id].model_copy(update={"contract": contracts.get(run.record.id)})
        )
        for run in runs
    )


def _submission(
    record: Record, name: str | None, code: str | None, paper: str | None
) -> Submission:
    try:
        return Submission(
            record=record.id,
            name=name or record.identity.localizer.name,
            code=code or _code(record),
            paper=paper,
        )
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        value = {"name": name or record.identity.localizer.name, "code": code, "paper": paper}.get(
            field
        )
        raise InputError(
            f"{value!r} is no {field} of a submission: expected "
            f"{_HINTS.get(field, error.errors()[0]['msg'])}"
        ) from None


def _code(record: Record) -> str:
    """Where the code of a method is, as far as that can be told."""
    name = record.identity.localizer.name
    if name in known().localizers:
        return f"kgbench=={record.provenance.kgbench}"
    for point in entry_points(group=_GROUP):
        if point.name == name and point.dist is not None:
            return f"{point.dist.name}=={point.dist.version}"
    raise InputError(
        f"where is the code of {name!r}? It is neither built in nor of an installed package: "
        "publish it, and give --code URL@COMMIT "
        "or --code PACKAGE==VERSION; code never comes inside a result"
    )


@contextmanager
def staged(found: Sequence[Draft]) -> Iterator[Path]:
    """A temporary folder with the entries as they would be."""
    with TemporaryDirectory(prefix="kgbench-submit-") as place:
        for draft in found:
            folder = Path(place, draft.folder)
            folder.mkdir(exist_ok=True)
            (folder / RECORD).write_text(draft.run.record.to_json(), encoding="utf-8")
            write_facts(draft.run.facts(), folder / FACTS)
            hashes = {
                name: sha256((folder / name).read_bytes()).hexdigest() for name in (RECORD, FACTS)
            }
            submission = draft.submission.model_copy(update={"files": hashes})
            (folder / SUBMISSION).write_text(submission.to_json(), encoding="utf-8")
        yield Path(place)


def packed(found: Sequence[Draft]) -> dict[str, dict[str, Mapping[str, bytes]]]:
    """The files of the entries as they would be, by the name of their pack and their own."""
    with staged(found) as stage:
        return _packs(loose_entries(stage))


def checked(stage: Path, root: Path) -> list[CheckedEntry]:
    """The staged entries, checked as strictly as the board's own check does it, beside those that are there.

    Args:
        stage: The folder of `staged`.
        root: The leaderboard's folder.
    """
    results = root / RESULTS
    there = {entry.folder.name for entry in _entries(root)}
    staged = validate_folders(folders_below(stage, strict=True), strict=True, beside=results)
    return [_once(entry) if entry.folder in there else entry for entry in staged]


def _once(entry: CheckedEntry) -> CheckedEntry:
    """The entry, refused: what was submitted before is not replaced."""
    twice = Finding(
        f"{entry.folder}/{RECORD}",
        "id",
        f"the same result is in {entry.folder}",
        "each result once",
    )
    return replace(entry, findings=(*entry.findings, twice))


def publish(stage: Path, root: Path) -> list[Path]:
    """Add the staged entries to the leaderboard's packs, each pack whole or not at all.

    Returns:
        The entries' places.

    Raises:
        OutputError: It cannot be written to.
    """
    results, packs = root / RESULTS, _packs(loose_entries(stage))
    for name, entries in packs.items():
        add(results / name, entries)
    return [results / name / entry for name, entries in packs.items() for entry in entries]


def pack_loose(root: Path) -> list[Path]:
    """Move the entries that are folders into the leaderboard's packs.

    Returns:
        The packs that they are in now.

    Raises:
        DataError: An entry does not read, has no submission or is of no board.
        InputError: There is no leaderboard, or a pack has another entry of this name.
        OutputError: It cannot be written to.
    """
    results = results_folder(root)
    loose = loose_entries(results)
    packs = _packs(loose)
    for name, entries in packs.items():
        add(results / name, entries)
    for folder in loose:
        shutil.rmtree(folder)
    return [results / name for name in packs]


def _packs(folders: Sequence[Path]) -> dict[str, dict[str, Mapping[str, bytes]]]:
    """The files of entries by the name of their pack and their own."""
    packs: dict[str, dict[str, Mapping[str, bytes]]] = {}
    for folder in folders:
        entry = read_entry(folder)
        if entry.submission is None:
            raise DataError(f"{folder / SUBMISSION}: it is missing; kgbench submit writes it")
        method = entry.submission.name
        entries = packs.setdefault(pack_name(entry.record, method), {})
        entries[entry_name(entry.record, method)] = entry.files()
    return packs


def standings(stage: Path, root: Path) -> list[Standing]:
    """The tables of single cells with the staged entries in them, against `random`, `all` and the best so far.

    Args:
        stage: The folder of `staged`.
        root: The leaderboard's folder.
    """
    new = [read_entry(folder) for folder in sorted(stage.iterdir())]
    ids = {entry.record.id for entry in new}
    before = [entry for entry in _entries(root) if entry.record.id not in ids]
    boards = make_leaderboard([*before, *new]).boards
    return [
        _standing(board, table, ids)
        for board in boards
        for table in board.tables
        if table.scope and _holds(table, ids)
    ]


def _entries(root: Path) -> list[Entry]:
    return list(read_entries(root / RESULTS)) if (root / RESULTS).is_dir() else []


def _holds(table: Table, ids: set[str]) -> bool:
    return any(ids.intersection(line.runs) for line in table.lines)


def _standing(board: Board, table: Table, ids: set[str]) -> Standing:
    new = frozenset(line.method for line in table.lines if ids.intersection(line.runs))
    best = next(
        (
            line.method
            for line in table.lines
            if line.rank is not None and not line.baseline and line.method not in new
        ),
        None,
    )
    kept = tuple(line for line in table.lines if line.method in new | {best, "random", "all"})
    return Standing(board, table, kept, new)
