"""An entry's name, code, bytes and place, and entries compared with each other.

No result twice, one run of a method on a cell, one method and one origin of code under a name, and
the same answers of the same models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import ceil
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.leaderboard.entries import (
    SAMPLE,
    Entry,
    Submission,
    Verification,
    entry_name,
    folder_name,
)
from kgbench.leaderboard.folders import rows_hash
from kgbench.leaderboard.hits import COLUMNS
from kgbench.leaderboard.known import known
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.validate.files import Finding, shown
from kgbench.leaderboard.validate.rows import unlike
from kgbench.records import Result, canonical_json
from kgbench.resources import read_toml
from kgbench.sites import BASELINES
from kgbench.stats.rerun_comparison import TIES, TOLERANCES

Array = np.ndarray[Any, Any]

# ------------------------------------------------------------------------------------ submission

_of_submission = partial(Finding, SUBMISSION)

_ARGUMENTS = re.compile(r"([^()]*[^() ]) \(([^()]+)\)")
"""A name that ends with arguments in brackets."""

_LOOKALIKES = str.maketrans("01234578!|$@", "olzeastbllsa", " ._+=,()-")
"""What is read as a letter, and the marks between words, which are left out."""

_WHOLE = 8
"""Letters of a built-in method's name from which on no other name may contain it; a shorter one may
not be a word of it."""

_ADDRESS = re.compile(r"[A-Za-z]\.[A-Za-z]")
"""What pages elsewhere may turn into a link."""

_HIDDEN = ("truth",)
"""Parameters by which a method knows where facts were planted."""


def part_findings(entry: Entry, strict: bool) -> Iterator[Finding]:
    """Submission and verification are of this entry, which is in its place.

    Args:
        entry: The entry.
        strict: Whether there must be a submission.
    """
    place, result, hashes = entry.folder, entry.result, entry.hashes
    submission, verification = entry.submission, entry.verification
    if strict and submission is None:
        yield Finding(
            SUBMISSION, "file", None, "the file that kgbench submit writes", "it is missing"
        )
    for file, part in ((SUBMISSION, submission), (VERIFICATION, verification)):
        if part is not None:
            clause = "it is {}, and the entry gives another"
            yield Finding(file, "record", part.record, result.id, clause)
            yield Finding(file, "record_hash", part.record_hash, hashes[RECORD], clause)
            yield Finding(file, "facts_hash", part.facts_hash, hashes[FACTS], clause)
    if submission is not None:
        yield from _submission(submission, result)
    if verification is not None:
        yield from _verification(verification, result, len(entry.places))
    if strict and submission is not None and entry.suites and place.name != str(place):
        board, method, name = place.absolute().parts[-3:]  # a draft has no place yet
        yield Finding("", "folder", f"{board}/{method}", folder_name(result, submission.name))
        yield Finding("", "name", name, entry_name(result, submission.name))


def _submission(submission: Submission, record: Result) -> Iterator[Finding]:
    """Name and code are those of the record's method, and lead a reader nowhere else."""
    method, name, code = record.identity.localizer, submission.name, submission.code
    words = read_toml(__package__, "words")
    builtin = known().localizers.get(method.name)
    yield from _name_findings(record, name)
    for where, address in (("code", code.rpartition("@")[0]), ("paper", submission.paper or "")):
        parts = urlsplit(address)
        first, _, last = (parts.hostname or "").rstrip(".").rpartition(".")
        path = re.sub(r"[-_]|\.git$", "", parts.path.lower())
        placeholders = set(words["placeholders"]).intersection(path.split("/"))
        if address and (not first or last in words["local_hosts"] or any(map(str.isdigit, last))):
            expected = "a public host by its name, such as https://github.com/OWNER/REPOSITORY"
            yield _of_submission(where, address, expected, "{} is on no public host")
        elif placeholders or first.rpartition(".")[2] == "example":
            expected = "the address where the method can be read"
            yield _of_submission(where, address, expected, "{} is a placeholder")
    if builtin is not None:
        yield _of_submission("code", code, f"kgbench=={record.provenance.kgbench}")
        if builtin.baseline:
            yield Finding(
                SUBMISSION, "name", name, method.name, "a point of reference is called {}"
            )
        return
    if code.startswith("kgbench=="):
        expected = "URL@COMMIT or PACKAGE==VERSION of the method's own code: it is not built in"
        yield _of_submission("code", code, expected)
    truth = record.identity.truth
    secrets = () if truth is None else (truth.plant, truth.decoy)
    for key, value in method.parameters.items():
        if key in _HIDDEN or (value is not None and value in secrets):
            clause = "the method is given where facts were planted, by its parameter {}"
            yield Finding(
                SUBMISSION, "name", key, "a method that does not know, which oracle is not", clause
            )


