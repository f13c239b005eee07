"""Entries that may stand on the board, for tests of what is refused: their models are shipped, and
what they answer is made up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from fake_runs import RATES, record, rows
from kgbench.leaderboard.packs import packs_below, read_pack

from kgbench.data import prompt_hash
from kgbench.leaderboard.entries import Contract, Submission
from kgbench.leaderboard.validate import Finding, validate
from kgbench.leaderboard.validate.known import known, own_facts
from kgbench.records import DatasetRef, Identity, LocalizerRef, Record, WeightHashes, facts_table
from kgbench.records.fact_rows import facts_bytes
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


def write_entry(
    folder: Path,
    made: tuple[Record, pa.Table],
    name: str | None = None,
    code: str | None = None,
    contract: Contract | None = KEPT,
) -> Path:
    """Write an entry's files."""
    what, facts = made
    folder.mkdir(parents=True)
    (folder / "record.json").write_text(what.to_json(), encoding="utf-8")
    (folder / "facts.parquet").write_bytes(facts_bytes(facts))
    submission = Submission(
        record=what.id,
        name=name or what.identity.localizer.name,
        code=code or "kgbench==0.1.0",
        contract=contract,
    )
    (folder / "submission.json").write_text(submission.to_json(), encoding="utf-8")
    seal(folder)
    return folder


def seal(folder: Path) -> None:
    """Let the submission say the hashes that the files have now."""
    path = folder / "submission.json"
    hashes = {
        name: sha256((folder / name).read_bytes()).hexdigest()
        for name in ("record.json", "facts.parquet")
    }
    submission = Submission.model_validate_json(path.read_bytes()).model_copy(
        update={"files": hashes}
    )
    path.write_text(submission.to_json(), encoding="utf-8")


OTHERS = LocalizerRef(
    name="my_method", version="1 MyMethod 0123456789abcdef", parameters={"seed": 0}
)
"""A method of somebody else's."""

CODE = "my-method==1.0"


def edit(
    folder: Path,
    change: Callable[[dict[str, Any]], object],
    file: str = "record.json",
    sign: bool = False,
) -> None:
    """Change a JSON file of an entry by hand, and the hash that the submission holds of it.

    Args:
        folder: The entry.
        change: Changes the content.
        file: Which file.
        sign: Also make the id the hash of the identity again, as a careful forger would.
    """
    content = json.loads((folder / file).read_text("utf-8"))
    change(content)
    if sign:
        content["id"] = Identity.model_validate(content["identity"]).digest()
        edit(folder, lambda submission: submission.update(record=content["id"]), "submission.json")
    (folder / file).write_text(
        json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    if file == "record.json" and (folder / "submission.json").is_file():
        seal(folder)


Change = Callable[[Path], object]
"""What somebody does to an entry's folder."""


def unpack_all(results: Path) -> Path:
    """Make the packed entries of a board folders again, as somebody who edits them would."""
    for path in packs_below(results):
        for name, files in read_pack(path).items():
            (results / name).mkdir()
            for file, content in files.items():
                (results / name / file).write_bytes(content)
        path.unlink()
    return results


def findings(path: Path, strict: bool = True, beside: Path | None = None) -> list[Finding]:
    """All that is found."""
    return [finding for entry in validate(path, strict, beside) for finding in entry.findings]


def refused(path: Path, strict: bool = True, beside: Path | None = None) -> list[str]:
    """Lines of what is refused."""
    return [str(finding) for finding in findings(path, strict, beside) if finding.refuses]


def bytes_of(file: str, content: bytes) -> Change:
    """A file of other bytes."""
    return lambda folder: (folder / file).write_bytes(content)


def off(facts: pa.Table, graft: str) -> pa.Table:
    """Rows of which one configuration's log-probabilities are a little lower."""
    values = facts["logprob"].to_numpy() - 0.02 * (np.array(facts["graft"].to_pylist()) == graft)
    return facts_table(
        {
            **{name: facts[name] for name in facts.column_names},
            "logprob": values,
            "prob": np.exp(values),
        }
    )


def honest_entries(root: Path) -> Path:
    """A folder of entries: a built-in method and another's, on the same pair."""
    write_entry(root / "a-built-in", result())
    write_entry(
        root / "b-other",
        result(identity(localizer=OTHERS), {**RATES, "FE": 0.5, "LT": 0.4}, seed=1),
        "my method",
        CODE,
    )
    return root
