"""The board of costs, in multiples of one plain forward pass of the same prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Line, Measured, Table, ordered
from kgbench.leaderboard.cells import (
    Cell,
    Runs,
    by_cell,
    core_cells,
    cost_spread,
    first_runs,
    shipped_plants,
)
from kgbench.leaderboard.entries import Entry
from kgbench.models import catalog
from kgbench.numbers import number_text

__all__ = ["BOARDS", "PLACE", "SUITES", "cost_board"]

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
    "the smallest and the largest of them. A replica of a plant costs what the plant does, and is "
    "not counted."
)


def cost_board(entries: Sequence[Entry]) -> Board:
    """The board.

    Args:
        entries: All entries.
    """
    runs: dict[str, Runs] = {}
    replicas = frozenset(catalog.replicas())
    methods: dict[str, None] = {}
    cells: dict[Cell, dict[str, dict[str, Entry]]] = {}
    for suite in SUITES:
        own = first_runs(
            entry for entry in entries if entry.suite == suite and entry.pair not in replicas
        )
        runs[suite] = own
        methods |= dict.fromkeys(method for method, _ in own)
        for cell, by_method in by_cell(own).items():
            for method, entry in by_method.items():
                cells.setdefault(cell, {}).setdefault(method, {})[suite] = entry
    title = "All shipped pairs and plants"
    lines = ordered({name: _mean(name, runs) for name in methods})
    overall = Table("all", title, COLUMNS, lines, spread="range")
    tables = [overall]
    for cell in sorted(cells, key=lambda cell: (not cell.core, cell)):
        measured = {}
        asked: set[str] = set()
        for name, by_suite in cells[cell].items():
            figures = {suite: _spread(suite, [entry]) for suite, entry in by_suite.items()}
            measured[name] = Measured(list(by_suite.values()), figures, unranked=UNRANKED)
            asked |= by_suite.keys()
        columns = tuple(column for column in COLUMNS if column.key in asked)
        lines = ordered(measured)
        tables.append(Table(cell.key, cell.title, columns, lines, cell.scope, spread="range"))
    return Board("cost", "Cost", ABOUT, _lead(overall), tuple(tables))


def _mean(method: str, runs: Mapping[str, Runs]) -> Measured:
    """Mean cost of each suite that was run on all cells."""
    figures = {}
    entries: list[Entry] = []
    have = of = 0
    for suite, found in runs.items():
        cells = shipped_plants(core_cells(planted=suite == "planted", prompts=("",)))
        own = [found[method, cell] for cell in cells if (method, cell) in found]
        if own:
            entries, have, of = [*entries, *own], have + len(own), of + len(cells)
        if len(own) == len(cells):
            figures[suite] = _spread(suite, own)
    return Measured(entries, figures, unranked=UNRANKED, coverage=(have, of))


def _spread(suite: str, entries: Sequence[Entry]) -> Estimate:
    """Cost of some runs; undefined where a method makes only some of the pathways."""
    for entry in entries if suite == "pathways" else ():
        for configuration, reason in entry.record.not_applicable.items():
            return Estimate.missing(f"without {configuration}, which is not applicable: {reason}")
    return cost_spread(entries)


def _lead(table: Table) -> str:
    cheapest: tuple[float, Line] | None = None
    for line in table.lines:
        figure = line.figures.get("pathways")
        if figure is None or figure.value is None or line.baseline:
            continue
        if cheapest is None or figure.value < cheapest[0]:
            cheapest = figure.value, line
    if cheapest is None:
        return "No method has been run on all pairs."
    value, line = cheapest
    shown = f"{number_text(value)} plain forward passes ({line.badge})"
    return (
        f"The eight pathway configurations are cheapest by {line.method}: {shown}, without "
        "an interval."
    )


PLACE = 5
BOARDS = (cost_board,)
