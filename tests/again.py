"""Fresh tiny runs that tests run again, and edits of what is stored of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from kgbench.records import SEAL, StoredRecord, load_record
from kgbench.records.fact_rows import facts_bytes
from kgbench.records.store import read_record

FRESH: dict[str, dict[str, Any]] = {
    "intervenes": {"localizer": "dynamic_graft", "model": "tiny-gemma", "limit": 12},
    "draws": {
        "localizer": "causal_trace",
        "model": "tiny-gemma",
        "limit": 12,
        "prompts": ["headline"],
        "localizer_args": {"draws": "2"},
    },
    "scores": {"localizer": "weight_delta", "model": "tiny-gemma", "limit": 12, "prompts": ["qa"]},
    "at random": {
        "localizer": "random",
        "model": "tiny-gemma",
        "limit": 12,
        "prompts": ["qa"],
        "seed": 3,
        "metric": "logprob",
    },
    "custom": {
        "localizer": "dynamic_graft",
        "model": "tiny-gemma",
        "limit": 12,
        "prompts": ["headline"],
        "grafts": ["LT:o+ffn@second_half", "FE"],
        "dtype": "float64",
    },
    "planted": {
        "localizer": "weight_delta",
        "model": "tiny-gemma.one-0",
        "limit": 12,
        "suite": "planted",
    },
}
"""What is evaluated: methods of all kinds, own grafts, a suite that knows the truth."""


def evaluated(root: Path, name: str) -> StoredRecord:
    """One of the fresh runs, computed where it is not there."""
    from kgbench import evaluate

    run = evaluate(**FRESH[name], output_dir=root / name, device="cpu")
    return read_record(run.path)


def edited(run: StoredRecord, root: Path, where: dict[str, str], **changes: Any) -> Path:
    """A copy of a run, without its seal, in which some columns of the rows that are at a place have
    other values.
    """
    shutil.copytree(run.path, place := root / run.path.name)
    columns = run.facts().to_pydict()
    rows = [
        i
        for i in range(len(columns["fact"]))
        if all(columns[key][i] == value for key, value in where.items())
    ]
    assert rows
    for i in rows:
        for name, value in changes.items():
            columns[name][i] = value
    import pyarrow as pa

    table = pa.table(columns, schema=run.facts().schema)
    (place / "facts.parquet").write_bytes(facts_bytes(table))
    (place / SEAL).unlink()
    assert load_record(str(place), root).record == run.record
    return place
