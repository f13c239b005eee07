"""Per-fact hits of an entry, by prompt and configuration: the input of all boards."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgbench.errors import DataError

__all__ = ["COLUMNS", "METRIC", "TOP", "PromptHits", "hits_by_prompt"]

TOP = 5
"""Boards are on the paper's metric: whether the target is among the five likeliest tokens."""

METRIC = f"top{TOP}"

COLUMNS = ("prompt", "fact", "graft", "rank")
"""The columns that hits need."""


@dataclass(frozen=True, eq=False)
class PromptHits:
    """One prompt's hits over the same facts."""

    facts: tuple[str, ...]
    """Ids, in their order."""
    hits: Mapping[str, NDArray[np.bool_]]
    """By configuration [n]."""


def hits_by_prompt(facts: pa.Table) -> dict[str, PromptHits]:
    """Hits of each prompt.

    Args:
        facts: Per-fact rows, sorted by position. Where a prompt was read at several positions, the
            last counts.

    Raises:
        DataError: If configurations of a prompt were not run over the same facts.
    """
    (prompt, prompts), (fact, ids), (graft, grafts) = (
        _coded(facts[name]) for name in ("prompt", "fact", "graft")
    )
    order = np.argsort(np.array(ids, dtype=object))
    names = [sys.intern(ids[i]) for i in order]
    place = np.empty(len(ids), np.int64)
    place[order] = np.arange(len(ids))
    seen = np.zeros((len(prompts), len(grafts), len(ids)), np.int8)
    seen[prompt, graft, place[fact]] = 1 + (facts["rank"].to_numpy() <= TOP)
    return {name: _prompt(name, seen[i], names, grafts) for i, name in enumerate(prompts)}


def _prompt(name: str, seen: NDArray[np.int8], names: list[str], grafts: list[str]) -> PromptHits:
    """Hits of a prompt, from an array [configuration, fact] of 0 (absent), 1 (miss) and 2 (hit)."""
    asked = seen[grafts.index("PRE")] > 0 if "PRE" in grafts else np.zeros(len(names), bool)
    ran = [i for i in range(len(grafts)) if seen[i].any()]
    for i in ran:
        if not np.array_equal(seen[i] > 0, asked):
            raise DataError(
                f"per-fact rows: prompt {name} was run over other facts under {grafts[i]} than "
                "under PRE"
            )
    facts = tuple(fact for fact, own in zip(names, asked, strict=True) if own)
    return PromptHits(facts, {grafts[i]: seen[i][asked] == 2 for i in ran})


def _coded(column: pa.ChunkedArray) -> tuple[NDArray[Any], list[str]]:
    coded = column.combine_chunks().dictionary_encode()
    return coded.indices.to_numpy(zero_copy_only=False), coded.dictionary.to_pylist()
