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
from kgbench.stats.repeats import TIES, TOLERANCES

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


def check_submission(record: Record, submission: Submission, at: str) -> Iterator[Finding]:
    """The submission goes with the record, and its name and code with the method.

    Args:
        record: The record of the entry.
        submission: The submission.
        at: How findings name the file.
    """
    method, builtin = (
        record.identity.localizer,
        known().localizers.get(record.identity.localizer.name),
    )
    if submission.record != record.id:
        yield Finding(
            at, "record", f"{shown(submission.record)} is not the record beside it", record.id
        )
    if builtin is not None and builtin.baseline and submission.name != method.name:
        yield Finding(
            at,
            "name",
            f"{shown(submission.name)} is the built-in {method.name}, a point of reference",
            f"the name {method.name}",
        )
    if submission.name != submission.name.strip():
        yield Finding(at, "name", f"{shown(submission.name)} ends with a blank", "a name without")
    yield from _check_name(record, submission.name, at)
    ours = f"kgbench=={record.provenance.kgbench}"
    if builtin is not None and submission.code != ours:
        yield Finding(
            at,
            "code",
            f"{shown(submission.code)} is not where the built-in {method.name} ran from",
            shown(ours)[1:-1],
        )
    if builtin is None and submission.code.startswith("kgbench=="):
        yield Finding(
            at,
            "code",
            f"kgbench does not hold {shown(method.name)}",
            "URL@COMMIT or PACKAGE==VERSION of the method's own code",
        )
    if builtin is None and (parameter := _truth_parameter(record)):
        wrong = (
            f"the method is told where the facts were planted, by its parameter {shown(parameter)}"
        )
        yield Finding(
            at,
            "name",
            wrong,
            "a method that does not know the truth; oracle stands on the board for those that do",
        )


def _check_name(record: Record, name: str, at: str) -> Iterator[Finding]:
    """A name is neither a built-in method's nor a claim, with its own arguments in brackets."""
    method, base = record.identity.localizer, base_name(name)
    for owner in known().localizers:
        if skeleton(base) == skeleton(owner) and (base, method.name) != (owner, owner):
            what = "is a built-in method's" if base == owner else f"looks like the built-in {owner}"
            wrong = f"{shown(name)} {what}, and this is another"
            yield Finding(at, "name", wrong, "a name of its own")
    spoken = {_letters(word) for word in re.split(r"[^A-Za-z0-9]+", name)}
    for claim in _CLAIMS:
        if _letters(claim) in spoken:
            expected = "a name that says nothing of who ran it"
            yield Finding(at, "name", f"{shown(name)} holds the word {claim!r}", expected)
    if found := _ARGUMENTS.fullmatch(name):
        given = {f"{key}={value}" for key, value in method.parameters.items()}
        given |= {f"{key}={json.dumps(value)}" for key, value in method.parameters.items()}
        for argument in re.split(r", *", found["arguments"]):
            if argument not in given:
                wrong = f"{shown(argument)} is no argument of the method"
                yield Finding(at, "name", wrong, "arguments of the run in brackets, key=value")
    elif "(" in name or ")" in name:
        yield Finding(at, "name", f"{shown(name)} has brackets", "brackets for arguments only")


def _truth_parameter(record: Record) -> str | None:
    """The parameter by which a method knows the truth."""
    truth, parameters = record.identity.truth, record.identity.localizer.parameters
    secrets = (
        [text for text in (truth.plant, truth.decoy) if text is not None]
        if truth is not None
        else []
    )
    return next(
        (
            key
            for key, value in parameters.items()
            if key in ("truth", "graded") or value in secrets
        ),
        None,
    )


def check_verification(
    record: Record, verification: Verification, files: Mapping[str, bytes], at: str
) -> Iterator[Finding]:
    """The verification is of these very files, and its sample agreed within the usual tolerance.

    Args:
        record: The record of the entry.
        verification: The verification.
        files: The files of the entry.
        at: How findings name the file.
    """
    own, what = verification, record.identity
    if own.record != record.id:
        yield Finding(at, "record", f"{shown(own.record)} is not the record beside it", record.id)
    for field, name in (("record_hash", RECORD), ("facts_hash", FACTS)):
        stated, found = getattr(own, field), sha256(files.get(name, b"")).hexdigest()
        if stated not in (found, None):
            yield Finding(at, field, f"{shown(stated)} is not the hash of {name}", found)
    allowed = TOLERANCES.get(what.dtype, 0.0)
    if own.tolerance > allowed:
        expected = f"at most {allowed} nats for {shown(what.dtype)}"
        yield Finding(at, "tolerance", f"it is {own.tolerance}", expected)
    if own.largest_difference > own.tolerance:
        wrong, expected = (
            f"it is {own.largest_difference}",
            f"at most {own.tolerance}, the tolerance",
        )
        yield Finding(at, "largest_difference", wrong, expected)
    n = min(what.limit or what.dataset.n, what.dataset.n)
    if own.n > n:
        yield Finding(at, "n", f"it is {own.n}", f"at most {n}, the facts of the record")
    rows = own.n * sum(row.applicable for row in record.rows)
    if own.rows != rows:
        expected = f"{rows}: {own.n} facts under each configuration and prompt"
        yield Finding(at, "rows", f"it is {own.rows}", expected)
    if own.changed_hits > (most := ceil(TIES * own.rows)):
        expected = f"at most {most}, as near ties change"
        yield Finding(at, "changed_hits", f"it is {own.changed_hits}", expected)
    if not own.counts(record):
        wrong = f"only {own.about} of {n} were run again"
        expected = f"all facts, or {SAMPLE} drawn afterwards; it stands as self-reported"
        yield Finding(at, "n", wrong, expected, refuses=False)


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


def check_written(part: Submission | Verification, data: bytes, at: str) -> Iterator[Finding]:
    """A smaller file is as kgbench writes it.

    Args:
        part: The content of the file.
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
    """The record and its rows have the hashes that the submission states.

    Args:
        submission: The submission.
        files: The files of the entry.
        at: How findings name submission.json.
    """
    for name in (RECORD, FACTS):
        stated = submission.files.get(name)
        if name in files and stated != (found := sha256(files[name]).hexdigest()):
            wrong = (
                "its hash is missing"
                if stated is None
                else f"{shown(stated)} is not the hash of {name}, which was changed afterwards"
            )
            yield Finding(at, f"files.{name}", wrong, found)
    for name in sorted(set(submission.files) - {RECORD, FACTS}):
        yield Finding(
            at, f"files.{shown(name)}", "it is no file of a result", f"{RECORD} and {FACTS}"
        )


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
    found = "/".join(folder.pack.absolute().parts[-2:])
    if found != (expected := pack_name(record, submission.name)):
        yield Finding(folder.name, "pack", f"it is in {shown(found)}", expected)
    if folder.name != (expected := entry_name(record, submission.name)):
        yield Finding(folder.name, "name", "it is not the entry's", expected)
