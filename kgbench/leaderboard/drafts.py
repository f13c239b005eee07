"""Submit recorded runs: make entries of the leaderboard, check and pack them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path

from pydantic import ValidationError

from kgbench.errors import DataError, InputError
from kgbench.leaderboard.board_tables import Board, Line, Table
from kgbench.leaderboard.build import RESULTS, make_leaderboard, results_folder
from kgbench.leaderboard.entries import (
    Contract,
    Entry,
    Submission,
    entry_name,
    loose_entries,
    pack_name,
    read_entries,
    read_entry,
)
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION
from kgbench.leaderboard.packs import add
from kgbench.leaderboard.validate import CheckedEntry, Finding, validate_folders
from kgbench.leaderboard.validate.known import known
from kgbench.records import Record, StoredRecord
from kgbench.records.fact_rows import facts_bytes

_GROUP = "kgbench.localizers"
"""Entry points of installed packages that hold methods."""

_HINTS: Mapping[str, str] = {
    "name": (
        "1 to 60 letters, digits, blanks and . _ + ( ) = , - that begin with a letter or digit;"
        " give another by --as"
    ),
    "code": "URL@COMMIT, such as https://github.com/me/method@0123abc, or PACKAGE==VERSION",
    "paper": "an address that begins with https://",
}


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
) -> list[Entry]:
    """Runs as entries, in memory alone.

    Args:
        runs: Recorded runs.
        contracts: Contract test results by id of the record, of those methods that were tested.
        name: The method's name on the board; by default the localizer's.
        code: Where its code is; by default the kgbench that ran, or the installed package that
            holds the localizer.
        paper: Address of a paper.

    Raises:
        InputError: A name, code or address is not fit, or the place of the code is not known.
    """
    entries = []
    for run in runs:
        record = run.record
        files = {RECORD: record.to_json().encode(), FACTS: facts_bytes(run.facts())}
        hashes = {file: sha256(content).hexdigest() for file, content in files.items()}
        known = {"contract": contracts.get(record.id), "files": hashes}
        submission = _submission(record, name, code, paper).model_copy(update=known)
        files[SUBMISSION] = submission.to_json().encode()
        place = Path(entry_name(record, submission.name))
        entries.append(Entry(place, record, submission, None, files))
    return sorted(entries, key=lambda entry: entry.folder)


def _submission(
    record: Record, name: str | None, code: str | None, paper: str | None
) -> Submission:
    name = name or record.identity.localizer.name
    try:
        return Submission(record=record.id, name=name, code=code or _code(record), paper=paper)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        value = {"name": name, "code": code, "paper": paper}.get(field)
        expected = _HINTS.get(field, first["msg"])
        raise InputError(f"{value!r} is no {field} of a submission: expected {expected}") from None


def _code(record: Record) -> str:
    """Where the code of a method is."""
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


def checked(entries: Sequence[Entry], root: Path) -> list[CheckedEntry]:
    """Entries, checked against those on the board as strictly as the board's own check.

    Args:
        entries: Those of `drafts`.
        root: The leaderboard's folder.
    """
    there = {entry.folder.name for entry in _entries(root)}
    drafted = [CheckedEntry(entry.folder.name, dict(entry.files())) for entry in entries]
    for draft in drafted:
        draft.close()
    for draft in validate_folders(drafted, strict=True, board=root / RESULTS):
        if draft.folder in there:  # what was submitted before is not replaced
            wrong = f"the same result is in {draft.folder}"
            draft.add([Finding("id", wrong, "each result once")], RECORD)
    return drafted


def publish(entries: Sequence[Entry], root: Path) -> list[Path]:
    """Add entries to the leaderboard's packs, each pack whole or not at all.

    Returns:
        The entries' places.

    Raises:
        DataError: An entry has no submission or is of no board.
        InputError: A pack has another entry of this name.
        OutputError: It cannot be written to.
    """
    packs: dict[Path, dict[str, Mapping[str, bytes]]] = {}
    for entry in entries:
        if entry.submission is None:
            raise DataError(f"{entry.folder / SUBMISSION}: it is missing; kgbench submit writes it")
        method = entry.submission.name
        pack = packs.setdefault(root / RESULTS / pack_name(entry.record, method), {})
        pack[entry_name(entry.record, method)] = entry.files()
    places = []
    for path, files in packs.items():
        add(path, files)
        places += [path / name for name in files]
    return places


def pack_loose(root: Path) -> list[Path]:
    """Move the entries that are folders into the leaderboard's packs.

    Returns:
        The packs that they are in now.

    Raises:
        DataError: An entry does not read, has no submission or is of no board.
        InputError: There is no leaderboard, or a pack has another entry of this name.
        OutputError: It cannot be written to.
    """
    loose = loose_entries(results_folder(root))
    places = publish(list(map(read_entry, loose)), root)
    for folder in loose:
        shutil.rmtree(folder)
    return list(dict.fromkeys(place.parent for place in places))


def standings(new: Sequence[Entry], root: Path) -> list[Standing]:
    """Tables of single cells: new entries, `random`, `all` and the best so far.

    Args:
        new: Those of `drafts`.
        root: The leaderboard's folder.
    """
    ids = {entry.record.id for entry in new}
    before = [entry for entry in _entries(root) if entry.record.id not in ids]
    found = []
    for board in make_leaderboard([*before, *new]).boards:
        for table in board.tables:
            methods = {line.method for line in table.lines if ids.intersection(line.runs)}
            if table.scope and methods:
                found.append(_standing(board, table, frozenset(methods)))
    return found


def _entries(root: Path) -> list[Entry]:
    return list(read_entries(root / RESULTS)) if (root / RESULTS).is_dir() else []


def _standing(board: Board, table: Table, new: frozenset[str]) -> Standing:
    shown = {*new, "random", "all"}
    for line in table.lines:
        if line.rank is not None and not line.baseline and line.method not in new:
            shown.add(line.method)  # the best of the others
            break
    return Standing(board, table, tuple(line for line in table.lines if line.method in shown), new)
