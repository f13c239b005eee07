"""Boards: tables of methods by figures, for pages and Markdown alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kgbench.estimate import Estimate
from kgbench.leaderboard.entries import Entry

__all__ = ["Badge", "Board", "Column", "Leaderboard", "Line", "Spread", "Table", "spread_text"]

Badge = Literal["verified", "self-reported", "published", "yours"]
"""Source of an entry: verified, self-reported, the paper, or the reader's own runs."""

Spread = Literal["interval", "range"]
"""What stands in a figure's brackets: its 95 % interval, or the smallest and largest value."""


@dataclass(frozen=True)
class Column:
    """A figure that all methods of a table have."""

    key: str
    title: str
    about: str
    """What it is, in a sentence."""
    better: Literal["higher", "lower"] | None = None
    """None where neither is."""
    marks: tuple[tuple[str, float], ...] = ()
    """Values that its picture marks by a line, such as chance, each with its name."""


@dataclass(frozen=True)
class Line:
    """A method in a table."""

    method: str
    """Its name on the board."""
    figures: Mapping[str, Estimate]
    """By column; a column that is not there was not run."""
    runs: tuple[str, ...]
    """Ids of the records that the figures are from."""
    coverage: tuple[int, int]
    """Of how many cells there are records, and of how many the table is."""
    badge: Badge = "self-reported"
    rank: int | None = None
    """1 + the number of better methods (see `ranks`); only verified ones count for a verified one."""
    unranked: str = ""
    """Why there is no rank."""
    baseline: bool = False
    broken: tuple[str, ...] = ()
    """Names of the laws of localizers that the method breaks."""

    @property
    def rank_text(self) -> str:
        """The rank, in brackets where nobody verified it; empty where there is none."""
        if self.rank is None:
            return ""
        return str(self.rank) if self.badge == "verified" else f"({self.rank})"


@dataclass(frozen=True)
class Table:
    """Methods on one cell, or their means over several."""

    key: str
    """Its place in a board, fit for a link, such as `tiny-gemma-headline`."""
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    """Ranked ones first, the best at the top."""
    scope: Mapping[str, str] = field(default_factory=dict)
    """What the table is limited to, such as pair and prompt; empty for the one over all cells."""
    ranked_by: str | None = None
    """Key of a column."""
    shown_first: str | None = None
    """Key of the column that is shown first; None for the one that ranks."""
    spread: Spread = "interval"
    notes: tuple[str, ...] = ()

    @property
    def ordered_columns(self) -> tuple[Column, ...]:
        """All columns: the one that is shown first, the one that ranks, the others."""
        first = (self.shown_first, self.ranked_by)
        return tuple(
            sorted(self.columns, key=lambda c: first.index(c.key) if c.key in first else 2)
        )


@dataclass(frozen=True)
class Board:
    """One question, and what all methods answer."""

    key: str
    """`pathways`, `planted`, …"""
    title: str
    about: str
    """What is measured and how to read it, in two or three sentences."""
    lead: str
    """Who leads, who says so, and who cannot be told apart from it, in a sentence or two."""
    tables: tuple[Table, ...]
    """The one over all cells first."""


@dataclass(frozen=True)
class Leaderboard:
    """All boards, and the entries behind them."""

    boards: tuple[Board, ...]
    entries: tuple[Entry, ...]
    """By method, pair and id."""


def spread_text(figures: Iterable[Estimate], spread: Spread) -> str:
    """What the brackets of some figures hold, as a clause; empty where no figure is defined."""
    wide = {figure.low != figure.high for figure in figures if figure.value is not None}
    if not wide:
        return ""
    if True not in wide:
        return "Figures here have no interval"
    if spread == "range":
        return "Brackets hold the smallest and the largest value, not an interval"
    some = "" if len(wide) == 1 else "; figures without brackets have none"
    return f"Brackets hold 95 % intervals{some}"
