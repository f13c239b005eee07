"""Checks of results for the board, without any model; submitted code is never run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from kgbench.errors import InputError
from kgbench.leaderboard.folders import inside_folder
from kgbench.leaderboard.limits import FACTS, RECORD
from kgbench.leaderboard.validate.board import Others, part_findings
from kgbench.leaderboard.validate.files import (
    CheckedEntry,
    Finding,
    entries_below,
    entry_of_method,
)
from kgbench.leaderboard.validate.record import record_findings
from kgbench.leaderboard.validate.rows import row_findings

__all__ = ["CheckedEntry", "Finding", "check_entry", "validate", "validate_entries"]


def validate(
    path: Path, strict: bool = False, board: Path | None = None, withdrawn: Collection[str] = ()
) -> Iterator[CheckedEntry]:
    """Check a run, the entries of a method or those of a board, one entry after the other.

    With `strict` and `board`, a folder of entries is taken for the whole board as it is to be:
    each entry that is gone from it is a finding.

    Args:
        path: As of `entries_below`, or a method folder with the name of an entry after it.
        strict: Whether results are refused too that are of unknown data or models, or come without
            a submission.
        board: Entries that are on the board already, which are believed.
        withdrawn: Entries of `board`, or methods, that are taken from the board.

    Raises:
        InputError: There is no such path, or it is none of these; nothing on the board has the name
            of what is withdrawn.
    """
    folder, name = inside_folder(path) or (None, "")
    many = folder is None and path.name != RECORD and not (path / RECORD).exists()
    entries = entry_of_method(folder, name) if folder and name else entries_below(path, strict)
    yield from validate_entries(entries, strict, board, withdrawn, complete=strict and many)


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
    for before in entries_below(board, strict=False) if board and any(board.glob("*/*")) else ():
        sent = before.parse()
        aliases = {before.folder, sent.method if sent else before.folder}
        names |= aliases
        if sent is not None and others.board is not None and aliases.isdisjoint(withdrawn):
            others.board[before.folder] = sent.hashes
            others.compared(sent)
    if unknown := sorted(set(withdrawn) - names):
        raise InputError(f"{unknown[0]!r} is neither an entry nor a method of {str(board)!r}")
    left, met = dict.fromkeys(others.board or ()), set()
    for entry in entries:
        left.pop(entry.folder, None)
        if entry.folder.casefold() in met:
            entry.add(Finding("", "name", None, "each entry once", "another entry has this name"))
        met.add(entry.folder.casefold())
        try:
            yield check_entry(entry, others, strict)
        except Exception as error:  # whatever untrusted bytes make of the checks is a finding
            clause = f"it cannot be checked ({type(error).__name__}: {{}})"
            entry.add(Finding("", "content", str(error), "", clause))
            yield entry
    for name in left if complete else ():
        gone = CheckedEntry(name)
        expected = f"every entry of the board, or --withdraw {name} by those who keep it"
        gone.add(Finding("", "entry", None, expected, "it is on the board, and gone here"))
        yield gone


def check_entry(entry: CheckedEntry, others: Others, strict: bool) -> CheckedEntry:
    """Check one entry.

    Args:
        entry: Its documents and rows.
        others: Entries before it; where it is in order, it is one of them from now on.
        strict: As of `validate`.
    """
    if (sent := entry.parse()) is None:
        return entry
    alone = record_findings(sent, strict), row_findings(sent)
    entry.add(*chain(*alone, others.changed(sent), part_findings(sent, strict)))
    if entry.accepted:
        try:
            entry.entry = replace(sent, result=sent.record, home=entry.home or sent.home)
        except Exception as error:  # untrusted rows can raise any error
            clause = f"no figures can be made of them ({type(error).__name__}: {{}})"
            entry.add(Finding(FACTS, "rows", str(error), "", clause))
    if entry.accepted:
        entry.add(*others.compared(sent))
    return entry
