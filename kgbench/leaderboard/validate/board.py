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
from hashlib import sha256
from itertools import product
from math import ceil

import pyarrow as pa

from kgbench.leaderboard.entries import (
    SAMPLE,
    Submission,
    Verification,
    entry_name,
    folder_name,
    suites_of,
)
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.validate.files import CheckedEntry, Finding, in_file, shown, unmet
from kgbench.leaderboard.validate.known import known
from kgbench.leaderboard.validate.record import unlike
from kgbench.records import Record, canonical_json
from kgbench.records.fact_rows import spans
from kgbench.sites import BASELINES
from kgbench.stats.repetition import TIES, TOLERANCES

# ------------------------------------------------------------------------------------ submission


_ARGUMENTS = re.compile(r"(?P<base>[^()]*[^() ]) \((?P<arguments>[^()]+)\)")
"""A name that ends with arguments in brackets."""

_LOOKALIKES = str.maketrans("01234578!|$@", "olzeastbllsa", " ._+=,()-")
"""What is read as a letter, and the marks between words, which are left out."""

_CLAIMS = ("verified", "published", "reported", "yours", "official", "baseline", "privileged")
"""Words that the board itself uses of entries."""

_HIDDEN = ("truth", "graded")
"""Parameters by which a method knows where facts were planted."""


def check_submission(
    submission: Submission, record: Record | None, hashes: Mapping[str, str]
) -> Iterator[Finding]:
    """The submission goes with the record and its rows, and its name and code with the method.

    Args:
        submission: The submission.
        record: The record of the entry; None where it does not read.
        hashes: Of the record and its rows.
    """
    if record is not None:
        yield from _check_method(record, submission)
    for name, file in (("record_hash", RECORD), ("facts_hash", FACTS)):
        stated = getattr(submission, name)
        if stated != (own := hashes.get(file, stated)):
            wrong = f"{shown(stated)} is not the hash of {file}, which was changed afterwards"
            yield Finding(name, wrong, own)


def _check_method(record: Record, submission: Submission) -> Iterator[Finding]:
    """Name and code are those of the record's method."""
    method, name, code = record.identity.localizer, submission.name, submission.code
    builtin, ours = known().localizers.get(method.name), f"kgbench=={record.provenance.kgbench}"
    of_record = submission.record == record.id
    trimmed = name == name.strip()
    yield from unmet(
        [
            ("record", submission.record, of_record, f"{record.id}, the record's id"),
            ("name", name, trimmed, "a name without a blank at its end"),
        ]
    )
    yield from _check_name(record, name)
    if builtin is not None:
        if builtin.baseline and name != method.name:
            wrong = f"{shown(name)} is the built-in {method.name}, a point of reference"
            yield Finding("name", wrong, f"the name {method.name}")
        where = f"{ours}, where the built-in {method.name} ran from"
        yield from unmet([("code", code, code == ours, where)])
        return
    own = "URL@COMMIT or PACKAGE==VERSION of the method's own code, which kgbench does not hold"
    yield from unmet([("code", code, not code.startswith("kgbench=="), own)])
    truth = record.identity.truth
    secrets = [] if truth is None else [truth.plant, truth.decoy]
    for key, value in method.parameters.items():
        if key in _HIDDEN or (value is not None and value in secrets):
            wrong = (
                f"the method is told where the facts were planted, by its parameter {shown(key)}"
            )
            expected = "a method that does not know the truth; the board has oracle for those"
            yield Finding("name", wrong, f"{expected} that do")
            return