def _name_findings(record: Result, name: str) -> Iterator[Finding]:
    """A name is neither a built-in method's nor a claim, with its own arguments in brackets."""
    method, base = record.identity.localizer, _base_name(name)
    split, lists = re.findall(r"[A-Za-z0-9]+", name), read_toml(__package__, "words")
    words, ratings = list(map(_letters, split)), set(map(_letters, lists["ratings"]))
    clauses = []
    if name != name.strip():
        clauses.append("{} begins or ends with a blank")
    if base != method.name or base not in known().localizers:
        for owner in known().localizers:
            look = _skeleton(owner)
            if look in words or (len(look) >= _WHOLE and look in _skeleton(base)):
                clauses.append(f"{{}} could be taken for the built-in {owner}, and is another")
    if any(word.startswith(tuple(map(_letters, lists["claims"]))) for word in words):
        clauses.append("{} says who ran or endorsed it")
    if words and all(w in ratings or s.isdigit() for s, w in zip(split, words, strict=True)):
        clauses.append("{} says how good the method is")
    if _ADDRESS.search(base):
        clauses.append("{} can be read as an address, by a dot between letters")
    arguments = set()
    for key, value in method.parameters.items():
        arguments |= {f"{key}={value}", f"{key}={json.dumps(value)}"}
    match = _ARGUMENTS.fullmatch(name)
    if not arguments.issuperset(re.split(r", *", match[2]) if match else re.findall("[()]", name)):
        clauses.append("{} has brackets that hold no argument of the run, key=value")
    for clause in clauses:
        yield Finding(
            SUBMISSION, "name", name, "a name of its own that says what the method does", clause
        )


def _verification(verification: Verification, record: Result, cells: int) -> Iterator[Finding]:
    """It is of this record, and its sample agreed within the usual tolerance.

    Args:
        verification: The verification.
        record: The record.
        cells: Number of prompts and configurations that have rows.
    """
    n = record.identity.n_facts
    yield Finding(VERIFICATION, "rows", verification.rows, verification.n * cells)
    for name, most in (
        ("tolerance", TOLERANCES.get(record.identity.dtype, 0.0)),
        ("largest_difference", verification.tolerance),
        ("n", n),
        ("changed_hits", ceil(TIES * verification.rows)),
    ):
        if (value := getattr(verification, name)) > most:
            yield Finding(VERIFICATION, name, value, f"at most {most}")
    if not verification.counts(record):
        clause = f"only {verification.about} of {n} were run again"
        expected = f"all facts, or {SAMPLE} drawn afterwards; it stands as self-reported"
        yield Finding(VERIFICATION, "n", None, expected, clause, refuses=False)


def _base_name(name: str) -> str:
    """A name on the board without the arguments in brackets at its end."""
    match = _ARGUMENTS.fullmatch(name)
    return match[1] if match else name


def _skeleton(name: str) -> str:
    """Letters of a name as they look: names of equal skeletons are taken for each other."""
    return _letters(name).replace("rn", "m").replace("vv", "w")


def _letters(word: str) -> str:
    """A word without case, marks, and digits that look like letters."""
    return word.casefold().translate(_LOOKALIKES).replace("i", "l")


