"""Submit recorded runs: make entries of the leaderboard, check and add them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from kgbench.errors import InputError
from kgbench.leaderboard.board_tables import Board, Line, Table
from kgbench.leaderboard.build import make_leaderboard
from kgbench.leaderboard.entries import (
    Contract,
    Entry,
    Submission,
    entry_name,
    folder_name,
    metric_of,
)
from kgbench.leaderboard.folders import RESULTS, MethodFolder, changed, document_hash, rows_hash
from kgbench.leaderboard.known import known
from kgbench.leaderboard.limits import RECORD, SUBMISSION
from kgbench.leaderboard.validate import CheckedEntry, Finding, validate_entries
from kgbench.records import Record, StoredRecord
from kgbench.records.fact_rows import STORED
from kgbench.stats import rescored

_GROUP = "kgbench.localizers"
"""Entry points of installed packages that hold methods."""

_HINTS: Mapping[str, str] = {
    "name": (
        "1 to 60 letters, digits, blanks and . _ + ( ) = , - that begin with a letter or digit;"
        " give another by --as"
    ),
    "code": "URL@COMMIT, such as https://github.com/OWNER/REPOSITORY@COMMIT, or PACKAGE==VERSION",
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
    contracts: Mapping[str, Contract | str],
    name: str | None = None,
    code: str | None = None,
    paper: str | None = None,
    source: Literal["self-reported"] | None = "self-reported",
) -> list[Entry]:
    """Runs as entries on the boards' metric, in memory alone.

    Args:
        runs: Recorded runs.
        contracts: Contract test results by id of the record, or why a method was not tested.
        name: The method's name on the board; by default the localizer's.
        code: Where its code is; by default the kgbench that ran, or the installed package that
            holds the localizer.
        paper: Address of a paper.
        source: None of the project's own runs of its own methods.

    Raises:
        InputError: A name, code or address is not fit, the place of the code is not known, or a
            run is of written texts.
    """
    entries = []
    for run in runs:
        record, facts = run.record, run.facts()
        if "rank" not in facts.column_names:
            raise InputError(
                f"run {record.id[:12]} is of written texts, and boards compare the first token of "
                "the answer: run it without --readout"
            )
        rows = facts.select(STORED.names)
        if record.metric != (metric := metric_of(record)):
            record = rescored(record, facts, metric)
        document, contract = record.document(), contracts.get(record.id)
        about: dict[str, Any] = {
            "record": record.id,
            "record_hash": document_hash(document),
            "facts_hash": rows_hash(rows),
            "name": name or record.identity.localizer.name,
            "code": code or _code(record),
            "paper": paper,
            "contract": None if isinstance(contract, str) else contract,
            "source": source,
        }
        submission = _submission(about)
        documents = {RECORD: document, SUBMISSION: submission.to_json()}
        place = Path(entry_name(record, submission.name))
        home = MethodFolder(place.parent, {place.name: documents}, {place.name: rows})
        entries.append(Entry(place, record, submission, None, home))
    return sorted(entries, key=lambda entry: entry.folder)


def _submission(about: Mapping[str, Any]) -> Submission:
    try:
        return Submission(**about)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        expected = _HINTS.get(field, first["msg"])
        raise InputError(
            f"{about[field]!r} is no {field} of a submission: expected {expected}"
        ) from None


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


def checked(entries: Sequence[Entry], before: Sequence[Entry], root: Path) -> list[CheckedEntry]:
    """Entries, checked against those on the board as strictly as the board's own check.

    Args:
        entries: Those of `drafts`.
        before: Those on the board.
        root: The leaderboard's folder.
    """
    there = {entry.folder.name for entry in before}
    drafted = [CheckedEntry(e.folder.name, dict(e.documents), e.rows()) for e in entries]
    for draft in validate_entries(drafted, strict=True, board=root / RESULTS):
        if draft.folder in there:  # what was submitted before is not replaced
            clause = f"the same result is in {draft.folder}"
            draft.add(Finding(RECORD, "id", None, "each result once", clause))
    return drafted


def publish(entries: Sequence[Entry], root: Path) -> list[Path]:
    """Add entries to the folders of their methods.

    Args:
        entries: Those of `drafts`.
        root: The leaderboard's folder.

    Returns:
        The entries' places.

    Raises:
        DataError: An entry is of no board.
        InputError: An entry of this name is there.
        OutputError: It cannot be written to.
    """
    by_folder: dict[Path, list[Entry]] = {}
    for entry in entries:
        path = root / RESULTS / folder_name(entry.result, entry.method)
        by_folder.setdefault(path, []).append(entry)
    places = []
    for path, drafted in by_folder.items():
        with changed(path) as (documents, rows):
            for entry in drafted:
                place = path / entry.folder.name
                if place.name in documents:
                    raise InputError(f"{place} is there already: an entry is never edited")
                documents[place.name], rows[place.name] = entry.documents, entry.rows()
                places.append(place)
    return places


def standings(new: Sequence[Entry], before: Sequence[Entry]) -> list[Standing]:
    """The tables that rank new entries: means, or single cells where a method has no mean.

    Args:
        new: Those of `drafts`.
        before: Those on the board.
    """
    ids, shown = {entry.result.id for entry in new}, []
    for board in make_leaderboard([*before, *new]).boards:
        means, cells, others = list[Standing](), list[Standing](), list[Standing]()
        for table in board.tables:
            added = [line for line in table.lines if ids.intersection(line.runs)]
            methods, lines = frozenset(line.method for line in added), table.lines
            if table.scope:  # with the points of reference and the best so far
                ranked = [line for line in lines if line.ranks and not line.baseline]
                best = [line.method for line in ranked if line.method not in methods][:1]
                compared = {*methods, "random", "all", *best}
                lines = tuple(line for line in lines if line.method in compared)
            if methods:
                kind = means if any(line.figures for line in added) else others
                kind = cells if table.scope else kind
                kind.append(Standing(board, table, lines, methods))
        shown += means or cells or others
    return shown
