"""The board of budgets: how much the sites carry that a method ranks highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from kgbench.leaderboard.boards.cost import FORWARDS
from kgbench.leaderboard.boards.grid import Grid, cell_tables, over_all
from kgbench.leaderboard.cells import Cell, core_cells, without_scans
from kgbench.leaderboard.contrasts import Contrast, contrast
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.lines import lead
from kgbench.leaderboard.model import Board, Column
from kgbench.sites.configurations import budget_labels, parse_top
from kgbench.stats.curve import weights

__all__ = ["budget_board"]

ABOUT = (
    "Every method ranks all sites (layer, component, region), and the same engine grafts the "
    "highest-ranked ones, up to a share of all "
    "weights × tokens. The area is the mean recovery over the logarithm of the budget, from .1 to "
    "100 %. Half of the facts rank, the "
    "other half is measured, and then they change places; methods that intervene rank sites by "
    "their effect at each alone."
)

SHOWN = (1.0, 10.0)
"""Budgets that have a column, in per cent."""


def budget_board(entries: Sequence[Entry]) -> Board:
    """The board.

    Args:
        entries: All entries; those stand here that ran budgets.
    """
    keys = ("area", *(_key(budget) for budget in SHOWN))
    grid = Grid("area", keys, cache(_measure), lambda entry, cell: {}, "it cannot rank sites")
    found = without_scans(
        entry for entry in entries if entry.record.planted is None and _asked(entry)
    )
    overall = over_all(grid, found, core_cells(planted=False), (*_columns(), FORWARDS))
    return Board(
        key="budget",
        title="Budget",
        about=ABOUT,
        lead=lead(overall),
        tables=(overall, *cell_tables(grid, found, _columns(), ())),
    )


def _columns() -> tuple[Column, ...]:
    area = Column(
        "area", "area", "Mean recovery over the logarithm of the budget, from .1 to 100 %", "higher"
    )
    shares = (
        Column(
            _key(b), f"recovery at {b:g} %", f"Where the best-ranked {b:g} % are grafted", "higher"
        )
        for b in SHOWN
    )
    return (area, *shares)


def _key(budget: float) -> str:
    return f"recovery_{budget:g}"


def _asked(entry: Entry) -> bool:
    return any(
        (top := parse_top(label)) is not None and top.percent is not None
        for label in entry.record.identity.configurations
    )


def _budgets(entry: Entry) -> dict[str, float]:
    """The budgets of a run, ascending, by configuration."""
    if entry.record.curve is None:
        return {}
    points = next(iter(entry.record.curve.values())).points
    return budget_labels([point.budget for point in points])


def _measure(entry: Entry, cell: Cell) -> Mapping[str, Contrast | str]:
    hits, budgets = entry.hits[cell.prompt], _budgets(entry)
    if not budgets:
        return {}
    shares = weights(np.array(list(budgets.values())))
    area = {label: float(share) for label, share in zip(budgets, shares, strict=True) if share}
    single = {
        _key(budget): {label: 1.0, "PRE": -1.0}
        for label, budget in budgets.items()
        if budget in SHOWN
    }
    return {
        key: contrast(hits, sums) for key, sums in {"area": {**area, "PRE": -1.0}, **single}.items()
    }
