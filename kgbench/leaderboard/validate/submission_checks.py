"""Submission and verification against the record: names, code, hashes, and the place in a pack."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from hashlib import sha256
from math import ceil

from kgbench.leaderboard.entries import entry_name, pack_name, suites_of
from kgbench.leaderboard.limits import FACTS, RECORD
from kgbench.leaderboard.submission import SAMPLE, Submission, Verification
from kgbench.leaderboard.validate.entry_files import EntryFiles, Finding, shown
from kgbench.leaderboard.validate.known import known
from kgbench.records import Record, canonical_json
from kgbench.stats.repetition import TIES, TOLERANCES

__all__ = [
    "base_name",
    "check_hashes",
    "check_place",
    "check_submission",
    "check_verification",
    "check_written",
    "method_key",
    "origin",
    "skeleton",
]

_ARGUMENTS = re.compile(r"(?P<base>[^()]*[^() ]) \((?P<arguments>[^()]+)\)")
"""A name that ends with arguments in brackets."""

_LOOKALIKES = str.maketrans("01234578!|$@", "olzeastbllsa", " ._+=,()-")
"""What is read as a letter, and the marks between words, which are left out."""

_CLAIMS = ("verified", "published", "reported", "yours", "official", "baseline", "privileged")
"""Words that the board itself uses of entries."""


def check_submission(record: Record, submission: Submission) -> Iterator[Finding]:
    """The submission goes with the record, and its name and code with the method.

    Args:
        record: The record of the entry.
        submission: The submission.
    """
    method, name = record.identity.localizer, submission.name
    builtin = known().localizers.get(method.name)
    if submission.record != record.id:
        wrong = f"{shown(submission.record)} is not the record beside it"
        yield Finding("record", wrong, record.id)
    if builtin is not None and builtin.baseline and name != method.name:
        wrong = f"{shown(name)} is the built-in {method.name}, a point of reference"
        yield Finding("name", wrong, f"the name {method.name}")
    if name != name.strip():
        yield Finding("name", f"{shown(name)} ends with a blank", "a name without")
    yield from _check_name(record, name)
    ours = f"kgbench=={record.provenance.kgbench}"
    if builtin is not None:
        if submission.code != ours:
            code = shown(submission.code)
            wrong = f"{code} is not where the built-in {method.name} ran from"
            yield Finding("code", wrong, shown(ours)[1:-1])
        return
    if submission.code.startswith("kgbench=="):
        wrong = f"kgbench does not hold {shown(method.name)}"
        yield Finding("code", wrong, "URL@COMMIT or PACKAGE==VERSION of the method's own code")
    truth = record.identity.truth
    secrets = [] if truth is None else [truth.plant, truth.decoy]
    for key, value in method.parameters.items():
        if key in ("truth", "graded") or (value is not None and value in secrets):
            wrong = (
                f"the method is told where the facts were planted, by its parameter {shown(key)}"
            )
            expected = (
                "a method that does not know the truth; oracle stands on the board for those "
            )
            yield Finding("name", wrong, f"{expected}that do")
            return


def _check_name(record: Record, name: str) -> Iterator[Finding]:
    """A name is neither a built-in method's nor a claim, with its own arguments in brackets."""
    method, base = record.identity.localizer, base_name(name)
    for owner in known().localizers:
        if skeleton(base) == skeleton(owner) and (base, method.name) != (owner, owner):
            what = "is a built-in method's" if base == owner else f"looks like the built-in {owner}"
            wrong = f"{shown(name)} {what}, and this is another"
            yield Finding("name", wrong, "a name of its own")
    words = {_letters(word) for word in re.split(r"[^A-Za-z0-9]+", name)}
    for claim in _CLAIMS:
        if _letters(claim) in words:
            expected = "a name that says nothing of who ran it"
            yield Finding("name", f"{shown(name)} holds the word {claim!r}", expected)
    if match := _ARGUMENTS.fullmatch(name):
        given = set()
        for key, value in method.parameters.items():
            given |= {f"{key}={value}", f"{key}={json.dumps(value)}"}
        for argument in re.split(r", *", match["arguments"]):
            if argument not in given:
                wrong = f"{shown(argument)} is no argument of the method"
                yield Finding("name", wrong, "arguments of the run in brackets, key=value")
    elif "(" in name or ")" in name:
        yield Finding("name", f"{shown(name)} has brackets", "brackets for arguments only")


