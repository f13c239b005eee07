"""Cells: what results have in common that stand in one table, namely the pair, the facts and the wording."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256

from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.validate.known import known, own_facts
from kgbench.models import catalog
from kgbench.records import canonical_json

__all__ = ["PROMPTS", "Cell", "cell_of", "core_cells", "first_runs"]

PROMPTS = ("headline", "qa")
"""Evaluation prompts of the cells that means are taken over."""


@dataclass(frozen=True, order=True)
class Cell:
    """A pair, its facts, and a prompt or several together."""

    core: bool = field(compare=False)
    """Whether the means over all cells count it: a shipped pair, all of its facts."""
    pair: str
    """As it is shown: its name, and what sets it apart from the shipped pair of that name."""
    prompt: str
    """Empty where a figure is over all prompts of a record."""

    @property
    def key(self) -> str:
        """Fit for a link."""
        return re.sub(r"[^A-Za-z0-9._]+", "-", f"{self.pair}-{self.prompt}").strip("-")

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.pair}, {self.prompt}" if self.prompt else self.pair


def cell_of(entry: Entry, prompt: str = "") -> Cell:
    """The cell of an entry's results on a prompt."""
    what = entry.record.identity
    shipped = _shipped(entry.pair)
    given = (what.weights.model_dump(mode="json"), what.dataset.hash, what.tokenizer)
    marks = []
    if shipped is None or what.dataset.hash != shipped[1] or given[0] not in shipped[0]:
        marks.append(sha256(canonical_json(given).encode()).hexdigest()[:6])
    if what.limit is not None:
        marks.append(f"first {what.limit}")
    name = entry.pair + (f" ({', '.join(marks)})" if marks else "")
    return Cell(not marks and (prompt in PROMPTS or not prompt), name, prompt)


@cache
def _shipped(pair: str) -> tuple[Sequence[object], str] | None:
    """The weights of a shipped pair in any dtype, and the hash of its facts."""
    dataset = own_facts(pair)
    if dataset is None or pair not in known().pairs:
        return None
    weights = known().pairs[pair].weights.values()
    return [_as_identity(own) for own in weights], dataset.content_hash


def _as_identity(hashes: object) -> dict[str, object]:
    assert isinstance(hashes, dict)
    rest = dict(hashes)
    return {"recipient": rest.pop("recipient"), "donors": rest}


@cache
def core_cells(planted: bool, prompts: tuple[str, ...] = PROMPTS) -> tuple[Cell, ...]:
    """The cells that means are taken over: shipped pairs, or shipped plants."""
    pairs = [name for name in known().pairs if (name in catalog.plants()) == planted]
    return tuple(Cell(True, pair, prompt) for pair in pairs for prompt in prompts)


def first_runs(entries: Iterable[Entry]) -> dict[tuple[str, Cell], Entry]:
    """Of each method and pair one entry: the one with the lowest seed, then id; others stand on the method's page."""
    found: dict[tuple[str, Cell], Entry] = {}
    for entry in sorted(entries, key=lambda e: (e.record.identity.seeds, e.record.id)):
        found.setdefault((entry.method, cell_of(entry)), entry)
    return found
