"""What a board holds, whichever it is: tables of methods by figures, for pages and Markdown alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kgbench.leaderboard.entries import Entry
from kgbench.records import Estimate

__all__ = ["Badge", "Board", "Column", "Leaderboard", "Line", "Table"]

Badge = Literal["verified", "self-reported", "published", "yours"]
"""Who says so: a maintainer ran a sample again, the submitter, the paper, or the reader's own folder of runs."""


@dataclass(frozen=True)
class Column:
    """A figure that all methods of a table have."""

    key: str
    title: str
    about: str
    """What it is, in a sentence."""
    better: Literal["higher", "lower"] | None = None
    """None where neither is."""
    detectable: float | None = None
    """The smallest difference between two methods that so many facts could show; None where that cannot be said."""


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
    """Dense; methods whose difference from the first of their group cannot be told from 0 share one."""
    unranked: str = ""
    """Why there is no rank."""
    baseline: bool = False


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
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Board:
    """One question, and what all methods answer."""

    key: str
    """`pathways`, `planted`, …"""
    title: str
    about: str
    """What is measured and how to read it, in two or three sentences."""
    lead: str
    """Who leads, and whether that is certain, in a sentence."""
    tables: tuple[Table, ...]
    """The one over all cells first."""


@dataclass(frozen=True)
class Leaderboard:
    """All boards, and the entries behind them."""

    boards: tuple[Board, ...]
    entries: tuple[Entry, ...]
    """By method, pair and id."""
