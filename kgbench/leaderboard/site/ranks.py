"""Ranks of all facts and configurations of a run, two a character, for comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kgbench.errors import DataError
from kgbench.leaderboard.site.links import DIGITS

__all__ = ["STEPS", "FactRanks", "fact_ranks", "read_ranks"]

_TEXTS = ("prompt", "graft", "fact")

STEPS = (1, 5, 10, 20, 50, 100)
"""Steps of ranks, as hits need them: 1, up to 5, and so on; step 6 is beyond the last."""

_ABSENT = 7
"""The step of a fact that was not asked."""


@dataclass(frozen=True)
class FactRanks:
    """Facts of a run, and a text by prompt and configuration: 8 × a fact's step + the next one's."""

    facts: tuple[str, ...]
    prompts: Mapping[str, Mapping[str, str]]

    @property
    def list_name(self) -> str:
        """Name of the list of facts: runs that asked the same facts share one file."""
        return sha256("\n".join(self.facts).encode()).hexdigest()[:12]


def fact_ranks(facts: pa.Table, configurations: Sequence[str]) -> FactRanks:
    """Read a run's rows.

    Args:
        facts: Per-fact rows, sorted as they are stored. Where a prompt was read at several
            positions, the last counts.
        configurations: Their order; others come after them.
    """
    fact, names = _coded(facts["fact"])
    order = sorted(range(len(names)), key=lambda i: (len(names[i]), names[i]))
    place = np.empty(len(names), np.int64)
    place[order] = np.arange(len(names))
    prompt, prompts = _coded(facts["prompt"])
    graft, grafts = _coded(facts["graft"])
    grid = np.full((len(prompts), len(grafts), len(names) + len(names) % 2), _ABSENT, np.uint8)
    grid[prompt, graft, place[fact]] = np.searchsorted(STEPS, facts["rank"].to_numpy())
    letters = np.frombuffer(DIGITS.encode(), np.uint8)[grid[..., ::2] * 8 + grid[..., 1::2]]
    known = [c for c in configurations if c in grafts]
    order_of = {g: grafts.index(g) for g in dict.fromkeys([*known, *grafts])}
    asked = (grid != _ABSENT).any(axis=2)
    texts = {
        p: {g: letters[i, k].tobytes().decode() for g, k in order_of.items() if asked[i, k]}
        for i, p in enumerate(prompts)
    }
    return FactRanks(tuple(names[i] for i in order), texts)


def read_ranks(content: bytes, path: Path) -> pa.Table:
    """Those columns of a file of per-fact rows that ranks are read from, in half the time that all of them take.

    Args:
        content: The file's bytes.
        path: The file, for messages.

    Raises:
        DataError: If it does not read.
    """
    try:
        return pq.read_table(
            pa.BufferReader(content),
            columns=[*_TEXTS, "rank"],
            read_dictionary=list(_TEXTS),
            use_threads=False,
        )
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: not a readable Parquet file ({str(error).splitlines()[0]})"
        ) from error


def _coded(column: pa.ChunkedArray) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Numbers and what they stand for."""
    known = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    coded = known.unify_dictionaries().combine_chunks()
    return coded.indices.to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()
