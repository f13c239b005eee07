"""An entry's name, code, bytes and place, and entries compared with each other.

No result twice, one run of a method on a cell, one method and one origin of code under a name, and
the same answers of the same models.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.leaderboard.entries import (
    SAMPLE,
    Part,
    Submission,
    Verification,
    entry_name,
    folder_name,
    suites_of,
)
from kgbench.leaderboard.folders import rows_hash
from kgbench.leaderboard.hits import COLUMNS
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.validate.findings import Finding, differing, shown
from kgbench.leaderboard.validate.known import known
from kgbench.leaderboard.validate.rows import unlike
from kgbench.records import Result, canonical_json
from kgbench.records.fact_rows import spans
from kgbench.sites import BASELINES
from kgbench.stats.repetition import TIES, TOLERANCES

# ------------------------------------------------------------------------------------ submission


_ARGUMENTS = re.compile(r"([^()]*[^() ]) \(([^()]+)\)")
"""A name that ends with arguments in brackets."""

_LOOKALIKES = str.maketrans("01234578!|$@", "olzeastbllsa", " ._+=,()-")
"""What is read as a letter, and the marks between words, which are left out."""

_CLAIMS = (
    *("verif", "publish", "report", "yours", "offici", "baseline", "privileg", "review"),
    *("confirm", "certif", "approv", "endors", "maintain", "rerun", "kgbench"),
)
"""Beginnings of words by which the board, or whoever keeps it, speaks of entries."""

_STANDING = (
    *("rank", "place", "number", "no", "first", "second", "third", "1st", "2nd", "3rd", "top"),
    *("best", "winner", "leader", "champion", "sota", "one", "the", "our", "new", "method"),
    *("localizer", "core", "team"),
)
"""Words that, by themselves or with numbers, rate a method and do not describe it."""

_WHOLE = 8
"""Letters of a built-in method's name from which on no other name may contain it; a shorter one may
not be a word of it."""

_ADDRESS = re.compile(r"[A-Za-z]\.[A-Za-z]")
"""What pages elsewhere may turn into a link."""

_LOCAL = ("localhost", "local", "internal", "lan", "home", "intranet", "arpa")
"""Last parts of names that mean another place on each machine."""

_PLACEHOLDERS = frozenset(
    ("you", "me", "owner", "user", "username", "yourname", "your-name", "org", "repository", "repo")
)
"""Names of owners and repositories in addresses that were not filled in."""

_HIDDEN = ("truth",)
"""Parameters by which a method knows where facts were planted."""


def part_findings(part: Part, record: Result, hashes: Mapping[str, str]) -> Iterator[Finding]:
    """A document goes with the record and rows of its entry.

    Args:
        part: The document.
        record: The record.
        hashes: Of record and rows.
    """
    facts = hashes.get(FACTS, part.facts_hash)
    yield from differing(
        [
            ("record", part.record, record.id),
            ("record_hash", part.record_hash, hashes[RECORD]),
            ("facts_hash", part.facts_hash, facts),
        ],
        ", as the entry gives",
    )


def submission_findings(submission: Submission, record: Result) -> Iterator[Finding]:
    """Name and code are those of the record's method, and lead a reader nowhere else.

    Args:
        submission: The submission.
        record: The record of the entry.
    """
    method, name, code = record.identity.localizer, submission.name, submission.code
    builtin = known().localizers.get(method.name)
    yield from differing([("name", name, name.strip())])
    yield from _name_findings(record, name)
    for where, address in (("code", code.rpartition("@")[0]), ("paper", submission.paper or "")):
        parts = urlsplit(address)
        first, _, last = (parts.hostname or "").rstrip(".").rpartition(".")
        placeholders = _PLACEHOLDERS.intersection(parts.path.lower().split("/"))
        if address and (not first or last in _LOCAL or any(map(str.isdigit, last))):
            expected = "a public host by its name, such as https://github.com/OWNER/REPOSITORY"
            yield Finding(where, f"{shown(address)} is on no public host", expected)
        elif placeholders or first.rpartition(".")[2] == "example":
            expected = "the address where the method can be read"
            yield Finding(where, f"{shown(address)} is a placeholder", expected)
    if builtin is not None:
        origin = f", where the built-in {method.name} ran from"
        yield from differing([("code", code, f"kgbench=={record.provenance.kgbench}")], origin)
        if builtin.baseline:
            yield from differing([("name", name, method.name)], ", a point of reference")
        return
    if code.startswith("kgbench=="):
        expected = "URL@COMMIT or PACKAGE==VERSION of the method's own code: it is not built in"
        yield Finding("code", f"it is {shown(code)}", expected)
    truth = record.identity.truth
    secrets = () if truth is None else (truth.plant, truth.decoy)
    for key, value in method.parameters.items():
        if key in _HIDDEN or (value is not None and value in secrets):
            wrong = f"the method is told where facts were planted, by its parameter {shown(key)}"
            yield Finding("name", wrong, "a method that does not know: oracle is for those that do")


def _name_findings(record: Result, name: str) -> Iterator[Finding]:
    """A name is neither a built-in method's nor a claim, with its own arguments in brackets."""
    method, base = record.identity.localizer, _base_name(name)
    split = re.findall(r"[A-Za-z0-9]+", name)
    words = list(map(_letters, split))
    for owner in (
        known().localizers if base != method.name or base not in known().localizers else ()
    ):
        look = _skeleton(owner)
        if look in words or (len(look) >= _WHOLE and look in _skeleton(base)):
            wrong = f"{shown(name)} could be taken for the built-in {owner}, and this is another"
            yield Finding("name", wrong, "a name of its own")
    for claim in _CLAIMS:
        if any(word.startswith(_letters(claim)) for word in words):
            expected = "a name that says nothing of who ran it"
            yield Finding("name", f"{shown(name)} speaks of it, by {claim!r}", expected)
    standing = set(map(_letters, _STANDING))
    if words and all(w in standing or s.isdigit() for s, w in zip(split, words, strict=True)):
        wrong = f"{shown(name)} says how good the method is"
        yield Finding("name", wrong, "a name that says what it does")
    if _ADDRESS.search(base):
        wrong = f"{shown(name)} can be read as an address"
        yield Finding("name", wrong, "no dot between letters")
    arguments = set()
    for key, value in method.parameters.items():
        arguments |= {f"{key}={value}", f"{key}={json.dumps(value)}"}
    match = _ARGUMENTS.fullmatch(name)
    for argument in re.split(r", *", match[2]) if match else re.findall(r"[()]", name):
        if argument not in arguments:
            wrong = f"{shown(argument)} is no argument of the method"
            yield Finding("name", wrong, "brackets for arguments of the run only, key=value")


