"""The board of budgets: how much the sites carry that a method ranks highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from kgbench.leaderboard.board_tables import Board, Column, lead
from kgbench.leaderboard.cells import FORWARDS, Cell, Shares, share_tables, without_scans
from kgbench.leaderboard.contrasts import Contrast, contrast
from kgbench.leaderboard.entries import Entry
from kgbench.sites.configurations import budget_labels, parse_top
from kgbench.stats.ratios import area_weights

__all__ = ["budget_board"]

ABOUT = (
    "Every method ranks all sites (layer, component, region), and the same engine grafts the "
    "highest-ranked ones, up to a share of all "
    "weights × tokens. The area is the mean recovery over the logarithm of the budget, from .1 to "
    "100 %. Half of the facts rank, the "
    "other half is measured, and then they change places; methods that intervene rank sites by "
    "their effect at each alone."
)

KEYS = {1.0: "recovery_1", 10.0: "recovery_10"}
"""Columns of single budgets, in per cent."""

COLUMNS = (
    Column(
        "area", "area", "Mean recovery over the logarithm of the budget, from .1 to 100 %", "higher"
    ),
    *(
        Column(key, f"recovery at {b:g} %", f"Where the best-ranked {b:g} % are grafted", "higher")
        for b, key in KEYS.items()
    ),
)


def budget_board(entries: Sequence[Entry]) -> Board:
    """The board.

    Args:
        entries: All entries; its own are those that ran budgets.
    """
    found = without_scans(e for e in entries if e.record.planted is None and _asked(e))
    shares = Shares(cache(_share), "it cannot rank sites", ranked_by="area")
    tables = share_tables(found, shares, (*COLUMNS, FORWARDS), COLUMNS)
    return Board("budget", "Budget", ABOUT, lead(tables[0]), tables)


def _asked(entry: Entry) -> bool:
    tops = map(parse_top, entry.record.identity.configurations)
    return any(top is not None and top.percent is not None for top in tops)


def _share(entry: Entry, cell: Cell) -> Mapping[str, Contrast | str]:
    if entry.record.curve is None:
        return {}
    points = next(iter(entry.record.curve.values())).points
    budgets = budget_labels([point.budget for point in points])
    if not budgets:
        return {}
    shares = area_weights(np.array(list(budgets.values())))
    area = {label: float(share) for label, share in zip(budgets, shares, strict=True) if share}
    sums = {"area": {**area, "PRE": -1.0}}
    for label, budget in budgets.items():
        if budget in KEYS:
            sums[KEYS[budget]] = {label: 1.0, "PRE": -1.0}
    return {key: contrast(entry.hits[cell.prompt], own) for key, own in sums.items()}
