"""The board of pathways: the share that each method gives to the first entity and the last token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column
from kgbench.leaderboard.cells import Cell, Shares, share_tables
from kgbench.leaderboard.contrasts import Contrast, contrast
from kgbench.leaderboard.entries import Entry
from kgbench.sites import BASELINES, PATHWAYS

__all__ = ["pathways_board"]

BOTH, REST = "FE+LT", "(FE+LT)^C"


class Ratio(NamedTuple):
    """A weighted sum of configurations over the donor's gain, as a column."""

    title: str
    about: str
    weights: Mapping[str, float]
    anchors: tuple[int, ...] = (0, 1)
    """Values that facts can take exactly."""
    better: Literal["higher"] | None = None


RATIOS = {
    "separation": Ratio(
        "separation",
        "Recovery of FE+LT less recovery of its complement (sufficiency + necessity − 1): 1 where "
        "both tokens carry everything and nothing else carries anything, 0 where it makes no "
        "difference which tokens are treated",
        {BOTH: 1, REST: -1},
        (-1, 0, 1),
        "higher",
    ),
    "sufficiency": Ratio(
        "sufficiency of FE+LT",
        "Share of what finetuning added that FE and LT bring by themselves",
        {BOTH: 1, "PRE": -1},
        better="higher",
    ),
    "necessity": Ratio(
        "necessity of FE+LT",
        "Share of it that is lost where only FE and LT lack the finetuned behaviour",
        {"SFT": 1, REST: -1},
        better="higher",
    ),
    "synergy": Ratio(
        "synergy of FE and LT",
        "What FE and LT bring together beyond the sum of each alone; negative where either would "
        "do",
        {BOTH: 1, "FE": -1, "LT": -1, "PRE": 1},
        (-1, 0, 1),
    ),
    "sufficiency_fe": Ratio(
        "sufficiency of FE",
        "Share of it that the first entity brings by itself",
        {"FE": 1, "PRE": -1},
    ),
    "sufficiency_lt": Ratio(
        "sufficiency of LT",
        "Share of it that the last token brings by itself",
        {"LT": 1, "PRE": -1},
    ),
}

COLUMNS = tuple(Column(key, r.title, r.about, r.better) for key, r in RATIOS.items())

HITS = (*BASELINES, "ALL", *PATHWAYS)
"""Configurations in the paper's order."""

HIT_COLUMNS = tuple(
    Column(graft, graft, f"Top-5 hit rate of the configuration {graft}") for graft in HITS
)

UNRANKED = (
    "nobody knows the truth on these pairs, and no figure here tells a right answer from a wrong "
    "one: a method that only copies the donor's output whenever the last token is named would have "
    "a separation of 1"
)

ABOUT = (
    "Which tokens carry what finetuning added, as each method sees it: it is asked what the model "
    "says when only the first entity (FE), the last token (LT), both, or all others carry the "
    "finetuned behaviour."
)


def pathways_board(entries: Sequence[Entry]) -> Board:
    """The board.

    Args:
        entries: All entries; its own are those that ran the pathways, and the baseline that ranks
            sites.
    """
    why_not = "it ranks sites and makes no choice of tokens of its own: see the budget board"
    shares = Shares(cache(_share), why_not, unranked=UNRANKED)
    found = [
        entry
        for entry in entries
        if entry.record.planted is None and (_asked(entry) or entry.localizer == "random")
    ]
    tables = share_tables(found, shares, COLUMNS, (*COLUMNS, *HIT_COLUMNS), _hits)
    lead = f"Nothing here has a rank: {UNRANKED}."
    return Board("pathways", "Pathways", ABOUT, lead, tables)


def _asked(entry: Entry) -> bool:
    return BOTH in entry.record.identity.configurations


def _share(entry: Entry, cell: Cell) -> Mapping[str, Contrast | str]:
    if not _asked(entry):
        return {}
    rows = [row for row in entry.record.rows if row.prompt == cell.prompt and not row.applicable]
    absent = {row.graft: row.sufficiency.undefined or "" for row in rows}
    shares: dict[str, Contrast | str] = {}
    for key, ratio in RATIOS.items():
        reasons = [absent[graft] for graft in ratio.weights if graft in absent]
        hits = entry.hits[cell.prompt]
        shares[key] = next(iter(reasons), "") or contrast(hits, ratio.weights, ratio.anchors)
    return shares


def _hits(entry: Entry, cell: Cell) -> Mapping[str, Estimate]:
    rows = [row for row in entry.record.rows if row.prompt == cell.prompt]
    return {row.graft: row.top5 for row in rows if row.graft in HITS}