# ---------------------------------------------------------------------------------- other entries


_ALIKE = 0.99
"""Share of ranks from which on two methods may be one."""

_DIGITS = 12
"""Digits of an id that name an entry's folder and pages."""

Key = tuple[object, ...]


def claims(entry: Entry) -> Iterator[tuple[Key, str, Finding]]:
    """No result twice, one spelling, method and origin of code per name, and one run of a method.

    Yields:
        What the first entry that has the key holds alone, or states for all others; what all
        entries of the key have, the entry's folder where one alone has it; and the fault of another
        entry of the key, whose value and folder follow.
    """
    what, folder, submission = entry.result.identity, entry.folder.name, entry.submission
    once = Finding(RECORD, "id", None, "each result once", "the same result is")
    yield ("id", entry.result.id[:_DIGITS]), folder, once
    if submission is None:
        return
    name, code = submission.name, submission.code
    look, base, parameters = _skeleton(name), _base_name(name), dict(what.localizer.parameters)
    expected = "that very name, or one that is not mistaken for it"
    yield ("name", look), name, Finding(SUBMISSION, "name", None, expected, f"{name} looks like")
    version = " ".join(part for part in what.localizer.version.split(" ") if part != "scan")
    for hidden in ("seed", *_HIDDEN):
        parameters.pop(hidden, None)
    method = f"{what.localizer.name} {version} with {canonical_json(parameters)}"
    clause = f"{name} is {shown(method)} here, and"
    expected = "one method, version and set of parameters under one name"
    yield ("method", look), method, Finding(SUBMISSION, "name", None, expected, clause)
    package, _, version = code.partition("==")
    origin = re.sub(r"[-_.]+", "-", package).casefold()
    if not version:
        origin = code.rpartition("@")[0].casefold().rstrip("/").removesuffix(".git")
    expected = "one repository or package for a name"
    clause = f"{base} is from {origin} here, and from"
    yield ("code", _skeleton(base)), origin, Finding(SUBMISSION, "code", None, expected, clause)
    cell = (what.weights.model_dump_json(), what.tokenizer, what.dataset.hash, what.limit)
    expected = "one run of a method for each pair, facts, prompt and seed"
    for suite, prompt in product(entry.suites, what.prompts):
        key = ("run", look, suite, prompt, *cell, what.seeds)
        clause = f"{name} has a run of {suite} on {prompt}"
        yield key, folder, Finding(RECORD, "identity", None, expected, clause)


