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
    "level_tables",
    "overall_lines",
    "plants_tables",
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
    methods: dict[str, dict[Cell, Entry]] = {}
    for (method, cell), entry in runs.items():
        if cell in cells:
            methods.setdefault(method, {})[cell] = entry
    measured = {}
    for method, own in methods.items():
        entries = list(dict.fromkeys(own[cell] for cell in cells if cell in own))
        if len(own) < len(cells):
            lacks = f"a mean needs all {len(cells)} {noun}, and it has been run on {len(own)}"
            line = Measured(entries, {}, unranked=lacks)
        else:
            line = measure({cell: own[cell] for cell in cells})
            if line.figures:
                cost = cost_spread(entries)
                if cost.value is not None:  # a mean over cells has no interval
                    cost = replace(cost, low=cost.value, high=cost.value)
                line = replace(line, figures={**line.figures, FORWARDS.key: cost})
        measured[method] = replace(line, coverage=(len(own), len(cells)))
    return ordered({**measured, **(more or {})})


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


def by_cell(runs: Runs) -> dict[Cell, dict[str, Entry]]:
    """The runs of each cell by method, cells of shipped pairs first."""
    cells: dict[Cell, dict[str, Entry]] = {}
    for (method, cell), entry in runs.items():
        cells.setdefault(cell, {})[method] = entry
    return {cell: cells[cell] for cell in sorted(cells, key=lambda cell: (not cell.core, cell))}


# ------------------------------------------------------------------------------------------ plants


def plants_tables(cells: Sequence[Cell], table: Callable[[Sequence[Cell]], Table]) -> list[Table]:
    """The table over all plants and, where some are replicas, the one over the shipped ones.

    Args:
        cells: All plants.
        table: Makes a table over some of them.
    """
    whole, shipped = table(cells), shipped_plants(cells)
    if len(shipped) == len(cells):
        return [whole]
    note = (
        "Replicas can only be run where they were built. A method that was run on the shipped "
        "plants alone has its rank in the table of these."
    )
    part = replace(table(shipped), key="shipped", title=f"The {len(shipped)} shipped plants")
    return [replace(whole, notes=(*whole.notes, note)), part]


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


def level_tables(
    runs: Runs,
    cells: Sequence[Cell],
    table: Callable[[Sequence[Cell], Mapping[str, Mapping[Cell, Entry]]], Table],
) -> list[Table]:
    """A table of each level over its seeds, and of each plant that is run in another way.

    Args:
        runs: Runs of the board.
        cells: All plants.
        table: Makes a table of the plants of a level, and by method of its runs on them.
    """
    levels: dict[str, list[Cell]] = {}
    for cell in cells:
        levels.setdefault(cell.level, []).append(cell)
    found: dict[str, dict[str, dict[Cell, Entry]]] = {}
    for cell, by_method in by_cell(runs).items():
        if cell not in levels.setdefault(cell.level, []):
            levels[cell.level].append(cell)
        for method, entry in by_method.items():
            found.setdefault(cell.level, {}).setdefault(method, {})[cell] = entry
    return [table(levels[level], methods) for level, methods in found.items()]


def level_lines(
    cells: Sequence[Cell], methods: Mapping[str, Mapping[Cell, Entry]], measure: Measure
) -> tuple[Line, ...]:
    """Lines of a level's table: figures over the seeds that a method has been run on.

    Args:
        cells: The plants of the level.
        methods: By method, its runs on them.
        measure: Measures a method on some plants.
    """
    measured = {}
    for method, own in methods.items():
        line = replace(measure(own), coverage=(len(own), len(cells)))
        if len(own) < len(cells):
            lacks = f"it has been run on {len(own)} of {len(cells)} seeds"
            line = replace(line, standing=None, unranked=line.unranked or lacks)
        measured[method] = line
    return ordered(measured)


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
        entries = list(dict.fromkeys(own.values()))
        shares = {cell: self.share(entry, cell) for cell, entry in own.items()}
        if not all(shares.values()):
            return Measured(entries, {}, unranked=self.why_not)
        figures = {}
        standing: Means | str = self.unranked
        for key in next(iter(shares.values())):
            means = _means({cell: by_key[key] for cell, by_key in shares.items()})
            if key == self.ranked_by:
                standing = means
            if isinstance(means, str):
                figures[key] = Estimate.missing(means)
            else:
                figures[key] = means.figure.rounded()
        if isinstance(standing, str):
            return Measured(entries, figures, unranked=standing)
        return Measured(entries, figures, standing)


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
    whole = Table(
        key="all",
        title=f"All {len(cells)} cells",
        columns=tuple(overall),
        lines=overall_lines(runs, cells, "cells", shares.measure),
        ranked_by=shares.ranked_by,
        notes=_notes(runs, entries, cells),
    )
    tables = [whole]
    for cell, own in by_cell(runs).items():
        measured = {}
        for name, entry in own.items():
            line = shares.measure({cell: entry})
            measured[name] = replace(line, figures={**line.figures, **shown(entry, cell)})
        n = 0
        for line in measured.values():
            n = max([n, *(figure.n for figure in line.figures.values())])
        tables.append(
            Table(
                key=cell.key,
                title=f"{cell.title}, {n} facts",
                columns=tuple(single),
                lines=ordered(measured),
                scope=cell.scope,
                ranked_by=shares.ranked_by,
            )
        )
    return tuple(tables)


def _notes(runs: Runs, entries: Sequence[Entry], cells: Sequence[Cell]) -> tuple[str, ...]:
    """The cells that means are over, and how many runs are on others."""
    pairs = sorted({cell.pair for cell in cells})
    prompts = sorted({cell.prompt for cell in cells})
    what = (
        f"these {count_text(len(pairs), 'pair')} ({', '.join(pairs)}) and "
        f"{count_text(len(prompts), 'prompt')} ({', '.join(prompts)})"
    )
    about = (
        f"Means, intervals and ranks are for {what}, each weighing the same; they say "
        "nothing of other models or wordings."
    )
    more = len(entries) - len({id(entry) for (_, cell), entry in runs.items() if cell in cells})
    if not more:
        return (about,)
    further = (
        f"{more} further run{'s' * (more != 1)} with other seeds, facts or settings count in no "
        "mean and have tables of their own."
    )
    return about, further
