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

TOP = 5
"""Boards are on the paper's metric: whether the target is among the five likeliest tokens."""

METRIC = f"top{TOP}"

COLUMNS = ("prompt", "fact", "graft", "rank")
"""Columns of the per-fact rows that hits need."""


def _coded(column: pa.ChunkedArray) -> tuple[NDArray[Any], list[str]]:
    coded = column.combine_chunks().dictionary_encode()
    return coded.indices.to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()


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
    (prompt, prompts), (graft, grafts), (fact, ids) = (
        _coded(rows[name]) for name in ("prompt", "graft", "fact")
    )
    order = np.argsort(np.array(ids, dtype=object))
    place = np.empty(len(ids), np.int64)
    place[order] = np.arange(len(ids))
    facts = [sys.intern(ids[i]) for i in order]
    ranks = np.zeros((len(prompts), len(grafts), len(ids)), np.int32)  # 0 where it was not asked
    ranks[prompt, graft, place[fact]] = rows["rank"].to_numpy()
    found = {}
    for name, of_prompt in zip(prompts, ranks, strict=True):
        by_graft = dict(zip(grafts, of_prompt, strict=True))
        asked = by_graft.get("PRE", np.zeros(len(ids))) > 0
        hits = {}
        for configuration, own in by_graft.items():
            if not own.any():
                continue
            if not np.array_equal(own > 0, asked):
                raise DataError(
                    f"per-fact rows: prompt {name} was run over other facts under {configuration} "
                    "than under PRE"
                )
            hits[configuration] = own[asked] <= TOP
        asked_facts = tuple(fact for fact, own in zip(facts, asked, strict=True) if own)
        found[name] = PromptHits(asked_facts, hits)
    return found