def _check_name(record: Record, name: str) -> Iterator[Finding]:
    """A name is neither a built-in method's nor a claim, with its own arguments in brackets."""
    method, base = record.identity.localizer, _base_name(name)
    for owner in known().localizers:
        if _skeleton(base) == _skeleton(owner) and (base, method.name) != (owner, owner):
            what = "is a built-in method's" if base == owner else f"looks like the built-in {owner}"
            wrong = f"{shown(name)} {what}, and this is another"
            yield Finding("name", wrong, "a name of its own")
    words = set(map(_letters, re.split(r"[^A-Za-z0-9]+", name)))
    for claim in _CLAIMS:
        if _letters(claim) in words:
            expected = "a name that says nothing of who ran it"
            yield Finding("name", f"{shown(name)} holds the word {claim!r}", expected)
    given = set()
    for key, value in method.parameters.items():
        given |= {f"{key}={value}", f"{key}={json.dumps(value)}"}
    match = _ARGUMENTS.fullmatch(name)
    arguments = re.split(r", *", match["arguments"]) if match else re.findall(r"[()]", name)
    for argument in arguments:
        if argument not in given:
            wrong = f"{shown(argument)} is no argument of the method"
            yield Finding("name", wrong, "brackets for arguments of the run only, key=value")


def check_verification(
    verification: Verification, record: Record | None, hashes: Mapping[str, str]
) -> Iterator[Finding]:
    """The verification is of this very record, and its sample agreed within the usual tolerance.

    Args:
        verification: The verification.
        record: The record of the entry; None where it does not read.
        hashes: Of the record and its rows.
    """
    if record is None:
        return
    own, what = verification, record.identity
    allowed = TOLERANCES.get(what.dtype, 0.0)
    n = what.n_facts
    rows = own.n * sum(row.applicable for row in record.rows)
    most = {
        "tolerance": allowed,
        "largest_difference": own.tolerance,
        "n": n,
        "changed_hits": ceil(TIES * own.rows),
    }
    wanted = {
        "record": record.id,
        "record_hash": hashes[RECORD],
        "facts_hash": hashes.get(FACTS),
        "rows": rows,
    }
    for name, value in wanted.items():
        stated = getattr(own, name)
        yield from unmet([(name, stated, stated == value, f"{value}, as the entry gives")])
    for name, bound in most.items():
        stated = getattr(own, name)
        yield from unmet([(name, stated, stated <= bound, f"at most {bound}")])
    if not own.counts(record):
        wrong = f"only {own.about} of {n} were run again"
        expected = f"all facts, or {SAMPLE} drawn afterwards; it stands as self-reported"
        yield Finding("n", wrong, expected, refuses=False)


def _base_name(name: str) -> str:
    """A name on the board without the arguments in brackets at its end."""
    found = _ARGUMENTS.fullmatch(name)
    return found["base"] if found else name


def _skeleton(name: str) -> str:
    """Letters of a name as they look: names of equal skeletons are taken for each other."""
    return _letters(name).replace("rn", "m").replace("vv", "w")


def _letters(word: str) -> str:
    """A word without case, marks, and digits that look like letters."""
    return unicodedata.normalize("NFKC", word).casefold().translate(_LOOKALIKES).replace("i", "l")


def _origin(code: str) -> str:
    """Repository or package of a submission's code, whatever the commit or version."""
    package, _, version = code.partition("==")
    if version:
        return re.sub(r"[-_.]+", "-", package).casefold()
    return code.rpartition("@")[0].casefold().rstrip("/").removesuffix(".git")


def check_place(
    entry: CheckedEntry, record: Record, submission: Submission | None
) -> Iterator[Finding]:
    """An entry is in the folder of its method and board, under its own name.

    Args:
        entry: Its documents.
        record: Its record.
        submission: What goes with it.
    """
    if entry.home is None or submission is None or not suites_of(record):
        return
    place = "/".join(entry.home.path.absolute().parts[-2:])
    if place != (expected := folder_name(record, submission.name)):
        yield Finding("folder", f"it is in {shown(place)}", expected)
    if entry.folder != (expected := entry_name(record, submission.name)):
        yield Finding("name", "it is not the entry's", expected)


# ---------------------------------------------------------------------------------- other entries


_TOLERANCE = 1e-2
"""Nats by which a log-probability of one model may differ between machines."""

_COARSE = 0.25
"""The same where models compute in 16 bits."""

_DIGITS = 12
"""Digits of an id that name an entry's folder and pages."""

