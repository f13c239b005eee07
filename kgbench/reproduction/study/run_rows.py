"""Rows of a run of the study: ranks of single facts and their provenance, one small file a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from kgbench.errors import DataError
from kgbench.records import Strict
from kgbench.reproduction.measurements import read_stored, write_stored

__all__ = [
    "BOTH",
    "KNOWN",
    "PATHWAYS",
    "SCHEMA",
    "RunAbout",
    "RunRows",
    "cut_from",
    "cut_in",
    "read_rows",
    "rows_path",
    "table_of",
    "write_rows",
]

BOTH = "FE+LT"

PATHWAYS = ("PRE", "SFT", "FE", "LT", BOTH, "(FE+LT)^C")
"""Configurations of every run; those with cuts follow."""

KNOWN = "KNOWN"
"""Configuration of the recipient's rows about movies of pretraining."""

SCHEMA = pa.schema(
    [
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("configuration", pa.string(), nullable=False),
        pa.field("fact", pa.uint16(), nullable=False),
        pa.field("rank", pa.uint16(), nullable=False),
    ]
)
"""`fact` counts the facts of the data set or the movies of pretraining; `rank` 1 is the best."""

_ABOUT = b"kgbench_study"


def cut_in(layer: int) -> str:
    """Name of FE+LT where LT does not attend to FE in one layer."""
    return f"{BOTH}, cut in {layer}"


def cut_from(layer: int) -> str:
    """Name of FE+LT where LT does not attend to FE from one layer on."""
    return f"{BOTH}, cut from {layer}"


class RunAbout(Strict):
    """Provenance of the rows of a run."""

    run: str
    levels: dict[str, str]
    """Level by factor."""
    seed: int
    identity: str
    """Hash of design, recipe and facts."""
    layers: int
    layer_weights: int
    """Weights inside the layers, which are what finetuning changes."""
    weights: int
    """All weights."""
    finetunings: int
    """Trainings of the donor, one after the other."""
    steps: dict[str, int]
    """By stage."""
    seconds: dict[str, float]
    """By stage."""
    kgbench: str
    packages: dict[str, str]
    platform: str


@dataclass(frozen=True)
class RunRows:
    """The rows of a run."""

    about: RunAbout
    table: pa.Table

    def ranks(self, prompt: str, configuration: str) -> np.ndarray:
        """Ranks [fact] of one configuration on one prompt, facts in order.

        Raises:
            DataError: The run holds no such rows.
        """
        names = (self.table["prompt"].to_numpy(), self.table["configuration"].to_numpy())
        chosen = (names[0] == prompt) & (names[1] == configuration)
        facts = self.table["fact"].to_numpy()[chosen]
        if not np.array_equal(facts, np.arange(len(facts))) or not len(facts):
            raise DataError(
                f"{self.about.run}: the rows of {configuration} on {prompt} are not one per fact; "
                "remove the file, and kgbench reproduce study makes it again"
            )
        ranks: np.ndarray = self.table["rank"].to_numpy()[chosen]
        return ranks


def rows_path(folder: Path, run: str) -> Path:
    """The file of a run."""
    return folder / "runs" / f"{run}.parquet"


def write_rows(rows: RunRows, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_stored(rows.about, rows.table, _ABOUT, path)


def read_rows(path: Path) -> RunRows:
    """Read the file of a run.

    Raises:
        DataError: The file is not one of `write_rows`.
    """
    expected = (
        "the rows that `kgbench reproduce study` writes; remove it to have the run made again"
    )
    return RunRows(*read_stored(RunAbout, SCHEMA, _ABOUT, path, expected))


def table_of(blocks: Sequence[tuple[str, str, np.ndarray]]) -> pa.Table:
    """Rows from (prompt, configuration, ranks [fact])."""
    largest, columns = np.iinfo(np.uint16).max, dict[str, list[object]]()
    for name in SCHEMA.names:
        columns[name] = []
    for prompt, configuration, ranks in blocks:
        n = len(ranks)
        columns["prompt"] += [prompt] * n
        columns["configuration"] += [configuration] * n
        columns["fact"] += range(n)
        columns["rank"] += np.minimum(ranks, largest).tolist()
    return pa.table(columns, schema=SCHEMA)
