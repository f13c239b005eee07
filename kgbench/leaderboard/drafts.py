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
from kgbench.leaderboard.board_tables import Board, Line, Table
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
from kgbench.leaderboard.packs import add
from kgbench.leaderboard.submission import Contract, Submission
from kgbench.leaderboard.validate import CheckedEntry, Finding, validate_folders
from kgbench.leaderboard.validate.entry_files import folders_below
from kgbench.leaderboard.validate.known import known
from kgbench.records import Record, StoredRecord
from kgbench.records.fact_rows import facts_bytes

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
    "name": (
        "1 to 60 letters, digits, blanks and . _ + ( ) = , - that begin with a letter or digit;"
        " give another by --as"
    ),
    "code": "URL@COMMIT, such as https://github.com/me/method@0123abc, or PACKAGE==VERSION",
    "paper": "an address that begins with https://",
}


Packs = dict[str, dict[str, Mapping[str, bytes]]]
"""Files by the name of their pack and of their entry."""


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
) -> list[Draft]:
    """Runs with their submissions.

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
    made = []
    for run in runs:
        submission = _submission(run.record, name, code, paper)
        contract = contracts.get(run.record.id)
        made.append(Draft(run, submission.model_copy(update={"contract": contract})))
    return made


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


@contextmanager
def staged(made: Sequence[Draft]) -> Iterator[Path]:
    """A temporary folder with the entries as they would be."""
    with TemporaryDirectory(prefix="kgbench-submit-") as place:
        for draft in made:
            folder = Path(place, draft.folder)
            folder.mkdir(exist_ok=True)
            record = draft.run.record.to_json().encode()
            facts = facts_bytes(draft.run.facts())
            (folder / RECORD).write_bytes(record)
            (folder / FACTS).write_bytes(facts)
            hashes = {RECORD: sha256(record).hexdigest(), FACTS: sha256(facts).hexdigest()}
            submission = draft.submission.model_copy(update={"files": hashes})
            (folder / SUBMISSION).write_text(submission.to_json(), encoding="utf-8")
        yield Path(place)


def packed(made: Sequence[Draft]) -> Packs:
    """The files of the entries as they would be, by the name of their pack and their own."""
    with staged(made) as stage:
        return _packs(loose_entries(stage))


def checked(stage: Path, root: Path) -> list[CheckedEntry]:
    """The staged entries, checked against those on the board as strictly as the board's own check.

    Args:
        stage: The folder of `staged`.
        root: The leaderboard's folder.
    """
    there = {entry.folder.name for entry in _entries(root)}
    folders = folders_below(stage, strict=True)
    entries = []
    for entry in validate_folders(folders, strict=True, board=root / RESULTS):
        if entry.folder in there:  # what was submitted before is not replaced
            wrong = f"the same result is in {entry.folder}"
            twice = Finding("id", wrong, "each result once", file=f"{entry.folder}/{RECORD}")
            entry = replace(entry, findings=(*entry.findings, twice))
        entries.append(entry)
    return entries


def publish(stage: Path, root: Path) -> list[Path]:
    """Add the staged entries to the leaderboard's packs, each pack whole or not at all.

    Returns:
        The entries' places.

    Raises:
        OutputError: It cannot be written to.
    """
    places: list[Path] = []
    for name, entries in _packs(loose_entries(stage)).items():
        pack = root / RESULTS / name
        add(pack, entries)
        places += [pack / entry for entry in entries]
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
    results = results_folder(root)
    loose = loose_entries(results)
    packs = _packs(loose)
    for name, entries in packs.items():
        add(results / name, entries)
    for folder in loose:
        shutil.rmtree(folder)
    return [results / name for name in packs]


def _packs(folders: Sequence[Path]) -> Packs:
    """The files of entries by the name of their pack and their own."""
    packs: Packs = {}
    for folder in folders:
        entry = read_entry(folder)
        if entry.submission is None:
            raise DataError(f"{folder / SUBMISSION}: it is missing; kgbench submit writes it")
        method = entry.submission.name
        entries = packs.setdefault(pack_name(entry.record, method), {})
        entries[entry_name(entry.record, method)] = entry.files()
    return packs


def standings(stage: Path, root: Path) -> list[Standing]:
    """Tables of single cells: the staged entries, `random`, `all` and the best so far.

    Args:
        stage: The folder of `staged`.
        root: The leaderboard's folder.
    """
    new = [read_entry(folder) for folder in sorted(stage.iterdir())]
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
