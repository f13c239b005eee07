"""Checks of results for the board, without any model; submitted code is never run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from kgbench.errors import DataError, InputError
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.packs import inside_pack
from kgbench.leaderboard.sandbox import SANDBOX
from kgbench.leaderboard.submission import Submission, Verification
from kgbench.leaderboard.validate.board import (
    Others,
    check_hashes,
    check_place,
    check_submission,
    check_verification,
    check_written,
)
from kgbench.leaderboard.validate.files import (
    EntryFiles,
    Finding,
    folders_below,
    in_file,
    read_part,
    refusals,
    shown,
)
from kgbench.leaderboard.validate.known import dataset_of, own_facts, pair_of, shipped_sites
from kgbench.leaderboard.validate.record import (
    check_cost,
    check_figures,
    check_planted,
    check_record,
    check_sites,
)
from kgbench.leaderboard.validate.rows import (
    check_answers,
    check_configurations,
    check_rows,
    check_scores,
)
from kgbench.records import FACTS_SCHEMA, Record
from kgbench.records.fact_rows import STORED, in_order

__all__ = ["CheckedEntry", "Finding", "check_folder", "validate", "validate_folders"]


@dataclass(frozen=True)
class CheckedEntry:
    """One entry, as far as it reads, and what was found in it."""

    folder: str
    findings: tuple[Finding, ...]
    record: Record | None = None
    table: pa.Table | None = None
    submission: Submission | None = None
    entry: Entry | None = None
    """What a board shows of it."""

    @property
    def accepted(self) -> bool:
        """Whether nothing in it is refused."""
        return not refusals(self.findings)


def validate(
    path: Path, strict: bool = False, board: Path | None = None, withdrawn: Collection[str] = ()
) -> Iterator[CheckedEntry]:
    """Check an entry, a pack or a folder of entries, one entry after the other.

    With `strict` and `board`, a folder of entries is taken for the whole board as it is to be:
    each entry that is gone from it is a finding.

    Args:
        path: As of `folders_below`.
        strict: Whether results are refused too that are of unknown data or models, or come without
            a submission.
        board: Entries that are on the board already, which are believed.
        withdrawn: Entries of `board`, or methods, that are taken from the board.

    Raises:
        InputError: There is no such path, or it is none of these; nothing on the board has the name
            of what is withdrawn.
    """
    single = inside_pack(path) is not None or path.name == RECORD or (path / RECORD).exists()
    folders = folders_below(path, strict)
    yield from validate_folders(folders, strict, board, withdrawn, whole=strict and not single)


def validate_folders(
    folders: Iterable[EntryFiles],
    strict: bool,
    board: Path | None = None,
    withdrawn: Collection[str] = (),
    whole: bool = False,
) -> Iterator[CheckedEntry]:
    """Check entries, each alone and against those before it; arguments as of `validate`.

    Args:
        folders: The entries.
        strict: As of `validate`.
        board: As of `validate`.
        withdrawn: As of `validate`.
        whole: Whether these are all entries that the board is to have.
    """
    SANDBOX.start()
    others = Others(board=None if board is None else {})
    names: set[str] = set()
    if board is not None and any(board.glob("*")):
        for known in folders_below(board, strict=False):
            names |= _seen(known, others, withdrawn)
    if unknown := sorted(set(withdrawn) - names):
        raise InputError(f"{unknown[0]!r} is neither an entry nor a method of {str(board)!r}")
    left = dict.fromkeys(others.board or ())
    met: set[str] = set()
    for folder in folders:
        left.pop(folder.name, None)
        if folder.name.casefold() in met:
            folder.add([Finding("name", "another entry has this name", "each entry once")])
        met.add(folder.name.casefold())
        yield _guarded(folder, others, strict)
    for name in left if whole else ():
        expected = f"every entry of the board, or --withdraw {name} by those who keep it"
        gone = Finding("entry", "it is on the board, and gone here", expected, file=name)
        yield CheckedEntry(name, (gone,))


def _seen(folder: EntryFiles, others: Others, withdrawn: Collection[str]) -> set[str]:
    """Add an entry of the board to the others, unless it is withdrawn.

    Returns:
        Names under which it can be withdrawn.
    """
    read = _check_files(folder, strict=False)
    names = {folder.name, *([read.submission.name] if read.submission else ())}
    if names.isdisjoint(withdrawn):
        assert others.board is not None
        others.board[folder.name] = folder.hashes()
        if read.accepted and read.record is not None:
            others.compare(folder.name, read.record, read.table, read.submission)
    return names


def _guarded(folder: EntryFiles, others: Others, strict: bool) -> CheckedEntry:
    """Check one entry; an error of a check is a finding, not a pass and not a traceback."""
    try:
        return check_folder(folder, others, strict)
    except Exception as error:  # whatever untrusted bytes make of the checks is a finding
        wrong = f"it cannot be checked ({type(error).__name__}: {shown(str(error))})"
        finding = Finding("content", wrong, file=folder.name)
        return CheckedEntry(folder.name, (*folder.findings, finding))


def check_folder(folder: EntryFiles, others: Others, strict: bool) -> CheckedEntry:
    """Check one entry.

    Args:
        folder: Its files.
        others: Entries before it; where it is in order, it is one of them from now on.
        strict: As of `validate`.
    """
    read = _check_files(folder, strict)
    record, table = read.record, read.table
    findings = [*read.findings, *others.replaced(folder)]
    if record is not None:
        checked = list(check_configurations(record))
        checked += check_record(record, strict) if not refusals(checked) else []
        findings += in_file(folder.at(RECORD), checked)
        findings += others.outdated(folder, record)
        if strict:
            findings += in_file(folder.name, check_place(folder, record, read.submission))
        if table is not None:
            findings += _of_both(record, table, folder, sound=not refusals(findings))
        if not refusals(findings):
            findings += others.compare(folder.name, record, table, read.submission)
    return replace(read, findings=tuple(findings))


def _check_files(folder: EntryFiles, strict: bool) -> CheckedEntry:
    """Read the files of an entry, each checked by itself, and those that go with the record."""
    record = table = submission = verification = entry = None
    files = folder.files
    if RECORD in files:
        record, findings = read_part(files[RECORD], Record)
        folder.add(findings, RECORD)
    if FACTS in files:
        try:
            table = SANDBOX.read(files[FACTS], (STORED, FACTS_SCHEMA))
            folder.add(check_scores(table), FACTS)
            table = in_order(table)
        except DataError as error:
            expected = "a facts.parquet as kgbench eval writes it"
            folder.add([Finding("Parquet", str(error), expected)], FACTS)
    if SUBMISSION in files:
        submission, findings = read_part(files[SUBMISSION], Submission)
        if record and submission:
            findings += check_submission(record, submission)
        if submission and strict:
            findings += check_hashes(submission, files)
            findings += check_written(submission, files[SUBMISSION])
        folder.add(findings, SUBMISSION)
    elif strict and files and all(f.file != folder.at(SUBMISSION) for f in folder.findings):
        missing = Finding("file", "it is missing", "the file that kgbench submit writes")
        folder.add([missing], SUBMISSION)
    if VERIFICATION in files:
        verification, findings = read_part(files[VERIFICATION], Verification)
        if verification and strict:
            findings += check_written(verification, files[VERIFICATION])
        if record and verification:
            findings += check_verification(record, verification, files)
        folder.add(findings, VERIFICATION)
    if record is not None:
        place = folder.path or (folder.pack or Path()) / folder.name
        packed = files if folder.path is None else None
        entry = Entry(place, record, submission, verification, packed)
    return CheckedEntry(folder.name, tuple(folder.findings), record, table, submission, entry)


def _of_both(record: Record, table: pa.Table, folder: EntryFiles, sound: bool) -> list[Finding]:
    """A record against its per-fact rows; figures are recomputed where all else is sound."""
    at, rows_at = folder.at(RECORD), folder.at(FACTS)
    dataset, facts = dataset_of(record), None
    if dataset is not None:
        facts = tuple(fact.id for fact in dataset.facts[: record.identity.limit])
    findings = in_file(rows_at, check_rows(record, table, facts))
    findings += in_file(at, check_cost(record, table))
    if refusals(findings) or not sound:
        return findings
    pair = pair_of(record)
    if pair is not None and dataset is not None and dataset is own_facts(record.model):
        findings += in_file(rows_at, check_answers(record, table))
    findings += in_file(at, check_figures(record, table))
    if pair is None or dataset is None:
        return findings
    if sites := shipped_sites(pair, record.identity.prompts):
        findings += in_file(at, check_sites(record, sites))
        if record.planted is not None and record.identity.truth is not None:
            findings += in_file(at, check_planted(record, pair, sites))
    return findings
