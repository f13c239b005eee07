"""The board of costs, in multiples of one plain forward pass of the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kgbench.estimate import Estimate
from kgbench.leaderboard.cells import Cell, core_cells, first_runs
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.lines import Measured, ordered
from kgbench.leaderboard.model import Board, Column, Table
from kgbench.numbers import number_text
from kgbench.sites.configurations import parse_top

__all__ = ["FORWARDS", "cost_board", "plain_forwards"]

FORWARDS = Column(
    "forwards",
    "cost in plain forwards",
    "Time of a run as a multiple of one plain forward pass of the same prompts, the geometric mean",
    "lower",
)

SUITES = {
    "pathways": "the eight pathway configurations",
    "budget": "a ranking of all sites and its budgets",
    "planted": "a plant",
}

UNRANKED = (
    "cost is measured once per run, on whatever machine it was: there is no interval to rank by"
)

ABOUT = (
    "Seconds that a run took, divided by those of one plain batched forward pass of the same "
    "prompts in the same run, so that the machine "
    "drops out as far as it can. Over several pairs the geometric mean is shown, and in brackets "
    "the smallest and the largest of them."
)


def cost_board(entries: Sequence[Entry]) -> Board:
    """The board.

    Args:
        entries: All entries.
    """
    by_suite = {suite: first_runs(e for e in entries if _suite(e) == suite) for suite in SUITES}
    columns = tuple(
        Column(suite, suite, f"Ratio to one plain forward pass, for {about}", "lower")
        for suite, about in SUITES.items()
    )
    methods = sorted({method for found in by_suite.values() for method, _ in found})
    overall = Table(
        "all",
        "All shipped pairs and plants",
        columns,
        ordered({name: _mean(name, by_suite) for name in methods}),
        spread="range",
    )
    cells = sorted(
        {cell for found in by_suite.values() for _, cell in found}, key=lambda c: (not c.core, c)
    )
    singles = [_table(cell, by_suite, columns) for cell in cells]
    return Board("cost", "Cost", ABOUT, _lead(overall), (overall, *singles))


def _suite(entry: Entry) -> str:
    record = entry.record
    if record.planted is not None:
        return "planted"
    return (
        "budget"
        if any(parse_top(label) is not None for label in record.identity.configurations)
        else "pathways"
    )


Found = Mapping[str, Mapping[tuple[str, Cell], Entry]]
"""The entries of each suite."""


def _mean(method: str, by_suite: Found) -> Measured:
    figures: dict[str, Estimate] = {}
    entries: list[Entry] = []
    have = of = 0
    for suite, found in by_suite.items():
        cells = core_cells(planted=suite == "planted", prompts=("",))
        own = [found[method, cell] for cell in cells if (method, cell) in found]
        if own:
            entries, have, of = [*entries, *own], have + len(own), of + len(cells)
        if len(own) == len(cells):
            figures[suite] = _spread([_ratio(entry) for entry in own])
    return Measured(entries, figures, (have, of), unranked=UNRANKED)


def _table(cell: Cell, by_suite: Found, columns: tuple[Column, ...]) -> Table:
    methods: dict[str, dict[str, Entry]] = {}
    for suite, found in by_suite.items():
        for (method, own), entry in found.items():
            if own == cell:
                methods.setdefault(method, {})[suite] = entry
    measured = {
        name: Measured(
            list(own.values()),
            {suite: _spread([_ratio(e)]) for suite, e in own.items()},
            (1, 1),
            unranked=UNRANKED,
        )
        for name, own in methods.items()
    }
    asked = tuple(
        column for column in columns if any(column.key in own for own in methods.values())
    )
    return Table(
        cell.key, cell.title, asked, ordered(measured), {"pair": cell.pair}, spread="range"
    )


def _ratio(entry: Entry) -> Estimate:
    return entry.record.cost.plain_forward_ratio


def _spread(ratios: Sequence[Estimate]) -> Estimate:
    """Geometric mean, smallest and largest; undefined where one is."""
    if (missing := next((ratio for ratio in ratios if ratio.value is None), None)) is not None:
        return Estimate.missing(missing.undefined or "")
    values = np.array([ratio.value for ratio in ratios], float)
    middle = float(np.exp(np.log(values).mean())) if np.all(values > 0) else float(values.mean())
    low, high = float(values.min()), float(values.max())
    return Estimate(min(max(middle, low), high), low, high, len(values)).rounded()


def plain_forwards(entries: Sequence[Entry]) -> Estimate:
    """What runs cost in plain forward passes: the geometric mean, which has no interval."""
    found = _spread([_ratio(entry) for entry in entries])
    if found.value is None:
        return found
    return Estimate(found.value, found.value, found.value, found.n)


def _lead(table: Table) -> str:
    known = [
        (line.figures["pathways"].value, line)
        for line in table.lines
        if "pathways" in line.figures and not line.baseline
    ]
    some = [(value, line) for value, line in known if value is not None]
    if not some:
        return "No method has been run on all pairs."
    value, line = min(some, key=lambda found: found[0])
    shown = f"{number_text(value)} plain forward passes ({line.badge})"
    return (
        f"The eight pathway configurations are cheapest by {line.method}: {shown}, without "
        "an interval."
    )