def place_findings(submission: Submission, record: Result, place: Path) -> Iterator[Finding]:
    """An entry is in the folder of its method and board, under its own name.

    Args:
        submission: The submission.
        record: The record.
        place: The method folder and the entry's name.
    """
    if suites_of(record):
        folder, name = folder_name(record, submission.name), entry_name(record, submission.name)
        board, method, stated = place.absolute().parts[-3:]
        yield from differing([("folder", f"{board}/{method}", folder), ("name", stated, name)])


def verification_findings(
    verification: Verification, record: Result, table: pa.Table
) -> Iterator[Finding]:
    """The verification is of this record, and its sample agreed within the usual tolerance.

    Args:
        verification: The verification.
        record: The record of the entry.
        table: Its per-fact rows, sorted.
    """
    n, rows = record.identity.n_facts, verification.n * len(spans(table))
    yield from differing([("rows", verification.rows, rows)], ", as the entry gives")
    for name, most in (
        ("tolerance", TOLERANCES.get(record.identity.dtype, 0.0)),
        ("largest_difference", verification.tolerance),
        ("n", n),
        ("changed_hits", ceil(TIES * verification.rows)),
    ):
        if (value := getattr(verification, name)) > most:
            yield Finding(name, f"it is {shown(value)}", f"at most {most}")
    if not verification.counts(record):
        wrong = f"only {verification.about} of {n} were run again"
        expected = f"all facts, or {SAMPLE} drawn afterwards; it stands as self-reported"
        yield Finding("n", wrong, expected, refuses=False)


def _base_name(name: str) -> str:
    """A name on the board without the arguments in brackets at its end."""
    match = _ARGUMENTS.fullmatch(name)
    return match[1] if match else name


