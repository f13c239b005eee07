"""What one process tells at its end of each record: its table, where it lies, and how it compares with a saved one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgbench.errors import KgbenchError
from kgbench.pytest_plugin.session import Session, in_pytest_words

if TYPE_CHECKING:
    from kgbench.records import StoredRecord

__all__ = ["Outcome", "outcomes", "save"]


@dataclass(frozen=True)
class Outcome:
    """What is told of one record; plain values, which go from one process to another."""

    id: str
    table: str
    folder: str | None
    """Where the record lies; None where that is not known."""
    evaluated: bool
    """Whether the session's fixture made it, so that it is to be kept."""
    comparison: tuple[str, ...] = ()
    """Lines on the comparison with a saved record."""
    failed: bool = False
    """Whether a figure has moved, or the record could not be compared."""
    kept: bool = False
    """Whether the folder is one that outlives the session."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Outcome:
        """Back from JSON."""
        return cls(**{**values, "comparison": tuple(values["comparison"])})


def outcomes(session: Session) -> list[Outcome]:
    """What is to be told of all records of this process."""
    from kgbench.board import render_table

    found = []
    for id, record in session.records.items():
        place = _place(session, id)
        lines, failed = _compared(session, place, id) if session.given.path("compare-fail") is not None else ((), False)
        found.append(Outcome(id, render_table(record), str(place.path) if place else None, id in session.folders, lines, failed))
    return found


def save(outcome: Outcome, folder: Path) -> Outcome:
    """Put a record that a process computed by itself into the folder of records, unless it is there."""
    from kgbench.records import RecordStore, load_record

    assert outcome.folder is not None
    stored = load_record(outcome.folder, folder)
    path = RecordStore(folder).write(stored.record, stored.facts())
    return replace(outcome, folder=str(path), kept=True)


def _place(session: Session, id: str) -> StoredRecord | None:
    """A record with its per-fact rows, which lie where the session or `kgbench.evaluate` wrote it."""
    from kgbench.records import DamagedRecordWarning, RecordStore, load_record

    if id in session.folders:
        return load_record(str(session.folders[id]), session.folders[id].parent)
    roots = (session.given.path("save"), session.given.path("compare-fail"), session.config.invocation_params.dir / "kgbench-results")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedRecordWarning)  # of other records, which nothing here is about
        return next((found for root in roots if root is not None and (found := RecordStore(root).find(id)) is not None), None)


def _compared(session: Session, place: StoredRecord | None, id: str) -> tuple[tuple[str, ...], bool]:
    """Lines on the comparison, and whether it fails the session."""
    from kgbench.pytest_plugin.comparison import compare

    record = session.records[id]
    if place is None:
        told = f"{record.identity.localizer.name} on {record.model} was not compared: its per-fact rows are not known here"
        return (f"{told}; evaluate it by the fixture `evaluation`, or with --kgbench-save DIR as its output_dir",), True
    try:
        comparison = compare(place, session.baseline)
    except KgbenchError as error:
        return (in_pytest_words(error),), True
    return tuple(comparison.lines()), bool(comparison.moved)
