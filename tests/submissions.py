"""Entries that may stand on the board, for tests of what is refused: their models are shipped, and
what they answer is made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from fake_runs import RATES, record, rows

from kgbench.data import prompt_hash
from kgbench.leaderboard.entries import (
    Contract,
    Submission,
    entry_name,
    folder_name,
    read_entries,
)
from kgbench.leaderboard.folders import changed, document_hash, rows_hash
from kgbench.leaderboard.known import known, own_facts
from kgbench.leaderboard.validate import Finding, validate
from kgbench.records import DatasetRef, Identity, LocalizerRef, Record, WeightHashes, facts_table
from kgbench.records.fact_rows import STORED, in_order
from kgbench.stats import rescored

N = 30


def answers(
    rates: Mapping[str, float] = RATES, n: int = N, seed: int = 0, model: str = "tiny-gemma"
) -> pa.Table:
    """Per-fact rows of these hit rates that a model could give; PRE and SFT are the pair's own."""
    same, own = rows(n, rates, seed=0), rows(n, rates, seed=seed)
    table = pa.concat_tables([_only(same, baseline=True), _only(own, baseline=False)])
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in table.column_names}
    rank = columns["rank"]
    difference = np.where(rank == 1, 2.5, -0.2 * np.log1p(rank))
    highest = np.minimum(-np.log(rank), -np.logaddexp(0, -difference)) - 0.01
    logprob = np.minimum(columns["logprob"], highest)
    made = {**columns, "logit_diff": difference, "logprob": logprob}
    _answer_as_known(made, model)
    return facts_table({**made, "prob": np.exp(made["logprob"])})


def _answer_as_known(columns: dict[str, Any], model: str) -> None:
    """Give rows the positions and targets of a pair, and those of PRE and SFT its answers."""
    index = np.array([int(fact.rpartition("/")[2]) for fact in columns["fact"]])
    for prompt, own in known().answers[model].items():
        here = columns["prompt"] == prompt
        for name in ("position", "target"):
            columns[name] = np.where(here, np.array(own[name])[index], columns[name])
        for graft in ("PRE", "SFT"):
            rows = here & (columns["graft"] == graft)
            logprob = np.array(own[graft])[index[rows]]
            # The least logit difference that leaves the target this probability.
            least = -np.log(np.expm1(-logprob))
            misses = np.where(np.array(own[f"{graft} hits"])[index[rows]], 2, 6)
            columns["rank"][rows] = np.where(least > 0, 1, misses)
            columns["logit_diff"][rows] = np.where(least > 0, least + 0.1, least / 2)
            columns["logprob"][rows] = logprob


def _only(table: pa.Table, baseline: bool) -> pa.Table:
    return table.filter(
        pa.array([(graft in ("PRE", "SFT")) == baseline for graft in table["graft"].to_pylist()])
    )


def identity(
    model: str = "tiny-gemma", localizer: LocalizerRef | None = None, n: int = N, **changes: object
) -> Identity:
    """The identity of a pathways run on a shipped pair."""
    pair, dataset = known().pairs[model], own_facts(model)
    assert dataset is not None
    weights = dict(pair.weights["float32"])
    parts: dict[str, object] = {
        "dataset": DatasetRef(name=dataset.name, hash=dataset.content_hash, n=len(dataset.facts)),
        "prompts": {name: prompt_hash(name, dataset) for name in ("headline", "qa")},
        "weights": WeightHashes(recipient=weights.pop("recipient"), donors=weights),
        "tokenizer": pair.tokenizer,
        "localizer": localizer or LocalizerRef(name="dynamic_graft", version="1"),
        "configurations": tuple(RATES),
        "metric_version": known().metric_version,
        "dtype": "float32",
        "seeds": (0,),
        "limit": n,
    }
    return Identity.model_validate({**parts, **changes})


def result(
    what: Identity | None = None,
    rates: Mapping[str, float] = RATES,
    seed: int = 0,
    **changes: object,
) -> tuple[Record, pa.Table]:
    """A record and its rows, with real figures."""
    what = what or identity()
    facts = answers(
        rates,
        min(what.limit or what.dataset.n, what.dataset.n),
        seed,
        str(changes.get("model", "tiny-gemma")),
    )
    made = record(facts, what=what, dropped={}, **{"model": "tiny-gemma", **changes})
    return rescored(made, facts), facts


KEPT = Contract(kgbench="0.1.0", laws=16)
"""The claim that a method keeps all laws."""

OTHERS = LocalizerRef(
    name="my_method", version="1 MyMethod 0123456789abcdef", parameters={"seed": 0}
)
"""A method of somebody else's."""

