"""Checks of results for the board, without any model; submitted code is never run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from pathlib import Path

from kgbench.errors import InputError
from kgbench.leaderboard.entries import Submission, Verification
from kgbench.leaderboard.folders import inside_folder
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.sandbox import SANDBOX
from kgbench.leaderboard.validate.board import (
    Others,
    claims,
    part_findings,
    place_findings,
    submission_findings,
    verification_findings,
)
from kgbench.leaderboard.validate.files import CheckedEntry, entries_below
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.leaderboard.validate.known import judged_anew, known_dataset, planted_of
from kgbench.leaderboard.validate.record import (
    SubmittedResult,
    cost_findings,
    input_findings,
    map_findings,
    method_findings,
    ranking_findings,
    suite_findings,
)
from kgbench.leaderboard.validate.rows import answer_findings, row_findings, table_findings
from kgbench.records.fact_rows import in_order, with_derived
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
    SANDBOX.start()
    others, names = Others(board=None if board is None else {}), set()
    for entry in entries_below(board, strict=False) if board and any(board.glob("*")) else ():
        _read(entry)
        aliases = {entry.folder, entry.submission.name if entry.submission else entry.folder}
        names |= aliases
        if others.board is not None and aliases.isdisjoint(withdrawn):
            others.board[entry.folder] = entry.hashes()
            _add(entry, _compared(entry, others))
    if unknown := sorted(set(withdrawn) - names):
        raise InputError(f"{unknown[0]!r} is neither an entry nor a method of {str(board)!r}")
    left, met = dict.fromkeys(others.board or ()), set()
    for entry in entries:
        left.pop(entry.folder, None)
        if entry.folder.casefold() in met:
            entry.add([Finding("name", "another entry has this name", "each entry once")])
        met.add(entry.folder.casefold())
        try:
            yield check_entry(entry, others, strict)
        except Exception as error:  # whatever untrusted bytes make of the checks is a finding
            wrong = f"it cannot be checked ({type(error).__name__}: {shown(str(error))})"
            entry.add([Finding("content", wrong)])
            yield entry
    for name in left if complete else ():
        gone = CheckedEntry(name)
        expected = f"every entry of the board, or --withdraw {name} by those who keep it"
        gone.add([Finding("entry", "it is on the board, and gone here", expected)])
        yield gone


def check_entry(entry: CheckedEntry, others: Others, strict: bool) -> CheckedEntry:
    """Check one entry.

    Args:
        entry: Its documents and rows.
        others: Entries before it; where it is in order, it is one of them from now on.
        strict: As of `validate`.
    """
    _read(entry)
    for document, findings in _alone(entry, others, strict):
        entry.add(findings, document)
    _add(entry, chain(_shipped(entry), _compared(entry, others)))
    return entry


def _read(entry: CheckedEntry) -> None:
    """Read the documents of an entry."""
    entry.result = entry.read(RECORD, SubmittedResult)
    entry.submission = entry.read(SUBMISSION, Submission)
    entry.verification = entry.read(VERIFICATION, Verification)
    if entry.table is not None:
        entry.table = in_order(entry.table)


Checks = Iterator[tuple[str, Iterable[Finding]]]
"""Checks of an entry in turn: the document that each is of, and its findings."""


def _add(entry: CheckedEntry, checks: Checks) -> None:
    """Findings of checks that take for granted what earlier ones found in order."""
    for document, findings in checks if entry.accepted else ():
        entry.add(findings, document)
        if not entry.accepted:
            return


def _alone(entry: CheckedEntry, others: Others, strict: bool) -> Checks:
    """Laws of an entry's documents and rows."""
    record, table, hashes = entry.result, entry.table, entry.hashes()
    submission, verification = entry.submission, entry.verification
    for document in (RECORD, FACTS, SUBMISSION, VERIFICATION):
        yield document, others.replaced(entry.folder, hashes, document)
    if table is not None:
        yield FACTS, row_findings(table)
    if strict and SUBMISSION not in entry.documents:
        expected = "the file that kgbench submit writes"
        yield SUBMISSION, [Finding("file", "it is missing", expected)]
    if record is None:
        return
    dataset = known_dataset(record)
    yield RECORD, input_findings(record, dataset, strict)
    yield RECORD, method_findings(record, strict)
    yield RECORD, ranking_findings(record)
    if strict:
        yield RECORD, suite_findings(record)
    if table is not None:
        yield RECORD, cost_findings(record, table)
        yield FACTS, table_findings(record, table, dataset)
    yield RECORD, others.outdated(entry.folder, record)
    if submission is not None:
        yield SUBMISSION, part_findings(submission, record, hashes)
        yield SUBMISSION, submission_findings(submission, record)
        if strict and entry.home is not None:
            yield "", place_findings(submission, record, entry.home.path / entry.folder)
    if verification is not None:
        yield VERIFICATION, part_findings(verification, record, hashes)
        if table is not None:
            yield VERIFICATION, verification_findings(verification, record, table)


def _shipped(entry: CheckedEntry) -> Checks:
    """An entry that is in order by itself, compared with answers and sites that are shipped."""
    record, table = entry.result, entry.table
    if record is None or table is None:
        return
    yield FACTS, answer_findings(record, table)
    yield RECORD, map_findings(record)
    try:
        facts = with_derived(table)
        made = with_figures(record, facts, record.metric)
        entry.record = judged_anew(made, planted_of(record, facts))
    except Exception as error:  # untrusted rows can raise any error
        wrong = f"no figures can be made of them ({type(error).__name__}: {shown(str(error))})"
        yield FACTS, [Finding("rows", wrong)]


def _compared(entry: CheckedEntry, others: Others) -> Checks:
    """An entry that is in order, compared with those before it."""
    folder, record, table, submission = entry.folder, entry.result, entry.table, entry.submission
    if record is None:
        return
    for claim in claims(record, submission):
        yield claim.document, others.claimed(folder, claim)
    if submission is not None and table is not None:
        yield FACTS, others.copied(folder, record, table, submission.name)
    if table is not None:
        yield FACTS, others.other_answers(folder, record, table)
