"""Tables of a board: one of figures over all cells, and one per cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Column, Line, Measured, Table, ordered
from kgbench.leaderboard.cells import Cell, Runs, core_cells, first_runs
from kgbench.leaderboard.contrasts import Contrast, Means
from kgbench.leaderboard.entries import Entry
from kgbench.numbers import count_text

__all__ = [
    "FORWARDS",
    "Shares",
    "by_cell",
    "cost_spread",
    "overall_lines",
    "share_tables",
]

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
