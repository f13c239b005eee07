"""Checks of results for the board, without any model; submitted code is never run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from kgbench.errors import InputError
from kgbench.leaderboard.entries import Submission, Verification
from kgbench.leaderboard.folders import inside_folder
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.sandbox import SANDBOX
from kgbench.leaderboard.validate.board import (
    Others,
    check_place,
    check_submission,
    check_verification,
)
from kgbench.leaderboard.validate.files import (
    CheckedEntry,
    Finding,
    entries_below,
    shown,
)
from kgbench.leaderboard.validate.record import check_result, check_scores, check_with_rows
from kgbench.records import Result
from kgbench.records.fact_rows import in_order

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
    yield from validate_entries(entries, strict, board, withdrawn, whole=strict and not single)


def validate_entries(
    entries: Iterable[CheckedEntry],
    strict: bool,
    board: Path | None = None,
    withdrawn: Collection[str] = (),
    whole: bool = False,
) -> Iterator[CheckedEntry]:
    """Check entries, each alone and against those before it; arguments as of `validate`.

    Args:
        entries: Their files.
        strict: As of `validate`.
        board: As of `validate`.
        withdrawn: As of `validate`.
        whole: Whether these are all entries that the board is to have.
    """
    SANDBOX.start()
    others = Others(board=None if board is None else {})
    names: set[str] = set()
    if board is not None and any(board.glob("*")):
        for known in entries_below(board, strict=False):
            names |= _add_known(known, others, withdrawn)
    if unknown := sorted(set(withdrawn) - names):
        raise InputError(f"{unknown[0]!r} is neither an entry nor a method of {str(board)!r}")
    left = dict.fromkeys(others.board or ())
    met: set[str] = set()
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
    for name in left if whole else ():
        gone = CheckedEntry(name)
        expected = f"every entry of the board, or --withdraw {name} by those who keep it"
        gone.add([Finding("entry", "it is on the board, and gone here", expected)])
        yield gone


def _add_known(entry: CheckedEntry, others: Others, withdrawn: Collection[str]) -> set[str]:
    """Add an entry of the board to the others, unless it is withdrawn.

    Returns:
        Names under which it can be withdrawn.
    """
    _read_documents(entry, strict=False)
    names = {entry.folder, *([entry.submission.name] if entry.submission else ())}
    if names.isdisjoint(withdrawn):
        assert others.board is not None
        others.board[entry.folder] = entry.hashes()
        if entry.accepted and entry.result is not None:
            others.compare(entry, entry.result)
    return names


def check_entry(entry: CheckedEntry, others: Others, strict: bool) -> CheckedEntry:
    """Check one entry.

    Args:
        entry: Its documents and rows.
        others: Entries before it; where it is in order, it is one of them from now on.
        strict: As of `validate`.
    """
    _read_documents(entry, strict)
    others.replaced(entry)
    if (record := entry.result) is None:
        return entry
    entry.add(check_result(record, strict), RECORD)
    if strict:
        entry.add(check_place(entry, record))
    if entry.table is not None:
        check_with_rows(entry, record, entry.table)
    others.outdated(entry, record)
    if entry.accepted:
        others.compare(entry, record)
    return entry


def _read_documents(entry: CheckedEntry, strict: bool) -> None:
    """Read the documents of an entry, each checked by itself, and those that go with the record."""
    record = entry.result = entry.read(RECORD, Result)
    if entry.table is not None:
        entry.add(check_scores(entry.table), FACTS)
        entry.table = in_order(entry.table)
    hashes = entry.hashes()
    submission = entry.submission = entry.read(SUBMISSION, Submission)
    if submission is not None:
        entry.add(check_submission(submission, record, hashes), SUBMISSION)
    elif strict and all(
        finding.file != f"{entry.folder}/{SUBMISSION}" for finding in entry.findings
    ):
        missing = Finding("file", "it is missing", "the file that kgbench submit writes")
        entry.add([missing], SUBMISSION)
    verification = entry.verification = entry.read(VERIFICATION, Verification)
    if verification is not None:
        entry.add(check_verification(verification, record, entry.table, hashes), VERIFICATION)
