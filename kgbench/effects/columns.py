"""Per-fact rows as columns: one prompt's scores of each configuration over the same facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kgbench.effects.scores import score
from kgbench.errors import DataError

__all__ = ["PromptColumns", "by_prompt", "naturally"]

Array = NDArray[Any]
Columns = Mapping[str, Array]


@dataclass(frozen=True)
class PromptColumns:
    """One prompt's columns of each configuration over the same facts."""

    name: str
    columns: Mapping[str, Columns]
    """By configuration."""

    @property
    def n(self) -> int:
        """Number of facts."""
        return len(self.facts)

    @property
    def facts(self) -> Array:
        """Ids of the facts."""
        return self.columns["PRE"]["fact"]

    def scores(self, metric: str) -> dict[str, Array]:
        """Per-fact scores [n] of each configuration."""
        return {graft: score(columns, metric) for graft, columns in self.columns.items()}


def by_prompt(facts: pa.Table, order: Sequence[str]) -> list[PromptColumns]:
    """Each prompt's columns, prompts by name.

    Args:
        facts: Per-fact rows, sorted. Where a prompt was read at several positions, the last counts.
        order: Configurations that come first; others follow by name.

    Raises:
        DataError: If PRE or SFT is missing, or configurations of a prompt were not run over the
            same facts.
    """
    found = []
    for name in dict.fromkeys(facts["prompt"].to_pylist()):
        part = _select(facts, "prompt", name)
        columns = {
            graft: _last_positions(_select(part, "graft", graft))
            for graft in _ordered(part["graft"].to_pylist(), order)
        }
        for graft in ("PRE", "SFT"):
            if graft not in columns:
                raise DataError(
                    f"per-fact rows: prompt {name} was not run under {graft}, without which there "
                    "is no ratio"
                )
        ids = columns["PRE"]["fact"]
        for graft, own in columns.items():
            if not np.array_equal(own["fact"], ids):
                raise DataError(
                    f"per-fact rows: prompt {name} was run over {len(ids)} facts under PRE and "
                    f"over others under {graft}"
                )
        found.append(PromptColumns(name, columns))
    return found


def _select(table: pa.Table, column: str, value: str) -> pa.Table:
    return table.filter(pc.equal(table[column], value))


def _last_positions(table: pa.Table) -> Columns:
    """Columns in the order of the facts; the table is sorted by fact and position."""
    columns = {
        name: table[name].to_numpy()
        for name in table.column_names
        if name not in ("prompt", "graft")
    }
    ids = columns["fact"]
    last = np.append(ids[1:] != ids[:-1], True)
    return {name: column[last] for name, column in columns.items()}


def _ordered(grafts: Sequence[str], order: Sequence[str]) -> list[str]:
    """Configurations in the order given, then others naturally."""
    first = [c for c in dict.fromkeys(order) if c in set(grafts)]
    return [*first, *naturally(set(grafts) - set(first))]


def naturally(names: Iterable[str]) -> list[str]:
    """Names sorted, numbers in them by their size: layer 2 before layer 10."""
    return sorted(
        names,
        key=lambda name: [
            (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
        ],
    )
