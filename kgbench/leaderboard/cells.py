"""Cells of tables, the runs on them, and tables of figures over all cells and on each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from itertools import product

import numpy as np

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Column, Line, Measured, ordered
from kgbench.leaderboard.entries import BOARD_FACTS, Entry
from kgbench.leaderboard.known import known, own_facts
from kgbench.models import catalog
from kgbench.records import canonical_json

Plant = tuple[str, str]
"""A level, and a plant of it."""

PROMPTS = ("headline", "qa")
"""Evaluation prompts of the cells that means are taken over."""


@dataclass(frozen=True, order=True)
class Cell:
    """A pair, its facts, and a prompt or several together."""

    core: bool = field(compare=False)
    """Whether the means over all cells count it: a shipped pair, and as many of its facts as the
    board asks for.
    """
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

    @property
    def level(self) -> str:
        """The level of a plant that means count; otherwise the pair."""
        entry = catalog.published(self.pair) if self.core else None
        return self.pair if entry is None else entry.level or self.pair

    @property
    def language_model(self) -> str:
        """Name of the base that is fetched, a real language model; empty of others."""
        entry = catalog.published(self.pair) if self.core else None
        fetched = entry is not None and catalog.zoo_path(entry.recipient) is None
        return self.pair.partition(".")[0] if fetched else ""

    @property
    def plant(self) -> Plant:
        """The plant, as means over plants take it."""
        return self.level, self.pair


def cell_of(entry: Entry, prompt: str = "") -> Cell:
    """The cell of an entry's results on a prompt.

    Args:
        entry: The entry.
        prompt: A prompt; empty for figures over all prompts of the record.
    """
    what = entry.result.identity
    inputs = (what.weights.model_dump(mode="json"), what.dataset.hash, what.tokenizer)
    marks = []
    pair, facts = known().pairs.get(entry.pair), own_facts(entry.pair)
    shipped = pair is not None and what.weights.by_part in pair.weights.values()
    if not shipped or facts is None or what.dataset.hash != facts.content_hash:
        marks.append(sha256(canonical_json(inputs).encode()).hexdigest()[:6])
    if what.dtype != "float32":
        marks.append(what.dtype)
    if what.limit != BOARD_FACTS.get(entry.suite):
        marks.append("all facts" if what.limit is None else f"first {what.limit}")
    if what.seeds != (0,):
        marks.append(f"seed {', '.join(map(str, what.seeds))}")
    if not prompt and set(what.prompts) != set(PROMPTS):
        marks.append(", ".join(sorted(what.prompts)))
    name = entry.pair + (f" ({', '.join(marks)})" if marks else "")
    return Cell(not marks and (prompt in PROMPTS or not prompt), name, prompt)


@cache
def core_cells(planted: bool, prompts: tuple[str, ...] = PROMPTS) -> tuple[Cell, ...]:
    """The cells that means are taken over: shipped pairs, or plants."""
    pairs = (*catalog.shipped(), *catalog.with_fetched_base())
    found = product(catalog.plants() if planted else pairs, prompts)
    return tuple(Cell(True, pair, prompt) for pair, prompt in found)


def without_scans(entries: Iterable[Entry]) -> list[Entry]:
    """Entries without methods whose map is the scan of another method that is there."""
    entries = list(entries)
    names = {entry.localizer for entry in entries}
    scans = {name for name, method in known().localizers.items() if method.scan_of in names}
    return [entry for entry in entries if entry.localizer not in scans]


Runs = Mapping[str, Mapping[Cell, Entry]]
"""The run that counts of each method on each cell, by the method's name on the board."""


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
    runs: dict[str, dict[Cell, Entry]] = {}
    by_time = sorted(entries, key=lambda e: (e.result.provenance.time, e.result.id), reverse=True)
    for entry in sorted(by_time, key=lambda e: not e.verified):
        for prompt in entry.result.identity.prompts if by_prompt else ("",):
            cell = cell_of(entry, prompt)
            first = runs.setdefault(entry.method, {}).setdefault(cell, entry)
            submitted = first.submission is not None and entry.submission is not None
            if submitted and first is not entry and first.verified == entry.verified:
                folders = f"{first.folder.name} and {entry.folder.name}"
                raise DataError(
                    f"{folders} are both runs of {entry.method} on {cell.title}; delete one of "
                    "them: a method has one run on a cell"
                )
    return runs


def runs_on(cells: Iterable[Cell], runs: Runs) -> Runs:
    """The runs on some cells; methods without any are left out."""
    cells, on_cells = tuple(cells), {}
    for method, by_cell in runs.items():
        if ran := {cell: by_cell[cell] for cell in cells if cell in by_cell}:
            on_cells[method] = ran
    return on_cells


def by_cell(runs: Runs) -> dict[Cell, dict[str, Entry]]:
    """The runs of each cell by method, cells of shipped pairs first."""
    cells: dict[Cell, dict[str, Entry]] = {}
    for method, ran in runs.items():
        for cell, entry in ran.items():
            cells.setdefault(cell, {})[method] = entry
    return {cell: cells[cell] for cell in sorted(cells, key=lambda cell: (not cell.core, cell))}


# ------------------------------------------------------------------------------------------ tables


FORWARDS = Column(
    "forwards",
    "cost in plain forwards",
    "Time of a run as a multiple of one plain forward pass of the same prompts, the geometric mean",
    "lower",
)

Measure = Callable[[Mapping[Cell, Entry]], Measured]
"""Figures of a method on one cell, or over several."""


def overall_lines(
    runs: Runs,
    cells: Sequence[Cell],
    noun: str,
    measure: Measure,
) -> tuple[Line, ...]:
    """Lines of the table over all cells; a method that lacks one has no figures.

    Args:
        runs: Runs of the board.
        cells: All cells.
        noun: What they are, in the plural.
        measure: Measures a method that was run on all of them.
    """
    measured = {}
    for method, ran in runs_on(cells, runs).items():
        if len(ran) == len(cells):
            line = measure(ran)
            if line.figures:
                cost = cost_spread(line.entries)
                if cost.value is not None:  # a mean over cells has no interval
                    cost = replace(cost, low=cost.value, high=cost.value)
                line = replace(line, figures={**line.figures, FORWARDS.key: cost})
        else:
            lacks = f"a mean needs all {len(cells)} {noun}, and it has been run on {len(ran)}"
            line = Measured(list(dict.fromkeys(ran.values())), {}, lacks)
        measured[method] = replace(line, coverage=(len(ran), len(cells)))
    return ordered(measured)


def cost_spread(entries: Sequence[Entry]) -> Estimate:
    """Geometric mean, smallest and largest of the runs' costs; undefined where one is."""
    ratios = [entry.result.cost.plain_forward_ratio for entry in entries]
    if undefined := [ratio.undefined for ratio in ratios if ratio.value is None]:
        return Estimate.missing(undefined[0] or "")
    values = np.array([ratio.value for ratio in ratios], float)
    middle = np.exp(np.log(values).mean()) if np.all(values > 0) else values.mean()
    low, high = float(values.min()), float(values.max())
    return Estimate(float(np.clip(middle, low, high)), low, high, len(values)).rounded()
