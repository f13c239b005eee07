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
from functools import cached_property
from itertools import product
from math import ceil
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kgbench.leaderboard.entries import (
    SAMPLE,
    Submission,
    Verification,
    entry_name,
    folder_name,
    suites_of,
)
from kgbench.leaderboard.folders import rows_hash
from kgbench.leaderboard.hits import COLUMNS
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.validate.files import CheckedEntry, Finding, shown, unmet
from kgbench.leaderboard.validate.known import known
from kgbench.leaderboard.validate.record import unlike
from kgbench.records import Result, SiteScore, canonical_json
from kgbench.records.fact_rows import spans
from kgbench.sites import BASELINES
from kgbench.stats.repetition import TIES, TOLERANCES

# ------------------------------------------------------------------------------------ submission


_ARGUMENTS = re.compile(r"(?P<base>[^()]*[^() ]) \((?P<arguments>[^()]+)\)")
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
"""Names of owners and repositories in addresses that nobody filled in."""

_HIDDEN = ("truth",)
"""Parameters by which a method knows where facts were planted."""


def check_submission(
    submission: Submission, record: Result | None, hashes: Mapping[str, str]
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


def _check_method(record: Result, submission: Submission) -> Iterator[Finding]:
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
    for where, address in (("code", code.rpartition("@")[0]), ("paper", submission.paper or "")):
        if address and not _is_public(address):
            host = "a public host by its name, such as https://github.com/OWNER/REPOSITORY"
            yield Finding(where, f"{shown(address)} is on no public host", host)
        elif address and _is_placeholder(address):
            wrong = f"{shown(address)} is a placeholder"
            yield Finding(where, wrong, "the address where the method can be read")
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


def _is_public(address: str) -> bool:
    """Whether an address is on a host of a public name: no number, and none of one machine."""
    host = urlsplit(address).hostname or ""
    first, _, last = host.rstrip(".").rpartition(".")
    return bool(first) and not any(c.isdigit() for c in last) and last not in _LOCAL


def _is_placeholder(address: str) -> bool:
    """Whether an address is one of those that stand in instructions."""
    parts = urlsplit(address)
    host = (parts.hostname or "").split(".")[-2:-1]
    return host == ["example"] or not _PLACEHOLDERS.isdisjoint(parts.path.lower().split("/"))


def _check_name(record: Result, name: str) -> Iterator[Finding]:
    """A name is neither a built-in method's nor a claim, with its own arguments in brackets."""
    method, base = record.identity.localizer, _base_name(name)
    split = list(filter(None, re.split(r"[^A-Za-z0-9]+", name)))
    words = list(map(_letters, split))
    for owner in known().localizers:
        if base == method.name and base in known().localizers:
            break
        look = _skeleton(owner)
        if look in words or (len(look) >= _WHOLE and look in _skeleton(base)):
            same = base == owner
            what = "is a built-in method's" if same else f"could be taken for the built-in {owner}"
            wrong = f"{shown(name)} {what}, and this is another"
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
    verification: Verification,
    record: Result | None,
    table: pa.Table | None,
    hashes: Mapping[str, str],
) -> Iterator[Finding]:
    """The verification is of this very record, and its sample agreed within the usual tolerance.

    Args:
        verification: The verification.
        record: The record of the entry; None where it does not read.
        table: Its per-fact rows, sorted; None where they do not read.
        hashes: Of the record and its rows.
    """
    if record is None or table is None:
        return
    own, n = verification, record.identity.n_facts
    wanted = {
        "record": record.id,
        "record_hash": hashes[RECORD],
        "facts_hash": hashes.get(FACTS),
        "rows": own.n * len(spans(table)),
    }
    most = {
        "tolerance": TOLERANCES.get(record.identity.dtype, 0.0),
        "largest_difference": own.tolerance,
        "n": n,
        "changed_hits": ceil(TIES * own.rows),
    }
    stated, laws = own.model_dump(), []
    for name, value in wanted.items():
        laws.append((name, stated[name], stated[name] == value, f"{value}, as the entry gives"))
    for name, bound in most.items():
        laws.append((name, stated[name], stated[name] <= bound, f"at most {bound}"))
    yield from unmet(laws)
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