@dataclass
class Others:
    """Entries before the one that is checked; each check adds the entry to what it knows."""

    claims: dict[Key, tuple[str, str]] = field(default_factory=dict)
    """Value and folder of each claim, by its key."""
    made: dict[Key, list[tuple[Entry, tuple[Array, ...]]]] = field(default_factory=dict)
    """By models, facts and configurations, what each method gave: the ranks of its rows, and on a
    plant the sites of its map, the highest first."""
    answers: dict[Key, tuple[pa.Table, str]] = field(default_factory=dict)
    """Rows of PRE and SFT by weights, prompt and configuration, and their folder."""
    board: dict[str, Mapping[str, str]] | None = None
    """Hashes of the documents and rows of entries on the board; None where there is no board to
    compare with."""

    def changed(self, entry: Entry) -> Iterator[Finding]:
        """What is on the board stays, and only who keeps it adds a verification, seeds and ties."""
        if self.board is None:
            return
        what, name = entry.result.identity, entry.folder.name
        before = self.board.get(name, {})
        for file in (RECORD, FACTS, SUBMISSION, VERIFICATION):
            was, now = before.get(file), entry.hashes.get(file)
            if was is None and file == VERIFICATION and now is not None:
                expected = "that of those who keep the board, who run kgbench rerun themselves"
                yield Finding(file, "file", None, expected, "it comes with the result")
            elif before and was != now:
                expected = "entries as they are, and new ones with them"
                clause = "it is gone" if now is None else "it is another one than on the board"
                yield Finding(file, "file", None, expected, clause)
        if before:  # older entries stay, marked
            return
        sent = entry.submission
        if sent is not None and sent.source is None and what.localizer.name in known().localizers:
            expected = (
                "self-reported, as kgbench submit writes: the project adds its own runs itself"
            )
            yield _of_submission("source", None, expected, "it is missing, of a built-in method")
        if what.localizer.name in known().localizers and what.seeds != (0,):
            expected = "0: those who keep the board run further seeds of built-in methods"
            yield Finding(RECORD, "identity.seeds", list(what.seeds), expected)
        if what.ties_count_for_the_target:
            expected = f"{known().metric_version}; run it again"
            clause = "it is 1, in which ties count for the method"
            yield Finding(RECORD, "identity.metric_version", None, expected, clause)

    def compared(self, entry: Entry) -> list[Finding]:
        """Faults of an entry that is in order, and of those before it, up to the first refusal."""
        findings = []
        for finding in self._compared(entry):
            findings.append(finding)
            if finding.refuses:
                break
        return findings

    def _compared(self, entry: Entry) -> Iterator[Finding]:
        table = entry.rows()
        for key, value, finding in claims(entry):
            stated, where = self.claims.setdefault(key, (value, entry.folder.name))
            if stated != value:
                theirs = "" if stated == where else f" {shown(stated)}"
                yield replace(finding, clause=f"{finding.clause}{theirs} in {where}")
        if entry.submission is not None:
            yield from self._copied(entry, table)
        what = entry.result.identity
        donors = sorted(what.weights.donors.items())
        weights = (what.weights.recipient, *donors, what.tokenizer, what.dtype)
        for (prompt, hash), graft in product(what.prompts.items(), BASELINES):
            rows = table.slice(*entry.places.get((prompt, graft), (0, 0)))
            key = (weights, hash, graft, what.dataset.name)
            first, where = self.answers.setdefault(key, (rows, entry.folder.name))
            # Nats by which answers may differ between machines.
            if fault := unlike(rows, first, 0.25 if "16" in what.dtype else 1e-2):
                expected = f"the answers in {where}, since the models and texts are the same"
                yield Finding(FACTS, fault[0], None, expected, f"{graft} on {prompt}: {fault[1]}")
                return

    def _copied(self, entry: Entry, table: pa.Table) -> Iterator[Finding]:
        """The same ranks of facts under another name; built-in methods may agree to the bit.

        On a plant many methods find the same few sites, so that there their maps are compared too.
        """
        what, scores = entry.result.identity, entry.result.scores
        if what.truth is not None and scores is None:
            return
        grafted = table.filter(pc.invert(pc.is_in(table["graft"], pa.array(BASELINES))))
        key = (what.weights.model_dump_json(), rows_hash(grafted, COLUMNS[:-1]))
        parts = [grafted["rank"].to_numpy()]
        if what.truth is not None:
            sites = [(-s.score, f"{s.layer} {s.component} {s.region}") for s in scores or ()]
            parts.append(np.array([site for _, site in sorted(sites)]))
        others = self.made.setdefault(key, [])
        for other, theirs in others:
            built_in = {entry.localizer, other.localizer} <= known().localizers.keys()
            if other.method == entry.method or built_in:
                continue
            if (share := min(map(_shared, parts, theirs))) > _ALIKE:
                part = "all" if share == 1 else f"{100 * share:.2f} % of"
                clause = f"{part} ranks are those of {{}} in {other.folder.name}"
                expected = "a method's own answers"
                refuses = share == 1
                yield Finding(FACTS, "rank", other.method, expected, clause, refuses)
                break
        others.append((replace(entry, home=None), tuple(parts)))  # without its rows


def _shared(part: Array, other: Array) -> float:
    """Share of ranks, or of places in the order of sites, that two methods have in common."""
    if len(part) != len(other) or not len(part):
        return float(len(part) == len(other))
    return float((part == other).mean())
