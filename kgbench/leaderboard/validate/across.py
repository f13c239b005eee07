"""Entries against each other: no result twice, one method under one name, and the same models giving the same answers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.leaderboard.entries import RECORD, VERIFICATION
from kgbench.leaderboard.submission import Submission
from kgbench.leaderboard.validate.findings import Finding, shown
from kgbench.leaderboard.validate.folders import Folder
from kgbench.leaderboard.validate.known import known
from kgbench.leaderboard.validate.submitted import folded, method_key
from kgbench.records import Record
from kgbench.sites import BASELINES

__all__ = ["Others"]

_TOLERANCE = 1e-2
"""Nats by which a log-probability of one model may differ between machines."""

_COARSE = 0.25
"""The same where models compute in 16 bits."""

Cell = tuple[object, ...]
"""Weights, prompt and configuration: the same models on the same texts."""


@dataclass
class Others:
    """What was seen of the entries before."""

    ids: dict[str, str] = field(default_factory=dict)
    """Folder by id."""
    methods: dict[str, tuple[tuple[object, ...], str]] = field(default_factory=dict)
    """By name on the board, folded: the method, and a folder."""
    answers: dict[Cell, tuple[pa.Table, str]] = field(default_factory=dict)
    """Rows of PRE and SFT, and their folder."""
    board: dict[str, Folder] | None = None
    """Entries that are on the board already, their bytes as hashes; None where there is no board to compare with."""

    def replaced(self, folder: Folder) -> list[Finding]:
        """What an entry changes on the board: another one of its name, or who says that it was run again."""
        if self.board is None:
            return []
        before = self.board.get(folder.name)
        findings = []
        if before is not None and before.files != folder.hashes():
            wrong = "an entry of this name is on the board, and its files are other ones"
            expected = "new entries; whoever reviews this must know why an old one changes"
            findings.append(Finding(folder.name, "content", wrong, expected, refuses=False))
        if VERIFICATION in folder.files and (before is None or before.files.get(VERIFICATION) != folder.hashes()[VERIFICATION]):
            wrong, expected = "it comes with the result", "that of those who keep the board, who run kgbench verify themselves"
            findings.append(Finding(folder.at(VERIFICATION), "file", wrong, expected))
        return findings

    def outdated(self, folder: Folder, record: Record) -> list[Finding]:
        """Whether a new entry counts ties for the method; those that are on the board already stay, and are marked there."""
        if self.board is None or folder.name in self.board or not record.identity.ties_count_for_the_target:
            return []
        wrong = "it is 1, in which ties count for the method"
        return [Finding(folder.at(RECORD), "identity.metric_version", wrong, f"{known().metric_version}; run it again")]

    def compare(self, folder: str, record: Record, table: pa.Table | None, submission: Submission | None) -> list[Finding]:
        """What is wrong with an entry beside those before; it then is one of them.

        Args:
            folder: Its name.
            record: Its record.
            table: Its per-fact rows; None where they do not read.
            submission: What goes with it.
        """
        findings = self._twice(folder, record)
        findings += self._named(folder, record, submission) if submission is not None else []
        return findings + (self._answered(folder, record, table) if table is not None else [])

    def _twice(self, folder: str, record: Record) -> list[Finding]:
        if (first := self.ids.setdefault(record.id, folder)) != folder:
            return [Finding(f"{folder}/record.json", "id", f"the same result is in {first}", "each result once")]
        return []

    def _named(self, folder: str, record: Record, submission: Submission) -> list[Finding]:
        key = method_key(record)
        first, where = self.methods.setdefault(folded(submission.name), (key, folder))
        if first == key:
            return []
        wrong = f"{shown(submission.name)} is {_method(key)} here, and {_method(first)} in {where}"
        return [Finding(f"{folder}/submission.json", "name", wrong, "one method, version and set of parameters under one name")]

    def _answered(self, folder: str, record: Record, table: pa.Table) -> list[Finding]:
        """The rows of PRE and SFT against those of the same models in another entry."""
        identity = record.identity
        weights = (identity.weights.recipient, *sorted(identity.weights.donors.items()), identity.tokenizer, identity.dtype)
        for prompt, hash in identity.prompts.items():
            for graft in BASELINES:
                own = table.filter(pc.and_(pc.equal(table["prompt"], prompt), pc.equal(table["graft"], graft)))
                first, where = self.answers.setdefault((weights, hash, graft, identity.dataset.name), (own, folder))
                if wrong := _apart(own, first, _TOLERANCE if "16" not in identity.dtype else _COARSE):
                    expected = f"the answers in {where}, since the models and texts are the same"
                    return [Finding(f"{folder}/facts.parquet", "logprob", f"{graft} on {prompt}: {wrong}", expected)]
        return []


def _method(key: tuple[object, ...]) -> str:
    name, version, parameters = key
    return f"{shown(name)} {shown(version)} with {shown(parameters)}"


def _apart(own: pa.Table, first: pa.Table, tolerance: float) -> str | None:
    """How the answers of the same model differ on the facts that two entries share; None where they do not."""
    columns = ["fact", "position", "target", "logprob"]
    both = own.select(columns).join(
        first.select(columns), ["fact", "position"], right_suffix="_first", join_type="inner", use_threads=False
    )
    if not both.num_rows:
        return None
    if (other := both.filter(pc.not_equal(both["target"], both["target_first"]))).num_rows:
        return f"fact {shown(other['fact'][0].as_py())} has another target"
    off = np.abs(both["logprob"].to_numpy() - both["logprob_first"].to_numpy())
    if float(off.max()) <= tolerance:
        return None
    worst = int(off.argmax())
    return f"fact {shown(both['fact'][worst].as_py())} is off by {off[worst]:.3g} nats"
