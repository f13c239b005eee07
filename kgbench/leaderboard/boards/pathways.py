"""The board of pathways: what the first entity and the last token carry, as each method says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from kgbench.estimate import Estimate
from kgbench.leaderboard.boards.grid import Grid, cell_tables, over_all
from kgbench.leaderboard.cells import Cell, core_cells
from kgbench.leaderboard.contrasts import Contrast, contrast
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.model import Board, Column
from kgbench.sites import BASELINES, PATHWAYS

__all__ = ["pathways_board"]

BOTH, REST = "FE+LT", "(FE+LT)^C"

RATIOS: Mapping[str, tuple[str, Mapping[str, float], tuple[int, ...]]] = {
    "separation": ("separation", {BOTH: 1, REST: -1}, (-1, 0, 1)),
    "sufficiency": ("sufficiency of FE+LT", {BOTH: 1, "PRE": -1}, (0, 1)),
    "necessity": ("necessity of FE+LT", {"SFT": 1, REST: -1}, (0, 1)),
    "synergy": ("synergy of FE and LT", {BOTH: 1, "FE": -1, "LT": -1, "PRE": 1}, (-1, 0, 1)),
    "sufficiency_fe": ("sufficiency of FE", {"FE": 1, "PRE": -1}, (0, 1)),
    "sufficiency_lt": ("sufficiency of LT", {"LT": 1, "PRE": -1}, (0, 1)),
}
"""Columns: title, weighted sum of configurations over the donor's gain, and exact values."""

ABOUT: Mapping[str, str] = {
    "separation": "Recovery of FE+LT less recovery of its complement (sufficiency + necessity − 1): 1 where both tokens carry everything "
    "and nothing else carries anything, 0 where it makes no difference which tokens are treated",
    "sufficiency": "Share of what finetuning added that FE and LT bring by themselves",
    "necessity": "Share of it that is lost where only FE and LT lack the finetuned behaviour",
    "synergy": "What FE and LT bring together beyond the sum of each alone; negative where either would do",
    "sufficiency_fe": "Share of it that the first entity brings by itself",
    "sufficiency_lt": "Share of it that the last token brings by itself",
}

UNRANKED = (
    "nobody knows the truth on these pairs, and no figure here tells a right answer from a wrong "
    "one: a method that only copies the donor's output whenever the last token is named would have "
    "a separation of 1"
)

HITS = (*BASELINES, "ALL", *PATHWAYS)
"""Configurations in the paper's order."""


def pathways_board(entries: Sequence[Entry]) -> Board:
    """The board.

    Args:
        entries: All entries; those stand here that ran the pathways, and the baseline that ranks
            sites.
    """
    grid = Grid(
        ranked_by=None,
        figures=tuple(RATIOS),
        measure=cache(_measure),
        shown=_hits,
        why_not="it ranks sites and makes no choice of tokens of its own: see the budget board",
        unranked=UNRANKED,
    )
    found = [entry for entry in entries if entry.record.planted is None and _stands_here(entry)]
    cells = core_cells(planted=False)
    overall = over_all(grid, found, cells, _columns())
    hits = tuple(
        Column(graft, graft, f"Top-5 hit rate of the configuration {graft}") for graft in HITS
    )
    return Board(
        key="pathways",
        title="Pathways",
        about="Which tokens carry what finetuning added, as each method sees it: it is asked what "
        "the model says when only the first "
        "entity (FE), the last token (LT), both, or all others carry the finetuned behaviour.",
        lead=f"Nothing here has a rank: {UNRANKED}.",
        tables=(overall, *cell_tables(grid, found, _columns(), hits)),
    )


def _columns() -> tuple[Column, ...]:
    directed = ("separation", "sufficiency", "necessity")
    return tuple(
        Column(key, title, ABOUT[key], "higher" if key in directed else None)
        for key, (title, _, _) in RATIOS.items()
    )


def _stands_here(entry: Entry) -> bool:
    return (
        BOTH in entry.record.identity.configurations
        or entry.record.identity.localizer.name == "random"
    )


def _measure(entry: Entry, cell: Cell) -> Mapping[str, Contrast | str]:
    if BOTH not in entry.record.identity.configurations:
        return {}
    absent = {
        row.graft: row.sufficiency.undefined or ""
        for row in entry.record.rows
        if row.prompt == cell.prompt and not row.applicable
    }
    return {
        key: next((absent[graft] for graft in weights if graft in absent), None)
        or contrast(entry.hits[cell.prompt], weights, anchors)
        for key, (_, weights, anchors) in RATIOS.items()
    }


def _hits(entry: Entry, cell: Cell) -> Mapping[str, Estimate]:
    return {
        row.graft: row.top5
        for row in entry.record.rows
        if row.prompt == cell.prompt and row.graft in HITS
    }
