"""Entries compared with each other.

No result twice, one run of a method on a cell, one method and one origin of code under a name, and
the same answers of the same models.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.leaderboard.entries import suites_of
from kgbench.leaderboard.limits import FACTS, FILES, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.submission import Submission
from kgbench.leaderboard.validate.entry_files import EntryFiles, Finding, in_file, shown
from kgbench.leaderboard.validate.known import known
from kgbench.leaderboard.validate.row_checks import rows_of
from kgbench.leaderboard.validate.submission_checks import base_name, method_key, origin, skeleton
from kgbench.records import Record
from kgbench.sites import BASELINES

__all__ = ["Others"]

_TOLERANCE = 1e-2
"""Nats by which a log-probability of one model may differ between machines."""

_COARSE = 0.25
"""The same where models compute in 16 bits."""

Cell = tuple[object, ...]
"""Weights, prompt and configuration: the same models on the same texts."""


_DIGITS = 12
"""Digits of an id that name an entry's folder and pages."""


@dataclass
class Others:
    """Entries before the one that is checked."""

    ids: dict[str, str] = field(default_factory=dict)
    """Folder by the first digits of the id."""
    methods: dict[str, tuple[str, tuple[object, ...], str]] = field(default_factory=dict)
    """By the skeleton of the name on the board: the name, the method, and a folder."""
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By the skeleton of the name without arguments: where the code is from, and a folder."""
    made: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """By a hash of the rows that a method gives: its name on the board, localizer, and folder."""
    runs: dict[tuple[object, ...], str] = field(default_factory=dict)
    """Folder by method, suite, prompt, models, facts and seed."""
    answers: dict[Cell, tuple[pa.Table, str]] = field(default_factory=dict)
    """Rows of PRE and SFT, and their folder."""
    board: dict[str, EntryFiles] | None = None
    """Entries on the board, their bytes as hashes; None where there is no board to compare with."""

    def replaced(self, folder: EntryFiles) -> list[Finding]:
        """Changes of an entry that is on the board, and verifications that are not.

        Args:
            folder: The entry.
        """
        if self.board is None:
            return []
        before = self.board[folder.name].files if folder.name in self.board else {}
        now = folder.hashes()
        findings = []
        for name in FILES:
            was, own = before.get(name), now.get(name)
            if was == own or (name != VERIFICATION and not before):
                continue
            if own is None:
                wrong, expected = "it is gone", "the file that is on the board"
            elif name == VERIFICATION:
                wrong = "it comes with the result"
                expected = "that of those who keep the board, who run kgbench verify themselves"
            else:
                wrong = "it is another one than on the board"
                expected = "entries as they are, and new ones beside them"
            findings.append(Finding("file", wrong, expected, file=folder.at(name)))
        return findings

    def outdated(self, folder: EntryFiles, record: Record) -> list[Finding]:
        """Findings on a new entry that counts ties for the method; older entries stay, marked."""
        new = self.board is not None and folder.name not in self.board
        if not new or not record.identity.ties_count_for_the_target:
            return []
        wrong = "it is 1, in which ties count for the method"
        expected = f"{known().metric_version}; run it again"
        return [Finding("identity.metric_version", wrong, expected, file=folder.at(RECORD))]

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
        finding, file = None, FACTS
        if submission is not None:
            finding, file = self._named(folder, record, submission), SUBMISSION
            if finding is None:
                finding, file = self._ran(folder, record, submission), RECORD
            if finding is None and table is not None:
                finding, file = self._copied(folder, record, table, submission), FACTS
        findings = in_file(f"{folder}/{file}", [] if finding is None else [finding])
        answered = None if table is None else self._answered(folder, record, table)
        return findings + in_file(f"{folder}/{FACTS}", [] if answered is None else [answered])

    def _named(self, folder: str, record: Record, submission: Submission) -> Finding | None:
        """One spelling, method and origin of code per name."""
        name, key = submission.name, method_key(record)
        spelling, method, where = self.methods.setdefault(skeleton(name), (name, key, folder))
        if spelling != name:
            wrong = f"{shown(name)} looks like {shown(spelling)} in {where}"
            return Finding("name", wrong, "that very name, or one that nobody takes for it")
        if method != key:
            wrong = f"{shown(name)} is {_method(key)} here, and {_method(method)} in {where}"
            return Finding(
                "name", wrong, "one method, version and set of parameters under one name"
            )
        own, base = origin(submission.code), base_name(name)
        source, where = self.origins.setdefault(skeleton(base), (own, folder))
        if own != source:
            elsewhere = f"from {shown(source)} in {where}"
            wrong = f"{shown(base)} is from {shown(own)} here, and {elsewhere}"
            return Finding("code", wrong, "one repository or package for a name")
        return None

    def _ran(self, folder: str, record: Record, submission: Submission) -> Finding | None:
        """One run of a method per suite, prompt, models, facts and seed, whatever else was run."""
        what = record.identity
        cell = (what.weights.model_dump_json(), what.tokenizer, what.dataset.hash, what.limit)
        for suite, prompt in product(suites_of(record), what.prompts):
            key = (skeleton(submission.name), suite, prompt, *cell, what.seeds)
            if (first := self.runs.setdefault(key, folder)) != folder:
                wrong = f"{shown(submission.name)} has a run of {suite} on {prompt} in {first}"
                expected = "one run of a method for each pair, facts, prompt and seed"
                return Finding("identity", wrong, expected)
        return None

    def _copied(
        self, folder: str, record: Record, table: pa.Table, submission: Submission
    ) -> Finding | None:
        """The same ranks of all facts under another name; built-in methods may agree to the bit.

        On a plant many methods find the same few sites, so that there their maps are compared too.
        """
        if record.planted is not None and record.scores is None:
            return None
        digest = sha256(record.identity.weights.model_dump_json().encode())
        scores = sorted(record.scores or (), key=lambda score: (-score.score, str(score)))
        for score in scores if record.planted is not None else ():
            digest.update(f"{score.layer} {score.component} {score.region}\n".encode())
        columns = ["prompt", "graft", "fact", "rank"]
        rows = table.filter(pc.invert(pc.is_in(table["graft"], pa.array(BASELINES))))
        rows = rows.select(columns).sort_by([(name, "ascending") for name in columns])
        for name in columns:
            digest.update("\n".join(map(str, rows[name].to_pylist())).encode())
        own = (submission.name, record.identity.localizer.name, folder)
        name, localizer, where = self.made.setdefault(digest.hexdigest(), own)
        if name == submission.name or {own[1], localizer} <= set(known().localizers):
            return None
        wrong = f"all ranks are those of {shown(name)} in {where}"
        return Finding("rank", wrong, "a method's own answers")

    def _answered(self, folder: str, record: Record, table: pa.Table) -> Finding | None:
        """The rows of PRE and SFT against those of the same models in another entry."""
        what = record.identity
        donors = sorted(what.weights.donors.items())
        weights = (what.weights.recipient, *donors, what.tokenizer, what.dtype)
        tolerance = _COARSE if "16" in what.dtype else _TOLERANCE
        for (prompt, hash), graft in product(what.prompts.items(), BASELINES):
            own = rows_of(table, prompt, graft)
            key = (weights, hash, graft, what.dataset.name)
            first, where = self.answers.setdefault(key, (own, folder))
            if wrong := _apart(own, first, tolerance):
                expected = f"the answers in {where}, since the models and texts are the same"
                return Finding("logprob", f"{graft} on {prompt}: {wrong}", expected)
        return None


def _method(key: tuple[object, ...]) -> str:
    name, version, parameters = key
    return f"{shown(name)} {shown(version)} with {shown(parameters)}"


def _apart(own: pa.Table, first: pa.Table, tolerance: float) -> str | None:
    """How answers of one model differ on facts that two entries share; None where they agree."""
    columns = ["fact", "position", "target", "logprob"]
    both = own.select(columns).join(
        first.select(columns), "fact", right_suffix="_first", join_type="inner", use_threads=False
    )
    if not both.num_rows:
        return None
    moved = both.filter(pc.not_equal(both["position"], both["position_first"]))
    if moved.num_rows:
        return f"fact {shown(moved['fact'][0].as_py())} is read at another position"
    if (other := both.filter(pc.not_equal(both["target"], both["target_first"]))).num_rows:
        return f"fact {shown(other['fact'][0].as_py())} has another target"
    off = np.abs(both["logprob"].to_numpy() - both["logprob_first"].to_numpy())
    if float(off.max()) <= tolerance:
        return None
    worst = int(off.argmax())
    return f"fact {shown(both['fact'][worst].as_py())} is off by {off[worst]:.3g} nats"
