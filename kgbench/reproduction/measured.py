"""What figures rest on: the per-fact rows of every training seed, and how they were made; one file for a pair.

From the file every figure is computed again without a model. A row is one fact under one configuration on one prompt of one
evaluation under one training seed; only what figures show is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from kgbench.effects.columns import PromptColumns, by_prompt
from kgbench.errors import DataError, InputError
from kgbench.records import Record, Strict
from kgbench.reproduction.page import FigureSpec, Page

__all__ = ["ROWS", "SCHEMA", "About", "Donor", "Evaluated", "Measured", "columns_of", "kept_rows", "read_measured", "write_measured"]

ROWS = "rows.parquet"

_NAMES = ("evaluation", "prompt", "configuration", "fact")
SCHEMA = pa.schema(
    [
        pa.field("seed", pa.uint32(), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in _NAMES),
        pa.field("rank", pa.uint32(), nullable=False),
        pa.field("logprob", pa.float32(), nullable=False),
    ]
)
"""Sorted by all columns but the last two."""

_SORTED = [(name, "ascending") for name in ("seed", *_NAMES)]

_LEVEL = 9
"""Of zstd; higher ones take ten times as long and save a hundredth."""
_ABOUT = b"kgbench_reproduction"


class Donor(Strict):
    """A donor, as its card tells of it."""

    data: str
    texts: int
    """That were trained."""
    steps: int
    seconds: float
    weights: str
    recipe: dict[str, Any]
    changed: bool
    """Whether anything is not as the recipe has it."""
    precision: str

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> Donor:
        """From a card."""
        return cls(
            data=card["data"]["name"],
            texts=card["texts"]["trained"],
            changed=bool(card["changes"]),
            **{name: card[name] for name in ("steps", "seconds", "weights", "recipe", "precision")},
        )


class Evaluated(Strict):
    """An evaluation."""

    data: str
    record: str
    """Its record's id."""
    seconds: float


class About(Strict):
    """How rows were made."""

    model: str
    tiny: bool
    donors: dict[int, dict[str, Donor]]
    """By training seed."""
    evaluations: dict[int, dict[str, Evaluated]]
    """By training seed."""
    kgbench: str
    torch: str
    device: str
    platform: str

    @property
    def seeds(self) -> tuple[int, ...]:
        """The training seeds."""
        return tuple(self.evaluations)

    def donors_of(self, trainings: Sequence[str]) -> dict[tuple[int, str], Donor]:
        """By training seed and training."""
        return {(seed, name): own[name] for seed, own in self.donors.items() for name in trainings}


@dataclass(frozen=True)
class Measured:
    """All that figures of a pair rest on."""

    about: About
    table: pa.Table
    """Rows of SCHEMA."""


def kept_rows(seed: int, evaluation: str, figures: Sequence[FigureSpec], page: Page, record: Record, facts: pa.Table) -> pa.Table:
    """What figures show of an evaluation's per-fact rows.

    Args:
        seed: The training seed.
        evaluation: Its name.
        figures: All that may be made of it.
        page: The page that they stand on.
        record: Its record.
        facts: Its per-fact rows.
    """
    own = [figure for figure in figures if figure.evaluation == evaluation]
    shown = {(prompt, graft) for f in own for prompt in f.prompts for graft in ("PRE", "SFT", *page.rows[f.rows].values())}
    prompts, grafts = facts["prompt"].to_pylist(), facts["graft"].to_pylist()
    # Where a prompt was read at several positions, the last counts; rows are sorted by position last.
    keys = list(zip(prompts, grafts, facts["fact"].to_pylist(), strict=True))
    last = [key != after for key, after in zip(keys, [*keys[1:], None], strict=True)]
    part = facts.filter(pa.array([(p, g) in shown and end for p, g, end in zip(prompts, grafts, last, strict=True)]))
    columns = {
        "seed": np.full(part.num_rows, seed),
        "evaluation": [evaluation] * part.num_rows,
        "prompt": part["prompt"],
        "configuration": part["graft"],
        "fact": part["fact"],
        "rank": part["rank"].cast(pa.uint32()),
        "logprob": part["logprob"].cast(pa.float32(), safe=False),
    }
    return pa.table(columns, schema=SCHEMA)


def columns_of(measured: Measured, evaluation: str) -> dict[str, tuple[PromptColumns, ...]]:
    """Each prompt's columns under each training seed, by prompt.

    Raises:
        InputError: The rows hold nothing of this evaluation.
    """
    found: dict[str, list[PromptColumns]] = {}
    part = measured.table.filter(pc.equal(measured.table["evaluation"], evaluation))
    for seed in measured.about.seeds:
        own = part.filter(pc.equal(part["seed"], seed)).rename_columns([{"configuration": "graft"}.get(n, n) for n in SCHEMA.names])
        if not own.num_rows:
            raise InputError(f"these rows hold nothing of the evaluation {evaluation!r} under seed {seed}; make its figures first")
        for prompt in by_prompt(own.drop_columns(["seed", "evaluation"]), ()):
            found.setdefault(prompt.name, []).append(prompt)
    return {name: tuple(seeds) for name, seeds in found.items()}


def write_measured(measured: Measured, path: Path) -> None:
    """Write the file; equal rows give equal bytes under one version of pyarrow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = measured.about.model_dump_json().encode()
    pq.write_table(
        measured.table.sort_by(_SORTED).replace_schema_metadata({_ABOUT: about}),
        path,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=["seed", *_NAMES, "rank"],
        use_byte_stream_split=["logprob"],
        write_statistics=False,
    )


def read_measured(path: Path) -> Measured:
    """Read the file.

    Raises:
        DataError: It is no such file.
    """
    try:
        table = pq.read_table(path)
        about = About.model_validate_json((table.schema.metadata or {})[_ABOUT])
    except (OSError, pa.ArrowException, KeyError, ValidationError, json.JSONDecodeError) as error:
        raise DataError(f"{path}: expected the {ROWS} that `kgbench reproduce` writes beside a report ({type(error).__name__})") from error
    if table.schema.remove_metadata() != SCHEMA:
        raise DataError(f"{path}: the columns are {table.column_names}, expected {SCHEMA.names} with their types")
    return Measured(about, table.replace_schema_metadata(None))
