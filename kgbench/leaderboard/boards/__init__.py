"""The boards: in each module `BOARDS` makes them of entries, and `PLACE` puts them in order.

Other packages add modules by entry points in the group `kgbench.boards`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgbench.leaderboard.board_tables import Board
    from kgbench.leaderboard.entries import Entry

__all__ = ["all_boards"]


def all_boards(entries: Sequence[Entry]) -> list[Board]:
    """All boards of some entries."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    modules += [point.load() for point in entry_points(group="kgbench.boards")]
    made: list[Board] = []
    for module in sorted(modules, key=lambda module: int(module.PLACE)):
        made += [board(entries) for board in module.BOARDS]
    return made
