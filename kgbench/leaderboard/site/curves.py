"""Budget curves of all methods on one pair and prompt, as a data file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.model import Board, Line, Table
from kgbench.leaderboard.site.cells import short
from kgbench.leaderboard.site.pages import script_call
from kgbench.records import Curve

__all__ = ["curve_data", "curve_files", "has_curves"]


def has_curves(table: Table, entries: Mapping[str, Entry]) -> bool:
    """Whether its methods have budget curves."""
    return any(_curve(table, line, entries) is not None for line in table.lines)


def curve_files(board: Board, entries: Mapping[str, Entry]) -> Iterator[tuple[str, bytes]]:
    """One file per table that is of one pair and prompt."""
    for table in board.tables:
        curves = [
            (line, curve)
            for line in table.lines
            if (curve := _curve(table, line, entries)) is not None
        ]
        if curves:
            data = [[line.method, curve_data(curve)] for line, curve in curves]
            yield (
                f"data/curves/{board.key}-{table.key}.js",
                script_call("kgbench.curves.put", f"{board.key}-{table.key}", data),
            )


def curve_data(curve: Curve) -> list[list[Any]]:
    """Points: budget in per cent, recovery with its interval; without undefined points."""
    found = [(p.budget, p.recovery.value, p.recovery.low, p.recovery.high) for p in curve.points]
    return [
        [short(number) for number in point if number is not None]
        for point in found
        if None not in point
    ]


def _curve(table: Table, line: Line, entries: Mapping[str, Entry]) -> Curve | None:
    """The curve of the table's prompt, where the line is from one run."""
    prompt = table.scope.get("prompt")
    runs = [entries[id] for id in line.runs if id in entries]
    if prompt is None or len(runs) != 1:
        return None
    return (runs[0].record.curve or {}).get(prompt)
