"""Ranks of the target by prompt, configuration and fact: hits for boards, coded steps for pages."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgbench.errors import DataError

TOP = 5
"""Boards are on the paper's metric: whether the target is among the five likeliest tokens."""

METRIC = f"top{TOP}"

COLUMNS = ("prompt", "fact", "graft", "rank")
"""Columns of the per-fact rows that a grid needs."""

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
"""Characters for the numbers from 0 to 63 in data files."""

STEPS = (1, 5, 10, 20, 50, 100)
"""Steps of ranks, as hits need them: 1, up to 5, and so on; step 6 is beyond the last."""

_ABSENT = 7
"""The step of a fact that was not asked."""


@dataclass(frozen=True, eq=False)
class RankGrid:
    """Ranks of a run's rows."""

    prompts: list[str]
    configurations: list[str]
    facts: list[str]
    """Ids, sorted."""
    ranks: NDArray[np.int32]
    """[prompt, configuration, fact]; 0 where a fact was not asked."""


def rank_grid(rows: pa.Table) -> RankGrid:
    """The ranks in per-fact rows.

    Args:
        rows: Sorted by position. Where a prompt was read at several positions, the last counts.
    """
    prompt, prompts = _coded(rows["prompt"])
    graft, grafts = _coded(rows["graft"])
    fact, ids = _coded(rows["fact"])
    order = np.argsort(np.array(ids, dtype=object))
    place = np.empty(len(ids), np.int64)
    place[order] = np.arange(len(ids))
    ranks = np.zeros((len(prompts), len(grafts), len(ids)), np.int32)
    ranks[prompt, graft, place[fact]] = rows["rank"].to_numpy()
    return RankGrid(prompts, grafts, [sys.intern(ids[i]) for i in order], ranks)


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


def hits_by_prompt(grid: RankGrid) -> dict[str, PromptHits]:
    """Hits of each prompt.

    Raises:
        DataError: If configurations of a prompt were not run over the same facts.
    """
    found = {}
    for prompt, ranks in zip(grid.prompts, grid.ranks, strict=True):
        by_graft = dict(zip(grid.configurations, ranks, strict=True))
        asked = by_graft.get("PRE", np.zeros(len(grid.facts))) > 0
        hits = {}
        for graft, own in by_graft.items():
            if not own.any():
                continue
            if not np.array_equal(own > 0, asked):
                raise DataError(
                    f"per-fact rows: prompt {prompt} was run over other facts under {graft} than "
                    "under PRE"
                )
            hits[graft] = own[asked] <= TOP
        facts = tuple(fact for fact, own in zip(grid.facts, asked, strict=True) if own)
        found[prompt] = PromptHits(facts, hits)
    return found


@dataclass(frozen=True)
class FactRanks:
    """Facts of a run, and a text by prompt and configuration: 8 × a fact's step + the next one's."""

    facts: tuple[str, ...]
    prompts: Mapping[str, Mapping[str, str]]

    @property
    def list_name(self) -> str:
        """Name of the list of facts: runs that asked the same facts share one file."""
        return sha256("\n".join(self.facts).encode()).hexdigest()[:12]


def fact_ranks(grid: RankGrid, configurations: Sequence[str]) -> FactRanks:
    """Code the ranks of a run, two facts a character.

    Args:
        grid: Its ranks.
        configurations: Their order; others come after them.
    """
    n = len(grid.facts)
    order = sorted(range(n), key=lambda i: (len(grid.facts[i]), grid.facts[i]))
    ranks = grid.ranks[..., order]
    steps = np.full((*ranks.shape[:2], n + n % 2), _ABSENT, np.uint8)
    steps[..., :n] = np.where(ranks > 0, np.searchsorted(STEPS, ranks), _ABSENT)
    letters = np.frombuffer(DIGITS.encode(), np.uint8)[steps[..., ::2] * 8 + steps[..., 1::2]]
    places = {graft: k for k, graft in enumerate(grid.configurations)}
    prompts: dict[str, dict[str, str]] = {}
    for i, prompt in enumerate(grid.prompts):
        texts = prompts.setdefault(prompt, {})
        for graft in dict.fromkeys([*configurations, *places]):
            if (k := places.get(graft)) is not None and ranks[i, k].any():
                texts[graft] = letters[i, k].tobytes().decode()
    return FactRanks(tuple(grid.facts[i] for i in order), prompts)
