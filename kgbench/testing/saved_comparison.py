"""Whether a figure has moved since a record was saved: paired differences over the same facts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kgbench.errors import InputError
from kgbench.numbers import figure_text, number_text
from kgbench.records import (
    DamagedRecordWarning,
    Record,
    RecordStore,
    StoredRecord,
    load_record,
)
from kgbench.report.export import record_name
from kgbench.stats import LEVEL, difference
from kgbench.stats.ratios import PairedPrompt, paired_prompts
from kgbench.testing.decisions import FEWEST

Array = NDArray[Any]


@dataclass(frozen=True)
class SavedComparison:
    """A record and the saved one of the same question."""

    saved: str
    """Folder of the saved record."""
    moved: tuple[str, ...]
    """What has moved, from what to what."""
    figures: int
    """How many were compared."""
    left_out: tuple[str, ...]
    """What was not compared, and why."""
    notes: tuple[str, ...] = ()
    """On the saved record."""

    def lines(self) -> list[str]:
        """What to print."""
        summary = "there is no figure to compare"
        if self.figures:
            summary = f"{len(self.moved) or 'none'} of {self.figures} figures moved"
        lines = [f"compared with {self.saved}: {summary}"]
        for line in (*self.notes, *self.moved, *self.left_out):
            lines.append(f"  {line}")
        return lines


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
            records = list(RecordStore(path).scan())
        except DamagedRecordWarning as warning:
            raise InputError(f"--kgbench-compare-fail: {warning}") from None
    if not records:
        raise InputError(
            f"--kgbench-compare-fail: no record in {str(path)!r}; give a folder that "
            "--kgbench-save wrote"
        )
    return records


def compare_saved(
    new: StoredRecord, saved: Sequence[StoredRecord], records: int = 1
) -> SavedComparison:
    """Compare every configuration of every prompt with the saved record of the same question.

    A figure has moved if its interval at 1 - .05 / m (Bonferroni over m figures) leaves out 0.

    Args:
        new: The record and where it lies.
        saved: Records. Of several that answer the question, those of the same facts and
            configurations come first, then the newest.
        records: How many records of the session are compared.

    Raises:
        InputError: None answers the question, or there is no fact that both have.
    """
    old, notes = _same_question(new.record, saved)
    prompts = list(paired_prompts(new.facts(), old.facts(), new.record.identity.configurations))
    if not prompts:
        raise InputError(
            f"--kgbench-compare-fail: {record_name(new.record)} and the saved one in "
            f"{str(old.path)!r} have no fact in common"
        )
    left_out: dict[str, list[str]] = {}
    figures = list(_figures(prompts, new.record.metric, left_out))
    moved, compared = [], 0
    for what, mine, theirs in figures:
        figure = difference(mine, theirs, 1 - (1 - LEVEL) / (len(figures) * records))
        if figure.low is None or figure.high is None:
            left_out.setdefault(f"{figure.undefined}", []).append(what)
            continue
        compared += 1
        if not figure.low <= 0 <= figure.high:
            means = f"{number_text(float(theirs.mean()))} to {number_text(float(mine.mean()))}"
            moved.append(
                f"{what}: {new.record.metric} from {means}, by {figure_text(figure.rounded())} "
                f"over {figure.n} facts"
            )
    absent = tuple(
        f"not compared, for {reason}: {'; '.join(what)}" for reason, what in left_out.items()
    )
    return SavedComparison(str(old.path), tuple(moved), compared, absent, notes)


def _figures(
    prompts: Sequence[PairedPrompt], metric: str, left_out: dict[str, list[str]]
) -> Iterator[tuple[str, Array, Array]]:
    """Name and scores in both records of each figure; reasons of others go to `left_out`."""
    for prompt in prompts:
        name, n = prompt.name, prompt.first.n
        if n < FEWEST:
            reason = f"fewer than {FEWEST} facts are in both records"
            left_out.setdefault(reason, []).append(f"{name}, {n} facts")
            continue
        a, b = prompt.first.scores(metric), prompt.second.scores(metric)
        for graft in dict.fromkeys((*a, *b)):
            if graft in a and graft in b:
                yield f"{name}, {graft}", a[graft], b[graft]
            else:
                left_out.setdefault("only one of the records has it", []).append(f"{name}, {graft}")


def _same_question(
    record: Record, saved: Sequence[StoredRecord]
) -> tuple[StoredRecord, tuple[str, ...]]:
    """The saved record of the same method, prompts and data set, with notes; weights may differ."""
    matching = [other for other in saved if not _other_parts(record, other.record)]
    if not matching:
        why = "; ".join(
            f"{other.path.name} has other {' and '.join(_other_parts(record, other.record))}"
            for other in saved
        )
        raise InputError(
            "--kgbench-compare-fail: no saved record answers the question of "
            f"{record_name(record)}; {why}"
        )
    ours = record.identity

    def nearness(stored: StoredRecord) -> tuple[bool, bool, bool, str]:
        """Likeness of two records apart from their weights, then the time of the other."""
        other, theirs = stored.record, stored.record.identity
        same_facts = theirs.dataset.hash == ours.dataset.hash
        same_grafts = theirs.configurations == ours.configurations
        return same_facts, same_grafts, other.id != record.id, other.provenance.time

    taken = max(matching, key=nearness)
    notes = []
    if len(matching) > 1:
        notes.append(
            f"of {len(matching)} saved records that answer the question, the one of "
            f"{taken.record.provenance.time} was taken"
        )
    if taken.record.identity.dataset.hash != ours.dataset.hash:
        notes.append(
            f"data set {ours.dataset.name!r} has changed since: compared over the facts "
            "whose ids are in both"
        )
    return taken, tuple(notes)


def _other_parts(record: Record, other: Record) -> list[str]:
    """Parts of the question in which two records differ."""
    ours, theirs = record.identity, other.identity
    one, two = ours.localizer, theirs.localizer
    differing = []
    if theirs.dataset.hash != ours.dataset.hash and theirs.dataset.name != ours.dataset.name:
        differing.append("facts")
    if (one.name, one.parameters) != (two.name, two.parameters):
        differing.append("localizer")
    if theirs.prompts != ours.prompts:
        differing.append("prompts")
    return differing