def check_place(entry: CheckedEntry, record: Result) -> Iterator[Finding]:
    """An entry is in the folder of its method and board, under its own name.

    Args:
        entry: Its documents.
        record: Its record.
    """
    submission = entry.submission
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

_ALIKE = 0.99
"""Share of ranks from which on two methods may be one."""

_DIGITS = 12
"""Digits of an id that name an entry's folder and pages."""

Key = tuple[object, ...]


@dataclass(frozen=True)
class Made:
    """What a method gave on some models, facts and configurations."""

    ranks: NDArray[np.int64]
    """Of the rows, sorted."""
    scores: tuple[SiteScore, ...]
    """Map of a plant; otherwise empty."""
    name: str
    """On the board."""
    localizer: str
    folder: str

    @cached_property
    def order(self) -> NDArray[np.str_]:
        """Sites of its map by their score, highest first."""
        sites = []
        for site in self.scores:
            sites.append((-site.score, f"{site.layer} {site.component} {site.region}"))
        return np.array([name for _, name in sorted(sites)], dtype=np.str_)

    def shared(self, other: Made) -> float:
        """Share of ranks, or of places in the order of sites, that two methods have in common."""
        shares = []
        for own, theirs in ((self.ranks, other.ranks), (self.order, other.order)):
            alike = len(own) == len(theirs)
            shares.append(float((own == theirs).mean()) if alike and len(own) else float(alike))
        return min(shares)