def _skeleton(name: str) -> str:
    """Letters of a name as they look: names of equal skeletons are taken for each other."""
    return _letters(name).replace("rn", "m").replace("vv", "w")


def _letters(word: str) -> str:
    """A word without case, marks, and digits that look like letters."""
    return unicodedata.normalize("NFKC", word).casefold().translate(_LOOKALIKES).replace("i", "l")


# ---------------------------------------------------------------------------------- other entries


_ALIKE = 0.99
"""Share of ranks from which on two methods may be one."""

_DIGITS = 12
"""Digits of an id that name an entry's folder and pages."""


class Answers(NamedTuple):
    """What a method gave on the same models, facts and configurations as others."""

    name: str
    """On the board."""
    localizer: str
    folder: str
    parts: tuple[np.ndarray[Any, Any], ...]
    """Ranks of the rows, sorted; on a plant also the sites of its map, the highest first."""

    def shared(self, other: Answers) -> float:
        """Share of ranks, or of places in the order of sites, that two methods have in common."""
        shares = []
        for part, theirs in zip(self.parts, other.parts, strict=True):
            alike = len(part) == len(theirs)
            shares.append(float((part == theirs).mean()) if alike and len(part) else float(alike))
        return min(shares)


class Claim(NamedTuple):
    """What the first entry that states it holds alone, or states for all others."""

    document: str
    """Where it is stated."""
    field: str
    key: tuple[object, ...]
    wrong: str
    """The fault of another entry that has it already, or states another value."""
    expected: str
    value: str | None = None
    """What all entries of the key have; None where one entry alone has the key."""


def claims(record: Result, submission: Submission | None) -> Iterator[Claim]:
    """No result twice, one spelling, method and origin of code per name, and one run of a method.

    Args:
        record: The record.
        submission: Its submission.
    """
    key: tuple[object, ...] = ("id", record.id[:_DIGITS])
    yield Claim(RECORD, "id", key, "the same result is", "each result once")
    if submission is None:
        return
    what, name, code = record.identity, submission.name, submission.code
    look, base, label = _skeleton(name), _base_name(name), shown(name)
    expected = "that very name, or one that nobody takes for it"
    yield Claim(SUBMISSION, "name", ("name", look), f"{label} looks like", expected, name)
    version = " ".join(part for part in what.localizer.version.split(" ") if part != "scan")
    parameters = dict(what.localizer.parameters)
    for hidden in ("seed", *_HIDDEN):
        parameters.pop(hidden, None)
    method = f"{what.localizer.name} {version} with {canonical_json(parameters)}"
    wrong = f"{label} is {shown(method)} here, and"
    expected = "one method, version and set of parameters under one name"
    yield Claim(SUBMISSION, "name", ("method", look), wrong, expected, method)
    package, _, version = code.partition("==")
    origin = re.sub(r"[-_.]+", "-", package).casefold()
    if not version:
        origin = code.rpartition("@")[0].casefold().rstrip("/").removesuffix(".git")
    wrong = f"{shown(base)} is from {shown(origin)} here, and from"
    expected = "one repository or package for a name"
    yield Claim(SUBMISSION, "code", ("code", _skeleton(base)), wrong, expected, origin)
    cell = (what.weights.model_dump_json(), what.tokenizer, what.dataset.hash, what.limit)
    for suite, prompt in product(suites_of(record), what.prompts):
        key = ("run", look, suite, prompt, *cell, what.seeds)
        wrong = f"{label} has a run of {suite} on {prompt}"
        expected = "one run of a method for each pair, facts, prompt and seed"
        yield Claim(RECORD, "identity", key, wrong, expected)


