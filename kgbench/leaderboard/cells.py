"""Cells of tables, the runs on them, and tables of figures over all cells and on each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from itertools import product

import numpy as np

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Column, Line, Measured, Table, ordered
from kgbench.leaderboard.contrasts import Contrast, Means, Plant
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.validate.known import known, own_facts
from kgbench.models import catalog
from kgbench.numbers import count_text
from kgbench.records import canonical_json

__all__ = [
    "FORWARDS",
    "PROMPTS",
    "Cell",
    "Runs",
    "Shares",
    "by_cell",
    "cell_of",
    "core_cells",
    "cost_spread",
    "first_runs",
    "level_lines",
    "overall_lines",
    "plant_tables",
    "seeds_note",
    "share_tables",
    "shipped_plants",
    "without_scans",
]

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

    @property
    def level(self) -> str:
        """The level of a plant that means count, which all its seeds share; otherwise the pair."""
        entry = catalog.published(self.pair) if self.core else None
        return self.pair if entry is None else entry.level or self.pair

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
    """The cells that means are taken over: shipped pairs, or plants and their replicas."""
    pairs = []
    for name in known().pairs:
        entry = catalog.published(name)
        if entry is not None and (entry.plant is not None) == planted:
            pairs.append(name)
    return tuple(Cell(True, pair, prompt) for pair, prompt in product(pairs, prompts))


def shipped_plants(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The plants of which the weights are shipped, so that everybody can run them."""
    return tuple(cell for cell in cells if cell.pair == cell.level)


def without_scans(entries: Iterable[Entry]) -> list[Entry]:
    """Entries without methods whose map is the scan of another method that is there."""
    found = list(entries)
    names = {entry.localizer for entry in found}
    scans = {name for name, own in known().localizers.items() if own.scan_of in names}
    return [entry for entry in found if entry.localizer not in scans]


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
    by_time = sorted(entries, key=lambda e: (e.record.provenance.time, e.record.id), reverse=True)
    for entry in sorted(by_time, key=lambda e: not e.verified):
        for prompt in entry.record.identity.prompts if by_prompt else ("",):
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
    some = tuple(cells)
    found = {}
    for method, own in runs.items():
        if here := {cell: own[cell] for cell in some if cell in own}:
            found[method] = here
    return found


def by_cell(runs: Runs) -> dict[Cell, dict[str, Entry]]:
    """The runs of each cell by method, cells of shipped pairs first."""
    cells: dict[Cell, dict[str, Entry]] = {}
    for method, own in runs.items():
        for cell, entry in own.items():
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
    more: Mapping[str, Measured] | None = None,
) -> tuple[Line, ...]:
    """Lines of the table over all cells; a method that lacks one has no figures.

    Args:
        runs: Runs of the board.
        cells: All cells.
        noun: What they are, in the plural.
        measure: Measures a method that was run on all of them.
        more: Lines that are no method's, by name.
    """
    measured = {}
    for method, own in runs_on(cells, runs).items():
        if len(own) == len(cells):
            line = measure(own)
            if line.figures:
                cost = cost_spread(line.entries)
                if cost.value is not None:  # a mean over cells has no interval
                    cost = replace(cost, low=cost.value, high=cost.value)
                line = replace(line, figures={**line.figures, FORWARDS.key: cost})
        else:
            lacks = f"a mean needs all {len(cells)} {noun}, and it has been run on {len(own)}"
            line = Measured(_distinct(own), {}, lacks)
        measured[method] = replace(line, coverage=(len(own), len(cells)))
    return ordered({**measured, **(more or {})})


def _distinct(own: Mapping[Cell, Entry]) -> list[Entry]:
    """The entries of some cells, each once."""
    return list(dict.fromkeys(own.values()))


def cost_spread(entries: Sequence[Entry]) -> Estimate:
    """Geometric mean, smallest and largest of the runs' costs; undefined where one is."""
    ratios = [entry.record.cost.plain_forward_ratio for entry in entries]
    for ratio in ratios:
        if ratio.value is None:
            return Estimate.missing(ratio.undefined or "")
    values = np.array([ratio.value for ratio in ratios], float)
    middle = float(np.exp(np.log(values).mean())) if np.all(values > 0) else float(values.mean())
    low, high = float(values.min()), float(values.max())
    return Estimate(min(max(middle, low), high), low, high, len(values)).rounded()


# ------------------------------------------------------------------------------------------ plants


def plant_tables(
    runs: Runs,
    cells: Sequence[Cell],
    overall: Callable[[Sequence[Cell], Runs], Table],
    level: Callable[[Sequence[Cell], Runs], Table],
    flat: Sequence[Cell] = (),
) -> tuple[Table, ...]:
    """The tables over all plants, over the shipped ones where others are replicas, and by level.

    A table of a level is over its seeds; a plant that is run in another way has one of its own.

    Args:
        runs: Runs of the board.
        cells: The plants that means are over.
        overall: Makes a table over some of them, of the runs on these.
        level: Makes the table of the plants of a level.
        flat: Plants that only have tables of their own.
    """
    tables, shipped = [overall(cells, runs_on(cells, runs))], shipped_plants(cells)
    if len(shipped) < len(cells):
        note = (
            "Replicas can only be run where they were built. A method that was run on the shipped "
            "plants alone has its rank in the table of these."
        )
        part = overall(shipped, runs_on(shipped, runs))
        tables = [
            replace(tables[0], notes=(*tables[0].notes, note)),
            replace(part, key="shipped", title=f"The {len(shipped)} shipped plants"),
        ]
    levels: dict[str, dict[Cell, None]] = {}
    ran = by_cell(runs)
    for cell in (*cells, *flat, *ran):
        levels.setdefault(cell.level, {})[cell] = None
    for name in dict.fromkeys(cell.level for cell in ran):
        tables.append(level(list(levels[name]), runs_on(levels[name], runs)))
    return tuple(tables)


