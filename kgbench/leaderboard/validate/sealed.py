"""Whether an entry's files are, to the byte, those that were submitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256

from kgbench.leaderboard.entries import FACTS, RECORD
from kgbench.leaderboard.submission import Submission, Verification
from kgbench.leaderboard.validate.findings import Finding, shown

__all__ = ["check_hashes", "check_written"]


def check_written(part: Submission | Verification, data: bytes, at: str) -> Iterator[Finding]:
    """A smaller file is as kgbench writes it.

    Args:
        part: What the file says.
        data: Its bytes.
        at: How findings name it.
    """
    if data != part.to_json().encode():
        yield Finding(at, "content", "it is not as kgbench writes it", "the file as kgbench submit or kgbench verify wrote it")


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
            wrong = "its hash is missing" if told is None else f"{shown(told)} is not the hash of {name}, which was changed afterwards"
            yield Finding(at, f"files.{name}", wrong, found)
    for name in sorted(set(submission.files) - {RECORD, FACTS}):
        yield Finding(at, f"files.{shown(name)}", "it is no file of a result", f"{RECORD} and {FACTS}")