def check_verification(
    record: Record, verification: Verification, files: Mapping[str, bytes]
) -> Iterator[Finding]:
    """The verification is of these very files, and its sample agreed within the usual tolerance.

    Args:
        record: The record of the entry.
        verification: The verification.
        files: The files of the entry.
    """
    own, what = verification, record.identity
    if own.record != record.id:
        yield Finding("record", f"{shown(own.record)} is not the record beside it", record.id)
    for field, name in (("record_hash", RECORD), ("facts_hash", FACTS)):
        stated, hash = getattr(own, field), sha256(files.get(name, b"")).hexdigest()
        if stated not in (hash, None):
            yield Finding(field, f"{shown(stated)} is not the hash of {name}", hash)
    allowed = TOLERANCES.get(what.dtype, 0.0)
    n = min(what.limit or what.dataset.n, what.dataset.n)
    rows = own.n * sum(row.applicable for row in record.rows)
    most = ceil(TIES * own.rows)
    laws = (
        ("tolerance", own.tolerance <= allowed, f"at most {allowed} nats for {shown(what.dtype)}"),
        (
            "largest_difference",
            own.largest_difference <= own.tolerance,
            f"at most {own.tolerance}, the tolerance",
        ),
        ("n", own.n <= n, f"at most {n}, the facts of the record"),
        ("rows", own.rows == rows, f"{rows}: {own.n} facts under each configuration and prompt"),
        ("changed_hits", own.changed_hits <= most, f"at most {most}, as near ties change"),
    )
    for field, holds, expected in laws:
        if not holds:
            yield Finding(field, f"it is {getattr(own, field)}", expected)
    if not own.counts(record):
        wrong = f"only {own.about} of {n} were run again"
        expected = f"all facts, or {SAMPLE} drawn afterwards; it stands as self-reported"
        yield Finding("n", wrong, expected, refuses=False)


def base_name(name: str) -> str:
    """A name on the board without the arguments in brackets at its end."""
    found = _ARGUMENTS.fullmatch(name)
    return found["base"] if found else name


def skeleton(name: str) -> str:
    """Letters of a name as they look: names of equal skeletons are taken for each other."""
    return _letters(name).replace("rn", "m").replace("vv", "w")


def _letters(word: str) -> str:
    """A word without case, marks, and digits that look like letters."""
    return unicodedata.normalize("NFKC", word).casefold().translate(_LOOKALIKES).replace("i", "l")


def origin(code: str) -> str:
    """Repository or package of a submission's code, whatever the commit or version."""
    package, _, version = code.partition("==")
    if version:
        return re.sub(r"[-_.]+", "-", package).casefold()
    return code.rpartition("@")[0].casefold().rstrip("/").removesuffix(".git")


def method_key(record: Record) -> tuple[object, ...]:
    """What a name on the board denotes: method and parameters, without seeds and ground truth."""
    method = record.identity.localizer
    version = " ".join(part for part in method.version.split(" ") if part != "scan")
    kept = {
        key: value
        for key, value in method.parameters.items()
        if key not in ("seed", "truth", "graded")
    }
    return method.name, version, canonical_json(kept)


# --------------------------------------------------------------------------------- bytes and place


def check_written(part: Submission | Verification, data: bytes) -> Iterator[Finding]:
    """A smaller file is as kgbench writes it.

    Args:
        part: The content of the file.
        data: Its bytes.
    """
    if data != part.to_json().encode():
        expected = "the file as kgbench submit or kgbench verify wrote it"
        yield Finding("content", "it is not as kgbench writes it", expected)


def check_hashes(submission: Submission, files: Mapping[str, bytes]) -> Iterator[Finding]:
    """The record and its rows have the hashes that the submission states.

    Args:
        submission: The submission.
        files: The files of the entry.
    """
    for name in (RECORD, FACTS):
        stated = submission.files.get(name)
        if name in files and stated != (hash := sha256(files[name]).hexdigest()):
            wrong = f"{shown(stated)} is not the hash of {name}, which was changed afterwards"
            if stated is None:
                wrong = "its hash is missing"
            yield Finding(f"files.{name}", wrong, hash)
    for name in sorted(set(submission.files) - {RECORD, FACTS}):
        yield Finding(f"files.{shown(name)}", "it is no file of a result", f"{RECORD} and {FACTS}")


def check_place(
    folder: EntryFiles, record: Record, submission: Submission | None
) -> Iterator[Finding]:
    """A packed entry is in the pack of its method and board, under its own name.

    Args:
        folder: The entry.
        record: Its record.
        submission: What goes with it.
    """
    if folder.pack is None or submission is None or not suites_of(record):
        return
    place = "/".join(folder.pack.absolute().parts[-2:])
    if place != (expected := pack_name(record, submission.name)):
        yield Finding("pack", f"it is in {shown(place)}", expected)
    if folder.name != (expected := entry_name(record, submission.name)):
        yield Finding("name", "it is not the entry's", expected)
