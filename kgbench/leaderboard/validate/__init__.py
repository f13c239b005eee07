"""Checks of results for the board, without any model; submitted code is never run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from kgbench.errors import InputError
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.folders import inside_folder
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.validate.board import (
    Others,
    part_findings,
    place_findings,
    submission_findings,
    verification_findings,
)
from kgbench.leaderboard.validate.files import CheckedEntry, entries_below
from kgbench.leaderboard.validate.findings import Finding
from kgbench.leaderboard.validate.known import judged_anew, known_dataset, planted_of
from kgbench.leaderboard.validate.record import (
    cost_findings,
    input_findings,
    map_findings,
    method_findings,
    ranking_findings,
    suite_findings,
)
from kgbench.leaderboard.validate.rows import answer_findings, row_findings, table_findings
from kgbench.records.fact_rows import with_derived
from kgbench.stats import with_figures

__all__ = ["CheckedEntry", "Finding", "check_entry", "validate", "validate_entries"]


def validate(
    path: Path, strict: bool = False, board: Path | None = None, withdrawn: Collection[str] = ()
) -> Iterator[CheckedEntry]:
    """Check a run, the entries of a method or those of a board, one entry after the other.

    With `strict` and `board`, a folder of entries is taken for the whole board as it is to be:
    each entry that is gone from it is a finding.

    Args:
        path: As of `entries_below`.
        strict: Whether results are refused too that are of unknown data or models, or come without
            a submission.
        board: Entries that are on the board already, which are believed.
        withdrawn: Entries of `board`, or methods, that are taken from the board.

    Raises:
        InputError: There is no such path, or it is none of these; nothing on the board has the name
            of what is withdrawn.
    """
    single = inside_folder(path) is not None or path.name == RECORD or (path / RECORD).exists()
    entries = entries_below(path, strict)
    yield from validate_entries(entries, strict, board, withdrawn, complete=strict and not single)


def validate_entries(
    entries: Iterable[CheckedEntry],
    strict: bool,
    board: Path | None = None,
    withdrawn: Collection[str] = (),
    complete: bool = False,
) -> Iterator[CheckedEntry]:
    """Check entries, each alone and against those before it; arguments as of `validate`.

    Args:
        entries: Their files.
        strict: As of `validate`.
        board: As of `validate`.
        withdrawn: As of `validate`.
        complete: Whether these are all entries that the board is to have.
    """
    others, names = Others(board=None if board is None else {}), set()
    for before in entries_below(board, strict=False) if board and any(board.glob("*")) else ():
        before.parse()
        aliases = {before.folder, before.entry.method if before.entry else before.folder}
        names |= aliases
        if others.board is not None and aliases.isdisjoint(withdrawn):
            others.board[before.folder] = before.hashes()
            _compare(before, others)
    if unknown := sorted(set(withdrawn) - names):
        raise InputError(f"{unknown[0]!r} is neither an entry nor a method of {str(board)!r}")
    left, met = dict.fromkeys(others.board or ()), set()
    for entry in entries:
        left.pop(entry.folder, None)
        if entry.folder.casefold() in met:
            entry.add(Finding("name", None, "each entry once", "another entry has this name"))
        met.add(entry.folder.casefold())
        try:
            yield check_entry(entry, others, strict)
        except Exception as error:  # whatever untrusted bytes make of the checks is a finding
            clause = f"it cannot be checked ({type(error).__name__}: {{}})"
            entry.add(Finding("content", str(error), "", clause))
            yield entry
    for name in left if complete else ():
        gone = CheckedEntry(name)
        expected = f"every entry of the board, or --withdraw {name} by those who keep it"
        gone.add(Finding("entry", None, expected, "it is on the board, and gone here"))
        yield gone


def check_entry(entry: CheckedEntry, others: Others, strict: bool) -> CheckedEntry:
    """Check one entry.

    Args:
        entry: Its documents and rows.
        others: Entries before it; where it is in order, it is one of them from now on.
        strict: As of `validate`.
    """
    entry.parse()
    hashes = entry.hashes()
    for document, finding in others.replaced(entry.folder, hashes):
        entry.add(finding, document=document)
    if entry.entry is None or entry.table is None:
        return entry
    if strict and entry.entry.submission is None:
        expected = "the file that kgbench submit writes"
        entry.add(Finding("file", None, expected, "it is missing"), document=SUBMISSION)
    for document, findings in _alone(entry.entry, entry.table, hashes, strict):
        entry.add(*findings, document=document)
    entry.add(*others.outdated(entry.folder, entry.entry.result.identity), document=RECORD)
    if strict and entry.home is not None:
        entry.add(*place_findings(entry.entry))
    record = entry.entry.result
    if entry.accepted:  # of the facts and sites that are shipped
        entry.add(*answer_findings(record, entry.table), document=FACTS)
        entry.add(*map_findings(record), document=RECORD)
    if entry.accepted:
        try:
            facts = with_derived(entry.table)
            made = with_figures(record, facts, record.metric)
            record = judged_anew(made, planted_of(record, facts))
            entry.entry = replace(entry.entry, result=record)
        except Exception as error:  # untrusted rows can raise any error
            clause = f"no figures can be made of them ({type(error).__name__}: {{}})"
            entry.add(Finding("rows", str(error), "", clause), document=FACTS)
    _compare(entry, others)
    return entry


def _alone(
    entry: Entry, table: pa.Table, hashes: Mapping[str, str], strict: bool
) -> Iterator[tuple[str, Iterable[Finding]]]:
    """Findings on an entry's documents and rows by themselves.

    Args:
        entry: The entry.
        table: Its per-fact rows, sorted.
        hashes: Of its documents and rows.
        strict: As of `validate`.
    """
    record, dataset = entry.result, known_dataset(entry.result)
    yield FACTS, row_findings(table)
    yield FACTS, table_findings(record, table, dataset)
    yield RECORD, input_findings(record, dataset, strict)
    yield RECORD, method_findings(record, strict)
    yield RECORD, ranking_findings(record)
    yield RECORD, cost_findings(record, table)
    if strict:
        yield RECORD, suite_findings(record)
    if entry.submission is not None:
        yield SUBMISSION, part_findings(entry.submission, record, hashes)
        yield SUBMISSION, submission_findings(entry.submission, record)
    if entry.verification is not None:
        yield VERIFICATION, part_findings(entry.verification, record, hashes)
        yield VERIFICATION, verification_findings(entry.verification, record, table)


def _compare(entry: CheckedEntry, others: Others) -> None:
    """Compare an entry that is in order with those before it, up to the first refusal."""
    if entry.entry is not None and entry.table is not None and entry.accepted:
        for document, finding in others.compared(entry.entry, entry.table):
            entry.add(finding, document=document)
            if finding.refuses:
                return