Key = tuple[object, ...]


@dataclass
class Others:
    """Entries before the one that is checked."""

    ids: dict[str, str] = field(default_factory=dict)
    """Folder by the first digits of the id."""
    methods: dict[str, tuple[str, Key, str]] = field(default_factory=dict)
    """By the skeleton of the name on the board: the name, the method, and a folder."""
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the skeleton of the name without arguments: where the code is from, and a folder."""
    made: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """By a hash of the rows that a method gives: its name on the board, localizer, and folder."""
    runs: dict[Key, str] = field(default_factory=dict)
    """Folder by method, suite, prompt, models, facts and seed."""
    answers: dict[Key, tuple[pa.Table, str]] = field(default_factory=dict)
    """Rows of PRE and SFT by weights, prompt and configuration, and their folder."""
    board: dict[str, Mapping[str, str]] | None = None
    """Hashes of the documents and rows of entries on the board; None where there is no board to
    compare with."""

    def replaced(self, entry: CheckedEntry) -> list[Finding]:
        """Changes of an entry that is on the board, and verifications that are not.

        Args:
            entry: Its documents and rows.
        """
        if self.board is None:
            return []
        before, now = self.board.get(entry.folder, {}), entry.hashes()
        findings = []
        for name in (RECORD, FACTS, SUBMISSION, VERIFICATION):
            was, own = before.get(name), now.get(name)
            if was == own or (name != VERIFICATION and not before):
                continue
            if own is None:
                wrong, expected = "it is gone", "the file that is on the board"
            elif name == VERIFICATION:
                wrong = "it comes with the result"
                expected = "that of those who keep the board, who run kgbench rerun themselves"
            else:
                wrong = "it is another one than on the board"
                expected = "entries as they are, and new ones beside them"
            findings.append(Finding("file", wrong, expected, file=entry.at(name)))
        return findings

    def outdated(self, entry: CheckedEntry, record: Record) -> list[Finding]:
        """Findings on a new entry that counts ties for the method; older entries stay, marked."""
        new = self.board is not None and entry.folder not in self.board
        if not new or not record.identity.ties_count_for_the_target:
            return []
        wrong = "it is 1, in which ties count for the method"
        expected = f"{known().metric_version}; run it again"
        return [Finding("identity.metric_version", wrong, expected, file=entry.at(RECORD))]

    def compare(
        self, folder: str, record: Record, table: pa.Table | None, submission: Submission | None
    ) -> list[Finding]:
        """Findings on an entry compared with earlier ones, to which it is added.

        Args:
            folder: Its name.
            record: Its record.
            table: Its per-fact rows; None where they do not read.
            submission: What goes with it.
        """
        first = self.ids.setdefault(record.id[:_DIGITS], folder)
        if first != folder:
            twice = Finding("id", f"the same result is in {first}", "each result once")
            return in_file(f"{folder}/{RECORD}", [twice])
        findings: list[Finding] = []
        if submission is not None:
            named = self._named(folder, record, submission)
            findings = in_file(f"{folder}/{SUBMISSION}", named)
            if not findings:
                findings = in_file(f"{folder}/{RECORD}", self._ran(folder, record, submission))
            if not findings and table is not None:
                copied = self._copied(folder, record, table, submission)
                findings = in_file(f"{folder}/{FACTS}", copied)
        if table is not None:
            findings += in_file(f"{folder}/{FACTS}", self._answered(folder, record, table))
        return findings

    def _named(self, folder: str, record: Record, submission: Submission) -> list[Finding]:
        """One spelling, method and origin of code per name."""
        name, key, base = submission.name, _method_key(record), _base_name(submission.name)
        spelling, method, where = self.methods.setdefault(_skeleton(name), (name, key, folder))
        if spelling != name:
            wrong = f"{shown(name)} looks like {shown(spelling)} in {where}"
            return [Finding("name", wrong, "that very name, or one that nobody takes for it")]
        if method != key:
            wrong = f"{shown(name)} is {_method(key)} here, and {_method(method)} in {where}"
            expected = "one method, version and set of parameters under one name"
            return [Finding("name", wrong, expected)]
        own = _origin(submission.code)
        source, where = self.origins.setdefault(_skeleton(base), (own, folder))
        if own != source:
            elsewhere = f"from {shown(source)} in {where}"
            wrong = f"{shown(base)} is from {shown(own)} here, and {elsewhere}"
            return [Finding("code", wrong, "one repository or package for a name")]
        return []

    def _ran(self, folder: str, record: Record, submission: Submission) -> list[Finding]:
        """One run of a method per suite, prompt, models, facts and seed, whatever else was run."""
        what = record.identity
        cell = (what.weights.model_dump_json(), what.tokenizer, what.dataset.hash, what.limit)
        for suite, prompt in product(suites_of(record), what.prompts):
            key = (_skeleton(submission.name), suite, prompt, *cell, what.seeds)
            if (first := self.runs.setdefault(key, folder)) != folder:
                wrong = f"{shown(submission.name)} has a run of {suite} on {prompt} in {first}"
                expected = "one run of a method for each pair, facts, prompt and seed"
                return [Finding("identity", wrong, expected)]
        return []

    def _copied(
        self, folder: str, record: Record, table: pa.Table, submission: Submission
    ) -> list[Finding]:
        """The same ranks of all facts under another name; built-in methods may agree to the bit.

        On a plant many methods find the same few sites, so that there their maps are compared too.
        """
        if record.planted is not None and record.scores is None:
            return []
        digest = sha256(record.identity.weights.model_dump_json().encode())
        if record.planted is not None:
            ranked = []
            for site in record.scores or ():
                ranked.append((-site.score, f"{site.layer} {site.component} {site.region}\n"))
            digest.update("".join(name for _, name in sorted(ranked)).encode())
        ranks, facts = table["rank"].to_numpy(), []
        for place, (first, n) in spans(table).items():
            if place[1] not in BASELINES:
                digest.update(repr((place, n)).encode())
                digest.update(ranks[first : first + n].tobytes())
                facts += table["fact"].slice(first, n).to_pylist()
        digest.update("\n".join(facts).encode())
        own = (submission.name, record.identity.localizer.name, folder)
        name, localizer, where = self.made.setdefault(digest.hexdigest(), own)
        if name == submission.name or {own[1], localizer} <= set(known().localizers):
            return []
        wrong = f"all ranks are those of {shown(name)} in {where}"
        return [Finding("rank", wrong, "a method's own answers")]

    def _answered(self, folder: str, record: Record, table: pa.Table) -> list[Finding]:
        """The rows of PRE and SFT against those of the same models in another entry."""
        what = record.identity
        donors = sorted(what.weights.donors.items())
        weights = (what.weights.recipient, *donors, what.tokenizer, what.dtype)
        tolerance = _COARSE if "16" in what.dtype else _TOLERANCE
        places = spans(table)
        for (prompt, hash), graft in product(what.prompts.items(), BASELINES):
            own = table.slice(*places.get((prompt, graft), (0, 0)))
            key = (weights, hash, graft, what.dataset.name)
            first, where = self.answers.setdefault(key, (own, folder))
            if (difference := unlike(own, first, tolerance)) is not None:
                column, wrong = difference
                expected = f"the answers in {where}, since the models and texts are the same"
                return [Finding(column, f"{graft} on {prompt}: {wrong}", expected)]
        return []


def _method_key(record: Record) -> Key:
    """What a name on the board denotes: method and parameters, without seeds and ground truth."""
    method = record.identity.localizer
    version = " ".join(part for part in method.version.split(" ") if part != "scan")
    parameters = method.parameters.items()
    kept = {key: value for key, value in parameters if key not in ("seed", *_HIDDEN)}
    return method.name, version, canonical_json(kept)


def _method(key: Key) -> str:
    name, version, parameters = key
    return f"{shown(name)} {shown(version)} with {shown(parameters)}"
