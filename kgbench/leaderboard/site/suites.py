"""Which question a run answers, and who says so, in a word each."""

from __future__ import annotations

from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.model import Badge

__all__ = ["badge", "suite"]


def suite(entry: Entry) -> str:
    """`planted`, `budget` or `pathways`."""
    if entry.record.planted is not None:
        return "planted"
    return "budget" if entry.record.curve else "pathways"


def badge(entry: Entry) -> Badge:
    """`verified`, `self-reported` or `yours`."""
    if entry.submission is None:
        return "yours"
    return "verified" if entry.verified else "self-reported"
