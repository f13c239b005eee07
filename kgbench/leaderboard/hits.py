"""Hits by prompt, configuration and fact, which boards compare."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgbench.errors import DataError
from kgbench.records.fact_rows import spans

TOP = 5
"""Boards are on the paper's metric: whether the target is among the five likeliest tokens."""

METRIC = f"top{TOP}"

COLUMNS = ("prompt", "fact", "graft", "rank")
"""Columns of the per-fact rows that hits need."""


@dataclass(frozen=True, eq=False)
class PromptHits:
    """One prompt's hits over the same facts."""

    facts: tuple[str, ...]
    """Ids, in their order."""
    hits: Mapping[str, NDArray[np.bool_]]
    """By configuration [n]."""


def hits_by_prompt(rows: pa.Table) -> dict[str, PromptHits]:
    """Hits of each prompt.

    Args:
        rows: Per-fact rows, sorted. Where a prompt was read at several positions, the last counts.

    Raises:
        DataError: If configurations of a prompt were not run over the same facts.
    """
    coded = rows["fact"].combine_chunks().dictionary_encode()
    ids, facts = coded.dictionary.to_pylist(), coded.indices.to_numpy()
    ranks = rows["rank"].to_numpy()
    by_prompt: dict[str, dict[str, tuple[NDArray[Any], NDArray[Any]]]] = {}
    for (prompt, graft), (start, n) in spans(rows).items():
        place = slice(start, start + n)
        last = np.append(np.diff(facts[place]) != 0, True)
        by_prompt.setdefault(prompt, {})[graft] = facts[place][last], ranks[place][last]
    prompts = {}
    for prompt, by_graft in by_prompt.items():
        first, _ = by_graft.get("PRE", ((), ()))
        hits = {}
        for graft, (answered, rank) in by_graft.items():
            if not np.array_equal(answered, first):
                raise DataError(
                    f"per-fact rows: prompt {prompt} was run over other facts under {graft} than "
                    "under PRE"
                )
            hits[graft] = rank <= TOP
        prompts[prompt] = PromptHits(tuple(sys.intern(ids[i]) for i in first), hits)
    return prompts
