"""Cells of tables: results on the same pair, facts and wording."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from itertools import product

from kgbench.errors import DataError
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.validate.known import known, own_facts
from kgbench.models import catalog
from kgbench.records import canonical_json

__all__ = ["PROMPTS", "Cell", "Runs", "cell_of", "core_cells", "first_runs", "without_scans"]

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
    def scope(self) -> dict[str, str]:
        """What a table of it is limited to."""
        return {"pair": self.pair, **({"prompt": self.prompt} if self.prompt else {})}

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.pair}, {self.prompt}" if self.prompt else self.pair


def cell_of(entry: Entry, prompt: str = "") -> Cell:
    """The cell of an entry's results on a prompt.

    Args:
        entry: The entry.
        prompt: A prompt; empty for figures over all prompts of the record.
    """
    what = entry.record.identity
    weights = what.weights.model_dump(mode="json")
    given = (weights, what.dataset.hash, what.tokenizer)
    marks = []
    if (weights, what.dataset.hash) not in _shipped(entry.pair):
        marks.append(sha256(canonical_json(given).encode()).hexdigest()[:6])
    if what.dtype != "float32":
        marks.append(what.dtype)
    if what.limit is not None:
        marks.append(f"first {what.limit}")
    if what.seeds != (0,):
        marks.append(f"seed {', '.join(map(str, what.seeds))}")
    if not prompt and set(what.prompts) != set(PROMPTS):
        marks.append(", ".join(sorted(what.prompts)))
    name = entry.pair + (f" ({', '.join(marks)})" if marks else "")
    return Cell(not marks and (prompt in PROMPTS or not prompt), name, prompt)


@cache
def _shipped(pair: str) -> Sequence[tuple[object, str]]:
    """The weights of a shipped pair in each dtype, with the hash of its facts."""
    dataset = own_facts(pair)
    if dataset is None or pair not in known().pairs:
        return ()
    found = []
    for hashes in known().pairs[pair].weights.values():
        donors = dict(hashes)
        weights = {"recipient": donors.pop("recipient"), "donors": donors}
        found.append((weights, dataset.content_hash))
    return found


@cache
def core_cells(planted: bool, prompts: tuple[str, ...] = PROMPTS) -> tuple[Cell, ...]:
    """The cells that means are taken over: shipped pairs, or shipped plants."""
    pairs = []
    for name in known().pairs:
        entry = catalog.published(name)
        if entry is not None and (entry.plant is not None) == planted:
            pairs.append(name)
    return tuple(Cell(True, pair, prompt) for pair, prompt in product(pairs, prompts))


def without_scans(entries: Iterable[Entry]) -> list[Entry]:
    """Entries without methods whose map is the scan of another method that is there."""
    found = list(entries)
    names = {entry.localizer for entry in found}
    scans = {name for name, own in known().localizers.items() if own.scan_of in names}
    return [entry for entry in found if entry.localizer not in scans]


Runs = Mapping[tuple[str, Cell], Entry]
"""The run that counts of each method on each cell."""


def first_runs(entries: Iterable[Entry], by_prompt: bool = False) -> Runs:
    """The run that counts of each method on each cell.

    A verified run goes before others, and of a reader's own runs the latest one. Further runs that
    were submitted are refused rather than chosen from, since a choice could be aimed at.

    Args:
        entries: Entries of one suite.
        by_prompt: Whether a cell is a pair and a prompt; otherwise a pair.

    Raises:
        DataError: Two submitted runs of a method are of one cell.
    """
    runs: dict[tuple[str, Cell], Entry] = {}
    by_time = sorted(entries, key=lambda e: (e.record.provenance.time, e.record.id), reverse=True)
    for entry in sorted(by_time, key=lambda e: not e.verified):
        for prompt in entry.record.identity.prompts if by_prompt else ("",):
            key = (entry.method, cell_of(entry, prompt))
            first = runs.setdefault(key, entry)
            submitted = first.submission is not None and entry.submission is not None
            if submitted and first is not entry and first.verified == entry.verified:
                folders = f"{first.folder.name} and {entry.folder.name}"
                raise DataError(
                    f"{folders} are both runs of {entry.method} on {key[1].title}; delete one of "
                    "them: a method has one run on a cell"
                )
    return runs
