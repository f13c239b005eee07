"""All checks of a path: of each entry by itself, and of all of them together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from kgbench.errors import DataError, InputError
from kgbench.leaderboard.hits import METRIC
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.packs import inside_pack
from kgbench.leaderboard.sandbox import SANDBOX
from kgbench.leaderboard.submission import Submission, Verification
from kgbench.leaderboard.validate.board_checks import Others
from kgbench.leaderboard.validate.documents import read_part, read_record_json
from kgbench.leaderboard.validate.entry_files import (
    EntryFiles,
    Finding,
    folders_below,
    refusals,
    shown,
)
from kgbench.leaderboard.validate.known import own_facts
from kgbench.leaderboard.validate.recomputation import (
    check_figures,
    check_planted,
    check_sites,
    shipped_sites,
)
from kgbench.leaderboard.validate.record_checks import (
    check_cost,
    check_data,
    check_method,
    check_pair,
    check_provenance,
    check_ranking,
    check_suite,
    check_truth,
    dataset_of,
    pair_of,
)
from kgbench.leaderboard.validate.row_checks import (
    check_answers,
    check_configurations,
    check_rows,
    check_scores,
)
from kgbench.leaderboard.validate.submission_checks import (
    check_hashes,
    check_place,
    check_submission,
    check_verification,
    check_written,
)
from kgbench.records import FACTS_SCHEMA, Record
from kgbench.records.fact_rows import STORED

__all__ = ["CheckedEntry", "check_files", "check_folder", "validate", "validate_folders"]


@dataclass(frozen=True)
class CheckedEntry:
    """One entry, as far as it reads, and what was found in it."""

    folder: str
    findings: tuple[Finding, ...]
    record: Record | None = None
    table: pa.Table | None = None
    submission: Submission | None = None

    @property
    def accepted(self) -> bool:
        """Whether nothing in it is refused."""
        return not refusals(list(self.findings))


def validate(
    path: Path, strict: bool = False, beside: Path | None = None, withdrawn: Collection[str] = ()
) -> Iterator[CheckedEntry]:
    """Check an entry, a pack or a folder of entries, one entry after the other.

    With `strict` and `beside`, a folder of entries is taken for the whole board as it is to be:
    each entry that is gone from it is a finding.

    Args:
        path: As of `folders_below`.
        strict: Whether results are refused too that are of unknown data or models, or come without
            a submission.
        beside: Entries that are on the board already, which are believed.
        withdrawn: Entries of `beside`, or methods, that are taken from the board.

    Raises:
        InputError: There is no such path, or it is none of these; nothing on the board has the name
            of what is withdrawn.
    """
    single = inside_pack(path) is not None or path.name == RECORD or (path / RECORD).exists()
    folders = folders_below(path, strict)
    yield from validate_folders(folders, strict, beside, withdrawn, whole=strict and not single)


def validate_folders(
    folders: Iterable[EntryFiles],
    strict: bool,
    beside: Path | None = None,
    withdrawn: Collection[str] = (),
    whole: bool = False,
) -> Iterator[CheckedEntry]:
    """Check entries, each alone and against those before it; arguments as of `validate`.

    Args:
        folders: The entries.
        strict: As of `validate`.
        beside: As of `validate`.
        withdrawn: As of `validate`.
        whole: Whether these are all entries that the board is to have.
    """
    SANDBOX.start()
    others = Others(board=None if beside is None else {})
    names: set[str] = set()
    if beside is not None and any(beside.glob("*")):
        for known in folders_below(beside, strict=False):
            names |= _seen(known, others, withdrawn)
    if unknown := sorted(set(withdrawn) - names):
        raise InputError(f"{unknown[0]!r} is neither an entry nor a method of {str(beside)!r}")
    left = dict.fromkeys(others.board or ())
    met: set[str] = set()
    for folder in folders:
        left.pop(folder.name, None)
        if folder.name.casefold() in met:
            wrong = "another entry has this name"
            folder.findings.append(Finding(folder.name, "name", wrong, "each entry once"))
        met.add(folder.name.casefold())
        yield _guarded(folder, others, strict)
    for name in left if whole else ():
        expected = f"every entry of the board, or --withdraw {name} by those who keep it"
        gone = Finding(name, "entry", "it is on the board, and gone here", expected)
        yield CheckedEntry(name, (gone,))


def _seen(folder: EntryFiles, others: Others, withdrawn: Collection[str]) -> set[str]:
    """Add an entry of the board to the others, unless it is withdrawn.

    Returns:
        Names under which it can be withdrawn.
    """
    read = check_files(folder, strict=False)
    names = {folder.name, *([read.submission.name] if read.submission else ())}
    if names.isdisjoint(withdrawn):
        assert others.board is not None
        others.board[folder.name] = EntryFiles(folder.name, folder.hashes())
        if read.accepted and read.record is not None:
            others.compare(folder.name, read.record, read.table, read.submission)
    return names


def _guarded(folder: EntryFiles, others: Others, strict: bool) -> CheckedEntry:
    """Check one entry; an error of a check is a finding, not a pass and not a traceback."""
    try:
        return check_folder(folder, others, strict)
    except (
        Exception
    ) as error:  # whatever untrusted bytes make of the checks is a finding, not a crash
        wrong = f"it cannot be checked ({type(error).__name__}: {shown(str(error))})"
        return CheckedEntry(folder.name, (*folder.findings, Finding(folder.name, "content", wrong)))


def check_folder(folder: EntryFiles, others: Others, strict: bool) -> CheckedEntry:
    """Check one entry.

    Args:
        folder: Its files.
        others: Entries before it; where it is in order, it is one of them from now on.
        strict: As of `validate`.
    """
    read = check_files(folder, strict)
    findings, record, table = [*read.findings, *others.replaced(folder)], read.record, read.table
    if record is not None:
        findings += _of_record(record, folder.at(RECORD), strict)
        findings += others.outdated(folder, record)
        findings += check_place(folder, record, read.submission) if strict else ()
        findings += (
            _of_both(record, table, folder, sound=not refusals(findings))
            if table is not None
            else ()
        )
        if not refusals(findings):
            findings += others.compare(folder.name, record, table, read.submission)
    return replace(read, findings=tuple(findings))


def check_files(folder: EntryFiles, strict: bool) -> CheckedEntry:
    """Read the files of an entry, each checked by itself, and those that go with the record."""
    findings = list(folder.findings)
    record = table = None
    if RECORD in folder.files:
        record, found = read_record_json(folder.files[RECORD], folder.at(RECORD))
        findings += found
    if FACTS in folder.files:
        table, found = _table(folder.files[FACTS], folder.at(FACTS))
        findings += found
    submission, found = _beside(folder, record, strict)
    return CheckedEntry(folder.name, (*findings, *found), record, table, submission)


def _table(data: bytes, at: str) -> tuple[pa.Table | None, list[Finding]]:
    try:
        table = SANDBOX.read(data, (STORED, FACTS_SCHEMA))
    except DataError as error:
        return None, [
            Finding(at, "Parquet", str(error), "a facts.parquet as kgbench eval writes it")
        ]
    return table, check_scores(table, at)


def _beside(
    folder: EntryFiles, record: Record | None, strict: bool
) -> tuple[Submission | None, list[Finding]]:
    """The smaller files of an entry."""
    findings: list[Finding] = []
    submission = None
    if (data := folder.files.get(SUBMISSION)) is not None:
        submission, found = read_part(data, Submission, folder.at(SUBMISSION))
        findings += found
        findings += (
            check_submission(record, submission, folder.at(SUBMISSION))
            if record and submission
            else ()
        )
        if submission and strict:
            findings += check_hashes(submission, folder.files, folder.at(SUBMISSION))
            findings += check_written(submission, data, folder.at(SUBMISSION))
    elif (
        strict
        and folder.files
        and not any(finding.file == folder.at(SUBMISSION) for finding in folder.findings)
    ):
        findings.append(
            Finding(
                folder.at(SUBMISSION),
                "file",
                "it is missing",
                "the file that kgbench submit writes",
            )
        )
    if (data := folder.files.get(VERIFICATION)) is not None:
        verification, found = read_part(data, Verification, folder.at(VERIFICATION))
        findings += found
        findings += (
            check_written(verification, data, folder.at(VERIFICATION))
            if verification and strict
            else ()
        )
        if record and verification:
            findings += check_verification(
                record, verification, folder.files, folder.at(VERIFICATION)
            )
    return submission, findings


def _of_record(record: Record, at: str, strict: bool) -> Iterator[Finding]:
    """Checks of a record alone."""
    found = list(check_configurations(record, at))
    yield from found
    if refusals(found):
        return
    yield from check_data(record, at, strict)
    yield from check_pair(record, at, strict)
    yield from check_truth(record, at, strict)
    yield from check_method(record, at)
    yield from check_ranking(record, at)
    yield from check_provenance(record, at)
    if strict:
        yield from check_suite(record, at)
        if record.metric != METRIC:
            expected = f"{METRIC}: run it again, or kgbench rescore --metric {METRIC}"
            yield Finding(at, "metric", f"ratios are of {shown(record.metric)}", expected)


def _of_both(record: Record, table: pa.Table, folder: EntryFiles, sound: bool) -> Iterator[Finding]:
    """A record against its per-fact rows; figures are recomputed where all else is sound."""
    at = folder.at(RECORD)
    dataset = dataset_of(record)
    facts = (
        tuple(fact.id for fact in dataset.facts[: record.identity.limit])
        if dataset is not None
        else None
    )
    found = [*check_rows(record, table, facts, folder.at(FACTS)), *check_cost(record, table, at)]
    yield from found
    if refusals(found) or not sound:
        return
    pair = pair_of(record)
    if pair is not None and dataset is not None and dataset is own_facts(record.model):
        ids = [fact.id for fact in dataset.facts]
        yield from check_answers(record, table, ids, folder.at(FACTS))
    yield from check_figures(record, table, at)
    own = pair is not None and dataset is not None and shipped_sites(pair, record.identity.prompts)
    if pair is not None and own:
        yield from check_sites(record, own, at)
        if record.planted is not None and record.identity.truth is not None:
            yield from check_planted(record, pair, own, at)