CODE = "my-method==1.0"


@dataclass
class Sent:
    """An entry as somebody sends it, who may have changed it."""

    place: str
    """Its method folder in the results."""
    name: str
    documents: dict[str, Any]
    rows: pa.Table

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = self.documents["record.json"]
        return found

    @property
    def submission(self) -> dict[str, Any]:
        found: dict[str, Any] = self.documents["submission.json"]
        return found

    def seal(self, sign: bool = False) -> None:
        """Let the submission have the hashes of record and rows, as a careful forger would.

        Args:
            sign: Also make the id the hash of the identity again.
        """
        if sign:
            self.record["id"] = Identity.model_validate(self.record["identity"]).digest()
            self.submission["record"] = self.record["id"]
        self.submission["record_hash"] = document_hash(self.record)
        self.submission["facts_hash"] = rows_hash(in_order(self.rows))

    def verify(self, **changes: object) -> None:
        """Put a verification of all facts beside the record, with some fields changed."""
        content = {
            "record": self.record["id"],
            "record_hash": document_hash(self.record),
            "facts_hash": rows_hash(self.rows),
            "kgbench": "0.1.0",
            "platform": "Linux",
            "time": "2026-01-01T00:00:00+00:00",
            "seed": 0,
            "n": N,
            "rows": self.rows.num_rows,
            "largest_difference": 1e-6,
            "changed_hits": 0,
            "tolerance": 0.001,
        }
        self.documents["verification.json"] = {"schema_version": 2, **content, **changes}


def sent(
    made: tuple[Record, pa.Table],
    name: str | None = None,
    code: str | None = None,
    contract: Contract | None = KEPT,
    source: Literal["self-reported"] | None = "self-reported",
) -> Sent:
    """A run as `kgbench submit` makes an entry of it, or with no source the project itself."""
    record, facts = made
    name = name or record.identity.localizer.name
    rows, document = facts.select(STORED.names).cast(STORED), record.document()
    submission = Submission(
        record=record.id,
        record_hash=document_hash(document),
        facts_hash=rows_hash(rows),
        name=name,
        code=code or "kgbench==0.1.0",
        contract=contract,
        source=source,
    )
    documents = {"record.json": document, "submission.json": submission.to_json()}
    return Sent(folder_name(record, name), entry_name(record, name), documents, rows)


def put(results: Path, *entries: Sent) -> Path:
    """Write entries into the folders of their methods; those that are there are replaced."""
    for place, theirs in groupby(entries, key=lambda entry: entry.place):
        with changed(results / place) as (documents, rows):
            for entry in theirs:
                documents[entry.name], rows[entry.name] = entry.documents, entry.rows
    return results


def entries_of(results: Path) -> list[Sent]:
    """The entries of a board, to be changed and sent."""
    found = []
    for entry in read_entries(results):
        place = "/".join(entry.folder.parent.parts[-2:])
        documents = json.loads(json.dumps(entry.documents))
        found.append(Sent(place, entry.folder.name, documents, entry.rows()))
    return found


def honest_entries() -> tuple[Sent, Sent]:
    """A built-in method's entry and another's, on the same pair."""
    theirs = result(identity(localizer=OTHERS), {**RATES, "FE": 0.5, "LT": 0.4}, seed=1)
    return sent(result()), sent(theirs, "my method", CODE)


def findings(path: Path, strict: bool = True, beside: Path | None = None) -> list[Finding]:
    """All that is found."""
    return [finding for entry in validate(path, strict, beside) for finding in entry.findings]


def refused(path: Path, strict: bool = True, beside: Path | None = None) -> list[str]:
    """Lines of what is refused."""
    return [str(finding) for finding in findings(path, strict, beside) if finding.refuses]


def edited(rows: pa.Table, name: str, change: Callable[[Any], object]) -> pa.Table:
    """Rows of which a column is changed in place, as an array."""
    values = rows[name].to_numpy(zero_copy_only=False).copy()
    change(values)
    place, field = rows.column_names.index(name), STORED.field(name)
    return rows.set_column(place, field, pa.array(values, field.type))


def off(facts: pa.Table, graft: str) -> pa.Table:
    """Rows of which one configuration's log-probabilities are a little lower."""
    values = facts["logprob"].to_numpy() - 0.02 * (np.array(facts["graft"].to_pylist()) == graft)
    columns = {name: facts[name] for name in facts.column_names}
    return facts_table({**columns, "logprob": values, "prob": np.exp(values)})
