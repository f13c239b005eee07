"""The boards, one module each, in the order of pages."""

from __future__ import annotations

from collections.abc import Sequence

from kgbench.leaderboard.board_tables import Board
from kgbench.leaderboard.boards.cost import cost_board
from kgbench.leaderboard.boards.planted import (
    components_board,
    plant_pathways_board,
    positions_board,
)
from kgbench.leaderboard.boards.shares import budget_board, pathways_board
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.published import published_board

__all__ = ["all_boards"]

BOARDS = (
    components_board,
    positions_board,
    plant_pathways_board,
    pathways_board,
    budget_board,
    cost_board,
)


def all_boards(entries: Sequence[Entry]) -> list[Board]:
    """All boards of some entries."""
    return [*(board(entries) for board in BOARDS), published_board()]
