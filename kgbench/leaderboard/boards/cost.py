"""The board of costs, in multiples of one plain forward pass of the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import (
    Board,
    Column,
    Line,
    Measured,
    Table,
    ordered,
    trusted_lines,
)
from kgbench.leaderboard.cells import (
    Cell,
    Runs,
    core_cells,
    cost_spread,
    first_runs,
    runs_on,
)
from kgbench.leaderboard.entries import Entry
from kgbench.numbers import number_text

SUITES = {
    "pathways": "the eight pathway configurations",
    "budget": "a ranking of all sites and its budgets",
    "planted": "a plant",
}

COLUMNS = tuple(
    Column(suite, suite, f"Ratio to one plain forward pass, for {about}", "lower")
    for suite, about in SUITES.items()
)

UNRANKED = (
    "cost is measured once per run, on whatever machine it was: there is no interval to rank by"
)

ABOUT = (
    "Seconds that a run took, divided by those of one plain batched forward pass of the same "
    "prompts in the same run, so that the machine "
    "drops out as far as it can. Over several pairs the geometric mean is shown, and in brackets "
    "the smallest and the largest of them. Methods and cells are on the board's pages."
)


def cost_board(entries: Sequence[Entry]) -> Board:
    """The board of costs.

    Args:
        entries: All entries.
    """
    runs = {}
    for suite in SUITES:
        runs[suite] = first_runs(entry for entry in entries if entry.suite == suite)
    lines = ordered({name: _mean(name, runs) for name in set(chain.from_iterable(runs.values()))})
    title = "All pairs and plants whose base comes with the package"
    tables = [Table("all", title, COLUMNS, lines, spread="range", brief=False)]
    cells: dict[Cell, dict[str, dict[str, list[Entry]]]] = {}
    for suite, by_name in runs.items():
        for name, ran in by_name.items():
            for cell, entry in ran.items():
                cells.setdefault(cell, {}).setdefault(name, {})[suite] = [entry]
    for cell in sorted(cells, key=lambda cell: (not cell.core, cell)):
        suites = set(chain.from_iterable(cells[cell].values()))
        columns = tuple(column for column in COLUMNS if column.key in suites)
        lines = ordered({name: _measured(by_suite) for name, by_suite in cells[cell].items()})
        tables.append(Table(cell.key, cell.title, columns, lines, cell.scope, spread="range"))
    return Board("cost", "Cost", ABOUT, _lead(tables[0]), tuple(tables))


def _mean(method: str, runs: Mapping[str, Runs]) -> Measured:
    """Mean cost of each suite that was run on all cells but those of language models."""
    by_suite: dict[str, list[Entry]] = {}
    lacking, have, of = set(), 0, 0
    for suite, by_name in runs.items():
        every = core_cells(planted=suite == "planted", prompts=("",))
        cells = [cell for cell in every if not cell.language_model]
        if ran := list(runs_on(cells, by_name).get(method, {}).values()):
            by_suite[suite], have, of = ran, have + len(ran), of + len(cells)
        if len(ran) < len(cells):
            lacking.add(suite)
    measured = _measured(by_suite)
    figures = {suite: cost for suite, cost in measured.figures.items() if suite not in lacking}
    return replace(measured, figures=figures, coverage=(have, of))


def _measured(by_suite: Mapping[str, Sequence[Entry]]) -> Measured:
    """Costs of a method by suite; undefined where it makes only some of the pathways."""
    figures = {}
    for suite, entries in by_suite.items():
        absent = [*chain.from_iterable(entry.result.not_applicable.items() for entry in entries)]
        if suite == "pathways" and absent:
            configuration, reason = absent[0]
            lacks = f"without {configuration}, which is not applicable: {reason}"
            figures[suite] = Estimate.missing(lacks)
        else:
            figures[suite] = cost_spread(entries)
    return Measured(list(chain.from_iterable(by_suite.values())), figures, UNRANKED)


def _lead(table: Table) -> str:
    lines: dict[float, Line] = {}
    for line in trusted_lines(table.lines):
        figure = line.figures.get("pathways")
        if figure is not None and figure.value is not None and not line.baseline:
            lines.setdefault(figure.value, line)
    if not lines:
        return "No method has been run on all pairs."
    value = min(lines)
    shown = f"{number_text(value)} plain forward passes ({lines[value].badge})"
    return (
        f"The eight pathway configurations are cheapest by {lines[value].method}: {shown}, "
        "without an interval."
    )


PLACE = 4
BOARDS = (cost_board,)