@dataclass
class Others:
    """Entries before the one that is checked; each check adds the entry to what it knows."""

    claims: dict[tuple[object, ...], tuple[str | None, str]] = field(default_factory=dict)
    """Value and folder of each claim, by its key."""
    made: dict[tuple[object, ...], list[Answers]] = field(default_factory=dict)
    """What methods gave, by models, facts and configurations."""
    answers: dict[tuple[object, ...], tuple[pa.Table, str]] = field(default_factory=dict)
    """Rows of PRE and SFT by weights, prompt and configuration, and their folder."""
    board: dict[str, Mapping[str, str]] | None = None
    """Hashes of the documents and rows of entries on the board; None where there is no board to
    compare with."""

    def replaced(self, folder: str, hashes: Mapping[str, str], document: str) -> Iterator[Finding]:
        """What is on the board stays, and only who keeps it adds a verification.

        Args:
            folder: An entry's name.
            hashes: Of its documents and rows.
            document: The document or rows to compare.
        """
        before = (self.board or {}).get(folder, {})
        was, now = before.get(document), hashes.get(document)
        if self.board is None or was == now or not (before or document == VERIFICATION):
            return
        if now is None:
            yield Finding("file", "it is gone", "the file that is on the board")
        elif document == VERIFICATION:
            expected = "that of those who keep the board, who run kgbench rerun themselves"
            yield Finding("file", "it comes with the result", expected)
        else:
            expected = "entries as they are, and new ones beside them"
            yield Finding("file", "it is another one than on the board", expected)

    def outdated(self, folder: str, record: Result) -> Iterator[Finding]:
        """A new entry counts no ties for the method, and is of a built-in one's seed 0.

        Older entries stay, marked.
        """
        what = record.identity
        if self.board is None or folder in self.board:
            return
        if what.localizer.name in known().localizers and what.seeds != (0,):
            wrong = f"it is {shown(list(what.seeds))} of a built-in method"
            expected = "0: those who keep the board run further seeds of built-in methods"
            yield Finding("identity.seeds", wrong, expected)
        if what.ties_count_for_the_target:
            wrong = "it is 1, in which ties count for the method"
            expected = f"{known().metric_version}; run it again"
            yield Finding("identity.metric_version", wrong, expected)

    def claimed(self, folder: str, claim: Claim) -> Iterator[Finding]:
        """Whether an earlier entry has what this one claims."""
        value, where = self.claims.setdefault(claim.key, (claim.value, folder))
        if where != folder and (claim.value is None or claim.value != value):
            other = "" if value is None else f" {shown(value)}"
            yield Finding(claim.field, f"{claim.wrong}{other} in {where}", claim.expected)

    def copied(self, folder: str, record: Result, table: pa.Table, name: str) -> Iterator[Finding]:
        """The same ranks of facts under another name; built-in methods may agree to the bit.

        On a plant many methods find the same few sites, so that there their maps are compared too.
        """
        what = record.identity
        if what.truth is not None and record.scores is None:
            return
        grafted = table.filter(pc.invert(pc.is_in(table["graft"], pa.array(BASELINES))))
        key = (what.weights.model_dump_json(), rows_hash(grafted, COLUMNS[:-1]))
        parts = [grafted["rank"].to_numpy()]
        if what.truth is not None:
            sites = [(-s.score, f"{s.layer} {s.component} {s.region}") for s in record.scores or ()]
            parts.append(np.array([site for _, site in sorted(sites)]))
        answers = Answers(name, what.localizer.name, folder, tuple(parts))
        others = self.made.setdefault(key, [])
        for other in others:
            built_in = {answers.localizer, other.localizer} <= known().localizers.keys()
            if other.name != name and not built_in and (share := answers.shared(other)) > _ALIKE:
                part = "all" if share == 1 else f"{100 * share:.2f} % of"
                wrong = f"{part} ranks are those of {shown(other.name)} in {other.folder}"
                yield Finding("rank", wrong, "a method's own answers", refuses=share == 1)
                break
        others.append(answers)

    def other_answers(self, folder: str, record: Result, table: pa.Table) -> Iterator[Finding]:
        """The rows of PRE and SFT against those of the same models in another entry."""
        what = record.identity
        donors = sorted(what.weights.donors.items())
        weights = (what.weights.recipient, *donors, what.tokenizer, what.dtype)
        places = spans(table)
        for (prompt, hash), graft in product(what.prompts.items(), BASELINES):
            rows = table.slice(*places.get((prompt, graft), (0, 0)))
            key = (weights, hash, graft, what.dataset.name)
            first, where = self.answers.setdefault(key, (rows, folder))
            # Nats by which answers may differ between machines.
            if differing := unlike(rows, first, 0.25 if "16" in what.dtype else 1e-2):
                column, wrong = differing
                expected = f"the answers in {where}, since the models and texts are the same"
                yield Finding(column, f"{graft} on {prompt}: {wrong}", expected)
                return
