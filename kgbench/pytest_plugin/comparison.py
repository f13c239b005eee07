"""Whether a figure has moved since a record was saved: paired differences over the same facts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from kgbench.board.numbers import figure_text, number_text
from kgbench.effects.columns import PromptColumns, by_prompt
from kgbench.errors import InputError
from kgbench.records import DamagedRecordWarning, Estimate, Record, RecordStore, StoredRecord, load_record
from kgbench.stats import difference

__all__ = ["Comparison", "compare", "saved_records"]

DRAWS = 2000
"""Of the bootstrap."""


@dataclass(frozen=True)
class Comparison:
    """A record beside the saved one of the same question."""

    saved: str
    """Folder of the saved record."""
    moved: tuple[str, ...]
    """What has moved, from what to what."""
    figures: int
    """How many were compared."""
    left_out: tuple[str, ...]
    """Prompts and configurations that only one of the two records has."""

    def lines(self) -> list[str]:
        """What to print."""
        told = f"{len(self.moved)} of {self.figures} figures moved" if self.moved else f"none of {self.figures} figures moved"
        absent = [f"not compared, for only one of the records has it: {', '.join(self.left_out)}"] if self.left_out else []
        return [f"compared with {self.saved}: {told}", *(f"  {line}" for line in (*self.moved, *absent))]


def saved_records(path: Path) -> list[StoredRecord]:
    """The records in a folder, or the one that the folder is.

    Raises:
        InputError: There are none, or one is damaged.
    """
    if (path / "record.json").is_file():
        return [load_record(str(path), path.parent)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", DamagedRecordWarning)
        try:
            found = list(RecordStore(path).scan())
        except DamagedRecordWarning as warning:
            raise InputError(f"--kgbench-compare-fail: {warning}") from None
    if not found:
        raise InputError(f"--kgbench-compare-fail: no record in {str(path)!r}; give a folder that --kgbench-save wrote")
    return found


def compare(new: StoredRecord, saved: Sequence[StoredRecord]) -> Comparison:
    """Compare every configuration of every prompt with the saved record of the same question.

    Args:
        new: The record and where it lies.
        saved: Records, of which just one answers the same question.

    Raises:
        InputError: None does, or several do, or there is nothing that both have.
    """
    old = _same_question(new.record, saved)
    moved, left_out, figures = [], [], 0
    for name, mine, theirs in _by_prompt(new, old):
        a, b = mine.scores(new.record.metric), theirs.scores(new.record.metric)
        left_out += [f"{name}, {graft}" for graft in a.keys() ^ b.keys()]
        for graft in (graft for graft in a if graft in b):
            figures += 1
            figure = difference(a[graft], b[graft], mine.counts)
            if figure.low is not None and figure.high is not None and not figure.low <= 0 <= figure.high:
                means = f"{number_text(float(b[graft].mean()))} to {number_text(float(a[graft].mean()))}"
                by = figure_text(Estimate(**figure.to_json()))
                moved.append(f"{name}, {graft}: {new.record.metric} from {means}, by {by} over {figure.n} facts")
    if not figures:
        raise InputError(f"--kgbench-compare-fail: {_told(new.record)} and the saved one in {str(old.path)!r} have no fact in common")
    return Comparison(str(old.path), tuple(moved), figures, tuple(sorted(left_out)))


def _same_question(record: Record, saved: Sequence[StoredRecord]) -> StoredRecord:
    """The saved record of the same facts, prompts and method; its weights may be others."""
    found = [other for other in saved if _question(other.record) == _question(record)]
    others = [other for other in found if other.record.id != record.id]
    if len(found) > 1 and len(others) == 1:
        return others[0]
    if len(found) > 1:
        places = ", ".join(other.path.name for other in found)
        raise InputError(
            f"--kgbench-compare-fail: several saved records answer the question of {_told(record)}: {places}; give the folder of one"
        )
    if not found:
        raise InputError(f"--kgbench-compare-fail: no saved record answers the question of {_told(record)}; {_why_not(record, saved)}")
    return found[0]


def _question(record: Record) -> tuple[object, ...]:
    what = record.identity
    return what.dataset.hash, what.localizer.name, what.localizer.parameters, what.prompts


def _why_not(record: Record, saved: Sequence[StoredRecord]) -> str:
    """What is other in each saved record."""
    what = record.identity
    parts = []
    for other in saved:
        theirs = other.record.identity
        same = {
            "facts": theirs.dataset.hash == what.dataset.hash,
            "localizer": (theirs.localizer.name, theirs.localizer.parameters) == (what.localizer.name, what.localizer.parameters),
            "prompts": theirs.prompts == what.prompts,
        }
        parts.append(f"{other.path.name} has other {' and '.join(name for name, equal in same.items() if not equal)}")
    return "; ".join(parts)


def _told(record: Record) -> str:
    return f"{record.identity.localizer.name} on {record.model}"


def _by_prompt(new: StoredRecord, old: StoredRecord) -> Iterator[tuple[str, PromptColumns, PromptColumns]]:
    """Each prompt's columns in both, over the facts that both have."""
    seed = new.record.identity.seeds[0]
    tables = new.facts(), old.facts()
    for name in new.record.identity.prompts:
        parts = [table.filter(pc.equal(table["prompt"], name)) for table in tables]
        common = pa.array(sorted(set(parts[0]["fact"].to_pylist()) & set(parts[1]["fact"].to_pylist())), pa.string())
        kept = [part.filter(pc.is_in(part["fact"], common)) for part in parts]
        for mine, theirs in zip(*(by_prompt(part, new.record.identity.configurations, DRAWS, seed) for part in kept), strict=True):
            yield name, mine, theirs
