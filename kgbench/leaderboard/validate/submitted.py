"""What goes with a record: who says it, of which code, and who ran it again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

from kgbench.leaderboard.submission import Submission, Verification
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.leaderboard.validate.known import known
from kgbench.records import Record, canonical_json

__all__ = ["check_submission", "check_verification", "folded", "method_key"]


def check_submission(record: Record, submission: Submission, at: str) -> Iterator[Finding]:
    """The submission goes with the record, and its name and code with the method.

    Args:
        record: The record beside it.
        submission: The submission.
        at: How findings name the file.
    """
    method, builtin = record.identity.localizer, known().localizers.get(record.identity.localizer.name)
    if submission.record != record.id:
        yield Finding(at, "record", f"{shown(submission.record)} is not the record beside it", record.id)
    if builtin is not None and builtin.baseline and submission.name != method.name:
        yield Finding(
            at, "name", f"{shown(submission.name)} is the built-in {method.name}, a point of reference", f"the name {method.name}"
        )
    if folded(submission.name) in known().localizers and submission.name != method.name:
        yield Finding(at, "name", f"{shown(submission.name)} is a built-in method's, and this is another", "a name of its own")
    if submission.name != submission.name.strip():
        yield Finding(at, "name", f"{shown(submission.name)} ends with a blank", "a name without")
    ours = f"kgbench=={record.provenance.kgbench}"
    if builtin is not None and submission.code != ours:
        yield Finding(at, "code", f"{shown(submission.code)} is not where the built-in {method.name} ran from", shown(ours)[1:-1])
    if builtin is None and submission.code.startswith("kgbench=="):
        yield Finding(at, "code", f"kgbench does not hold {shown(method.name)}", "URL@COMMIT or PACKAGE==VERSION of the method's own code")
    if builtin is None and (told := _told(record)):
        wrong = f"the method is told where the facts were planted, by its parameter {shown(told)}"
        yield Finding(at, "name", wrong, "a method that does not know the truth; oracle stands on the board for those that do")


def _told(record: Record) -> str | None:
    """The parameter by which a method knows the truth."""
    truth, parameters = record.identity.truth, record.identity.localizer.parameters
    secrets = [text for text in (truth.plant, truth.decoy) if text is not None] if truth is not None else []
    return next((key for key, value in parameters.items() if key == "truth" or value in secrets), None)


def check_verification(record: Record, verification: Verification, facts: bytes, at: str) -> Iterator[Finding]:
    """The verification is of this record and of these rows, and its sample agreed.

    Args:
        record: The record beside it.
        verification: The verification.
        facts: The bytes of facts.parquet.
        at: How findings name the file.
    """
    if verification.record != record.id:
        yield Finding(at, "record", f"{shown(verification.record)} is not the record beside it", record.id)
    if verification.facts_hash != (found := sha256(facts).hexdigest()):
        yield Finding(at, "facts_hash", f"{shown(verification.facts_hash)} is not the hash of facts.parquet", found)
    if verification.largest_difference > verification.tolerance:
        yield Finding(
            at, "largest_difference", f"it is {verification.largest_difference}", f"at most {verification.tolerance}, the tolerance"
        )
    n = min(record.identity.limit or record.identity.dataset.n, record.identity.dataset.n)
    if verification.n > n:
        yield Finding(at, "n", f"it is {verification.n}", f"at most {n}, the facts of the record")


def folded(name: str) -> str:
    """What names on the board are told apart by: neither case nor the marks between words."""
    return re.sub(r"[ ._-]+", "_", name.casefold()).strip("_")


def method_key(record: Record) -> tuple[object, ...]:
    """What one name on the board stands for: a method and its parameters, but for seeds and what it is told of a plant."""
    method = record.identity.localizer
    version = " ".join(part for part in method.version.split(" ") if part != "scan")
    kept = {key: value for key, value in method.parameters.items() if key not in ("seed", "truth")}
    return method.name, version, canonical_json(kept)