@dataclass
class Others:
    """Entries before the one that is checked."""

    ids: dict[str, str] = field(default_factory=dict)
    """Folder by the first digits of the id."""
    methods: dict[str, tuple[str, Key, str]] = field(default_factory=dict)
    """By the skeleton of the name on the board: the name, the method, and a folder."""
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the skeleton of the name without arguments: where the code is from, and a folder."""
    made: dict[Key, list[Made]] = field(default_factory=dict)
    """What methods gave, by models, facts and configurations."""
    runs: dict[Key, str] = field(default_factory=dict)
    """Folder by method, suite, prompt, models, facts and seed."""
    answers: dict[Key, tuple[pa.Table, str]] = field(default_factory=dict)
    """Rows of PRE and SFT by weights, prompt and configuration, and their folder."""
    board: dict[str, Mapping[str, str]] | None = None
    """Hashes of the documents and rows of entries on the board; None where there is no board to
    compare with."""

    def replaced(self, entry: CheckedEntry) -> None:
        """Refuse changes of an entry that is on the board, and verifications that are not.

        Args:
            entry: Its documents and rows, to which findings are added.
        """
        if self.board is None:
            return
        before, now = self.board.get(entry.folder, {}), entry.hashes()
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
            entry.add([Finding("file", wrong, expected)], name)

    def outdated(self, entry: CheckedEntry, record: Result) -> None:
        """Refuse a new entry that counts ties for the method, or of a built-in one's other seeds.

        Older entries stay, marked.
        """
        what = record.identity
        new = self.board is not None and entry.folder not in self.board
        if new and what.localizer.name in known().localizers and what.seeds != (0,):
            wrong = f"it is {shown(list(what.seeds))} of a built-in method"
            expected = "0: those who keep the board run further seeds of built-in methods"
            entry.add([Finding("identity.seeds", wrong, expected)], RECORD)
        if new and record.identity.ties_count_for_the_target:
            wrong = "it is 1, in which ties count for the method"
            expected = f"{known().metric_version}; run it again"
            entry.add([Finding("identity.metric_version", wrong, expected)], RECORD)

    def compare(self, entry: CheckedEntry, record: Result) -> None:
        """Compare an entry with earlier ones, to which it is added.

        Args:
            entry: Its documents and rows, to which findings are added.
            record: Its record.
        """
        folder, table, submission = entry.folder, entry.table, entry.submission
        first = self.ids.setdefault(record.id[:_DIGITS], folder)
        if first != folder:
            twice = Finding("id", f"the same result is in {first}", "each result once")
            entry.add([twice], RECORD)
            return
        if submission is not None:
            entry.add(self._named(folder, record, submission), SUBMISSION)
            if entry.accepted:
                entry.add(self._ran(folder, record, submission), RECORD)
            if entry.accepted and table is not None:
                entry.add(self._copied(folder, record, table, submission), FACTS)
        if table is not None:
            entry.add(self._answered(folder, record, table), FACTS)

    def _named(self, folder: str, record: Result, submission: Submission) -> Iterator[Finding]:
        """One spelling, method and origin of code per name."""
        name, key, base = submission.name, _method_key(record), _base_name(submission.name)
        spelling, method, where = self.methods.setdefault(_skeleton(name), (name, key, folder))
        if spelling != name:
            wrong = f"{shown(name)} looks like {shown(spelling)} in {where}"
            yield Finding("name", wrong, "that very name, or one that nobody takes for it")
            return
        if method != key:
            wrong = f"{shown(name)} is {_method(key)} here, and {_method(method)} in {where}"
            expected = "one method, version and set of parameters under one name"
            yield Finding("name", wrong, expected)
            return
        own = _origin(submission.code)
        source, where = self.origins.setdefault(_skeleton(base), (own, folder))
        if own != source:
            elsewhere = f"from {shown(source)} in {where}"
            wrong = f"{shown(base)} is from {shown(own)} here, and {elsewhere}"
            yield Finding("code", wrong, "one repository or package for a name")

    def _ran(self, folder: str, record: Result, submission: Submission) -> Iterator[Finding]:
        """One run of a method per suite, prompt, models, facts and seed, whatever else was run."""
        what = record.identity
        cell = (what.weights.model_dump_json(), what.tokenizer, what.dataset.hash, what.limit)
        for suite, prompt in product(suites_of(record), what.prompts):
            key = (_skeleton(submission.name), suite, prompt, *cell, what.seeds)
            if (first := self.runs.setdefault(key, folder)) != folder:
                wrong = f"{shown(submission.name)} has a run of {suite} on {prompt} in {first}"
                expected = "one run of a method for each pair, facts, prompt and seed"
                yield Finding("identity", wrong, expected)
                return

    def _copied(
        self, folder: str, record: Result, table: pa.Table, submission: Submission
    ) -> Iterator[Finding]:
        """The same ranks of facts under another name; built-in methods may agree to the bit.

        On a plant many methods find the same few sites, so that there their maps are compared too.
        """
        truth = record.identity.truth
        if truth is not None and record.scores is None:
            return
        grafted = table.filter(pc.invert(pc.is_in(table["graft"], pa.array(BASELINES))))
        key = (record.identity.weights.model_dump_json(), rows_hash(grafted, COLUMNS[:-1]))
        own = Made(
            grafted["rank"].to_numpy().astype(np.int64),
            (record.scores or ()) if truth is not None else (),
            submission.name,
            record.identity.localizer.name,
            folder,
        )
        others = self.made.setdefault(key, [])
        for other in others:
            if other.name == own.name or {own.localizer, other.localizer} <= set(
                known().localizers
            ):
                continue
            if (share := own.shared(other)) > _ALIKE:
                part = "all" if share == 1 else f"{100 * share:.2f} % of"
                wrong = f"{part} ranks are those of {shown(other.name)} in {other.folder}"
                yield Finding("rank", wrong, "a method's own answers", refuses=share == 1)
                break
        others.append(own)

    def _answered(self, folder: str, record: Result, table: pa.Table) -> Iterator[Finding]:
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
                yield Finding(column, f"{graft} on {prompt}: {wrong}", expected)
                return


def _method_key(record: Result) -> Key:
    """What a name on the board denotes: method and parameters, without seeds and ground truth."""
    method = record.identity.localizer
    version = " ".join(part for part in method.version.split(" ") if part != "scan")
    parameters = method.parameters.items()
    kept = {key: value for key, value in parameters if key not in ("seed", *_HIDDEN)}
    return method.name, version, canonical_json(kept)


def _method(key: Key) -> str:
    name, version, parameters = key
    return f"{shown(name)} {shown(version)} with {shown(parameters)}"