def seeds_note(cells: Sequence[Cell]) -> str:
    """What means over plants are over, and what their intervals and ranks speak of."""
    sizes = Counter(cell.level for cell in cells).values()
    least, most = min(sizes, default=0), max(sizes, default=0)
    if most < 2:
        return (
            f"Means, intervals and ranks are over these {len(cells)} plants, each weighing the "
            "same, and say nothing of other models."
        )
    levels = count_text(len(sizes), "level")
    seeds = str(least) if least == most else f"{least} to {most}"
    if least < 2 and len(sizes) > 1:
        return (
            f"Means, intervals and ranks are over these {levels}, each weighing the same, by the "
            f"mean of its plants ({len(cells)} in all, {seeds} training seeds of a level). They "
            "are over seeds within levels once every level has two."
        )
    return (
        f"Levels are fixed by design, and training seeds are sampled: means are over {levels}, "
        f"each weighing the same, of the mean over its {seeds} seeds. Intervals and ranks are "
        "from the variance between seeds of one level; they speak of further seeds of these "
        "levels, and say nothing of other levels or models."
    )


def level_lines(cells: Sequence[Cell], runs: Runs, measure: Measure) -> tuple[Line, ...]:
    """Lines of a level's table: figures over the seeds that a method has been run on.

    Args:
        cells: The plants of the level.
        runs: The runs on them.
        measure: Measures a method on some plants.
    """
    measured = {}
    for method, own in runs.items():
        line = replace(measure(own), coverage=(len(own), len(cells)))
        if len(own) < len(cells) and not isinstance(line.standing, str):
            lacks = f"it has been run on {len(own)} of {len(cells)} seeds"
            line = replace(line, standing=lacks)
        measured[method] = line
    return ordered(measured)


# ------------------------------------------------------------------------------------------ shares


@dataclass(frozen=True)
class Shares:
    """Shares of the donor's gain: of one cell, or their means over several."""

    share: Callable[[Entry, Cell], Mapping[str, Contrast | str]]
    """Figures by key, or why there is none; empty where the method does not answer the question."""
    why_not: str
    """Why a method without figures is not ranked."""
    ranked_by: str | None = None
    """Key of a figure; None where methods are not ranked."""
    unranked: str = ""
    """Why no method is ranked."""

    def measure(self, own: Mapping[Cell, Entry]) -> Measured:
        """Figures of a method, and what it is ranked by."""
        shares = {cell: self.share(entry, cell) for cell, entry in own.items()}
        if not all(shares.values()):
            return Measured(_distinct(own), {}, self.why_not)
        figures = {}
        standing: Means | str = self.unranked
        for key in next(iter(shares.values())):
            means = _means({cell: by_key[key] for cell, by_key in shares.items()})
            if isinstance(means, str):
                figures[key] = Estimate.missing(means)
            else:
                figures[key] = means.figure.rounded()
            if key == self.ranked_by:
                standing = means
        return Measured(_distinct(own), figures, standing)


def _means(parts: Mapping[Cell, Contrast | str]) -> Means | str:
    """The mean, or the first reason why there is none."""
    contrasts = {}
    for cell, part in parts.items():
        if isinstance(part, str):
            return f"{part} (on {cell.title})" if len(parts) > 1 else part
        contrasts[cell] = part
    return Means(contrasts)


def share_tables(
    entries: Sequence[Entry],
    shares: Shares,
    overall: Sequence[Column],
    single: Sequence[Column],
    shown: Callable[[Entry, Cell], Mapping[str, Estimate]] = lambda entry, cell: {},
) -> tuple[Table, ...]:
    """The table of means over the shipped pairs and prompts, and one per cell.

    Args:
        entries: Entries of the board.
        shares: Measures their shares.
        overall: Columns of the means.
        single: Columns of single cells.
        shown: Figures of the record that are shown on single cells as they are.
    """
    cells, runs = core_cells(planted=False), first_runs(entries, by_prompt=True)
    lines = overall_lines(runs, cells, "cells", shares.measure)
    notes, title = _notes(runs, entries, cells), f"All {len(cells)} cells"
    ranked_by = shares.ranked_by
    tables = [Table("all", title, tuple(overall), lines, ranked_by=ranked_by, notes=notes)]
    for cell, by_method in by_cell(runs).items():
        measured, n = {}, 0
        for name, entry in by_method.items():
            line = shares.measure({cell: entry})
            figures = {**line.figures, **shown(entry, cell)}
            measured[name] = replace(line, figures=figures)
            n = max([n, *(figure.n for figure in figures.values())])
        lines, title = ordered(measured), f"{cell.title}, {n} facts"
        tables.append(Table(cell.key, title, tuple(single), lines, cell.scope, ranked_by))
    return tuple(tables)


def _notes(runs: Runs, entries: Sequence[Entry], cells: Sequence[Cell]) -> tuple[str, ...]:
    """The cells that means are over, and how many runs are on others."""
    counts = []
    for noun in ("pair", "prompt"):
        names = sorted({getattr(cell, noun) for cell in cells})
        counts.append(f"{count_text(len(names), noun)} ({', '.join(names)})")
    about = (
        f"Means, intervals and ranks are for these {' and '.join(counts)}, each weighing the same; "
        "they say nothing of other models or wordings."
    )
    counted: set[Entry] = set()
    for own in runs_on(cells, runs).values():
        counted.update(own.values())
    more = len(entries) - len(counted)
    if not more:
        return (about,)
    further = (
        f"{more} further run{'s' * (more != 1)} with other seeds, facts or settings count in no "
        "mean and have tables of their own."
    )
    return about, further
