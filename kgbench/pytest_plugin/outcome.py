"""What one process tells at its end of each record: its table, where it lies, and how it compares with a saved one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from kgbench.errors import KgbenchError
from kgbench.pytest_plugin.session import Session, in_pytest_words

if TYPE_CHECKING:
    from kgbench.records import StoredRecord

__all__ = ["Outcome", "outcomes"]


@dataclass(frozen=True)
class Outcome:
    """What is told of one record; plain values, which go from one process to another."""

    id: str
    table: str
    kept: str | None
    """Where the record of the session's fixture outlives the session."""
    comparison: tuple[str, ...] = ()
    """Lines on the comparison with a saved record."""
    failed: bool = False
    """Whether a figure has moved, or the record could not be read or compared."""

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
        try:
            place = _place(session, id)
            kept = (
                str(session.folders[id])
                if id in session.folders and session.given.path("save") is not None
                else None
            )
            compared = (
                _compared(session, place, id)
                if session.given.path("compare-fail") is not None
                else ((), False)
            )
        except (KgbenchError, OSError) as error:  # what lies on the disk can be anything by now
            kept, compared = None, ((in_pytest_words(error),), True)
        found.append(Outcome(id, render_table(record), kept, *compared))
    return found


def _place(session: Session, id: str) -> StoredRecord | None:
    """A record with its per-fact rows, which lie where the session or `kgbench.evaluate` wrote it."""
    from kgbench.records import DamagedRecordWarning, RecordStore
    from kgbench.records.store import read_record

    if id in session.folders:
        return read_record(session.folders[id])
    roots = (
        session.given.path("save"),
        session.given.path("compare-fail"),
        session.config.invocation_params.dir / "kgbench-results",
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DamagedRecordWarning
        )  # of other records, which nothing here is about
        return next(
            (
                found
                for root in roots
                if root is not None and (found := RecordStore(root).find(id)) is not None
            ),
            None,
        )


def _compared(
    session: Session, place: StoredRecord | None, id: str
) -> tuple[tuple[str, ...], bool]:
    """Lines on the comparison, and whether it fails the session."""
    from kgbench.pytest_plugin.comparison import compare

    record = session.records[id]
    if place is None:
        told = f"{record.identity.localizer.name} on {record.model} was not compared: its per-fact rows are not known here"
        return (
            f"{told}; evaluate it by the fixture `evaluation`, or with --kgbench-save DIR as its output_dir",
        ), True
    comparison = compare(place, session.baseline, len(session.records))
    return tuple(comparison.lines()), bool(comparison.moved)
