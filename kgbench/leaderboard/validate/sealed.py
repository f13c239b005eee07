"""Whether an entry's files are, to the byte, those that were submitted, and in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

from kgbench.leaderboard.entries import entry_name, pack_name, suites_of
from kgbench.leaderboard.limits import FACTS, RECORD
from kgbench.leaderboard.submission import Submission, Verification
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.leaderboard.validate.folders import Folder
from kgbench.records import Record

__all__ = ["check_hashes", "check_place", "check_written"]


def check_written(part: Submission | Verification, data: bytes, at: str) -> Iterator[Finding]:
    """A smaller file is as kgbench writes it.

    Args:
        part: What the file says.
        data: Its bytes.
        at: How findings name it.
    """
    if data != part.to_json().encode():
        yield Finding(
            at,
            "content",
            "it is not as kgbench writes it",
            "the file as kgbench submit or kgbench verify wrote it",
        )


def check_hashes(submission: Submission, files: Mapping[str, bytes], at: str) -> Iterator[Finding]:
    """The record and its rows have the hashes that the submission says.

    Args:
        submission: The submission.
        files: The files of the entry.
        at: How findings name submission.json.
    """
    for name in (RECORD, FACTS):
        told = submission.files.get(name)
        if name in files and told != (found := sha256(files[name]).hexdigest()):
            wrong = (
                "its hash is missing"
                if told is None
                else f"{shown(told)} is not the hash of {name}, which was changed afterwards"
            )
            yield Finding(at, f"files.{name}", wrong, found)
    for name in sorted(set(submission.files) - {RECORD, FACTS}):
        yield Finding(
            at, f"files.{shown(name)}", "it is no file of a result", f"{RECORD} and {FACTS}"
        )


def check_place(folder: Folder, record: Record, submission: Submission | None) -> Iterator[Finding]:
    """A packed entry is in the pack of its method and board, under its own name.

    Args:
        folder: The entry.
        record: Its record.
        submission: What goes with it.
    """
    if folder.pack is None or submission is None or not suites_of(record):
        return
    found = "/".join(folder.pack.absolute().parts[-2:])
    if found != (expected := pack_name(record, submission.name)):
        yield Finding(folder.name, "pack", f"it is in {shown(found)}", expected)
    if folder.name != (expected := entry_name(record, submission.name)):
        yield Finding(folder.name, "name", "it is not the entry's", expected)
