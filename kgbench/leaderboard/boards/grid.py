"""Tables of shares of the donor's gain, by method: one per cell, and one of means over all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kgbench.estimate import Estimate
from kgbench.leaderboard.boards.cost import FORWARDS, plain_forwards
from kgbench.leaderboard.cells import Cell, first_runs
from kgbench.leaderboard.contrasts import Contrast, Means
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.lines import Measured, ordered
from kgbench.leaderboard.model import Column, Table
from kgbench.numbers import count_text

__all__ = ["Grid", "cell_tables", "over_all"]

Shares = Mapping[str, Contrast | str]
"""Figures by key, or why there is none; empty where the method does not answer such a question."""


@dataclass(frozen=True)
class Grid:
    """What a board measures on each cell."""

    ranked_by: str | None
    """Key of a figure; None where methods are not ranked."""
    figures: tuple[str, ...]
    """Keys of all figures."""
    measure: Callable[[Entry, Cell], Shares]
    shown: Callable[[Entry, Cell], Mapping[str, Estimate]]
    """Figures of the record that are shown as they are, on single cells."""
    why_not: str
    """Why a method that has none of the figures is not ranked."""
    unranked: str = ""
    """Why no method is, where none is ranked."""


def over_all(
    grid: Grid, entries: Sequence[Entry], cells: Sequence[Cell], columns: Sequence[Column]
) -> Table:
    """The table of means over all cells; of a method that lacks one, there is none."""
    methods: dict[str, dict[Cell, Entry]] = {}
    for (method, cell), entry in first_runs(entries, by_prompt=True).items():
        if cell in cells:
            methods.setdefault(method, {})[cell] = entry
    found = {name: _mean(grid, own, cells) for name, own in methods.items()}
    return Table(
        key="all",
        title=f"All {len(cells)} cells",
        columns=tuple(columns),
        lines=ordered(found),
        ranked_by=grid.ranked_by,
        notes=(_about(cells), *_notes(entries, cells)),
    )


def cell_tables(
    grid: Grid, entries: Sequence[Entry], columns: Sequence[Column], shown: Sequence[Column]
) -> list[Table]:
    """A table for each cell, those of shipped pairs first."""
    cells: dict[Cell, dict[str, Entry]] = {}
    for (method, cell), entry in first_runs(entries, by_prompt=True).items():
        cells.setdefault(cell, {})[method] = entry
    return [
        _table(grid, cell, cells[cell], (*columns, *shown))
        for cell in sorted(cells, key=lambda c: (not c.core, c))
    ]


def _mean(grid: Grid, own: Mapping[Cell, Entry], cells: Sequence[Cell]) -> Measured:
    entries = list(dict.fromkeys(own[cell] for cell in cells if cell in own))
    coverage = (len(own), len(cells))
    if len(own) < len(cells):
        return Measured(
            entries,
            {},
            coverage,
            unranked=f"a mean needs all {len(cells)} cells, and it has been run on {len(own)}",
        )
    measured = {cell: grid.measure(own[cell], cell) for cell in cells}
    if not all(measured.values()):
        return Measured(entries, {}, coverage, unranked=grid.why_not)
    means = {
        key: _means({cell: shares[key] for cell, shares in measured.items()})
        for key in grid.figures
    }
    figures = {
        key: found.figure.rounded() if isinstance(found, Means) else Estimate.missing(found)
        for key, found in means.items()
    }
    return _ranked(
        grid, entries, {**figures, FORWARDS.key: plain_forwards(entries)}, coverage, means
    )


def _means(parts: Mapping[Cell, Contrast | str]) -> Means | str:
    """The mean, or the first reason why there is none."""
    reasons = [
        f"{reason} (on {cell.title})" for cell, reason in parts.items() if isinstance(reason, str)
    ]
    return (
        reasons[0]
        if reasons
        else Means({cell: own for cell, own in parts.items() if isinstance(own, Contrast)})
    )


def _ranked(
    grid: Grid,
    entries: Sequence[Entry],
    figures: Mapping[str, Estimate],
    coverage: tuple[int, int],
    means: Mapping[str, Means | str],
) -> Measured:
    by = grid.unranked if grid.ranked_by is None else means[grid.ranked_by]
    if isinstance(by, str):
        return Measured(entries, figures, coverage, unranked=by)
    return Measured(entries, figures, coverage, by)


def _table(grid: Grid, cell: Cell, own: Mapping[str, Entry], columns: Sequence[Column]) -> Table:
    lines = ordered({method: _single(grid, cell, entry) for method, entry in own.items()})
    n = max((figure.n for line in lines for figure in line.figures.values()), default=0)
    scope = {"pair": cell.pair, "prompt": cell.prompt}
    return Table(
        key=cell.key,
        title=f"{cell.title}, {n} facts",
        columns=tuple(columns),
        lines=lines,
        scope={key: value for key, value in scope.items() if value},
        ranked_by=grid.ranked_by,
    )


def _single(grid: Grid, cell: Cell, entry: Entry) -> Measured:
    shares, shown = grid.measure(entry, cell), grid.shown(entry, cell)
    if not shares:
        return Measured([entry], shown, (1, 1), unranked=grid.why_not)
    means = {
        key: Means({cell: own}) if isinstance(own, Contrast) else own for key, own in shares.items()
    }
    figures = {
        key: own.figure.rounded() if isinstance(own, Means) else Estimate.missing(own)
        for key, own in means.items()
    }
    return _ranked(grid, [entry], {**figures, **shown}, (1, 1), means)


def _about(cells: Sequence[Cell]) -> str:
    """What means are over."""
    pairs, prompts = (
        sorted({getattr(cell, part) for cell in cells}) for part in ("pair", "prompt")
    )
    what = (
        f"these {count_text(len(pairs), 'pair')} ({', '.join(pairs)}) and "
        f"{count_text(len(prompts), 'prompt')} ({', '.join(prompts)})"
    )
    return (
        f"Means, intervals and ranks are for {what}, each weighing the same; they say "
        "nothing of other models or wordings."
    )


def _notes(entries: Sequence[Entry], cells: Sequence[Cell]) -> tuple[str, ...]:
    counted = set()
    for (_, cell), entry in first_runs(entries, by_prompt=True).items():
        counted.update([id(entry)] if cell in cells else [])
    more = len(entries) - len(counted)
    runs = f"{more} further run{'s' * (more != 1)}"
    note = (
        f"{runs} with other seeds, facts or settings count in no mean and have tables of their own."
    )
    return (note,) if more else ()
