"""The boards as Markdown: the summary that a repository's page shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tabulate import tabulate

from kgbench.leaderboard.model import Board, Column, Leaderboard, Line, Table, spread_text
from kgbench.report import Footnotes, markdown_text

__all__ = ["render_markdown"]

HEAD = """# Leaderboard

Localizers say where a finetuned fact is retrieved from; these tables say how well they do. Every figure is over facts
or plants that all methods share; what its brackets hold stands below each table. The rank of a method is 1 + the number
of methods that are told to be better, by all paired differences of a table at once: on about 95 % of tables nothing is
told that is not so. A shared rank does not mean that methods are equal, only that these facts do not put them in order;
and methods of different ranks need not be told apart from each other. A rank in brackets is unverified: nobody but the
submitter has run the method (its source is *self-reported*), and no verified rank counts it. *Verified* is what a
maintainer ran again and it agreed. A method that breaks a law of localizers has no rank. A figure over several cells is
only given to a method that was run on all of them. `kgbench leaderboard serve` shows pages with pictures, single cells
and runs, and `kgbench leaderboard build` writes them to `site/`; how to add a method is in [README.md](README.md).

This file is written by `kgbench leaderboard build`.
"""


def render_markdown(leaderboard: Leaderboard) -> str:
    """The first table of each board, with who leads; equal boards give equal texts."""
    return "\n".join([HEAD, *(_board(board) for board in leaderboard.boards)])


def _board(board: Board) -> str:
    table, notes = board.tables[0], Footnotes()
    columns = table.ordered_columns
    body = [_row(line, columns, notes) for line in table.lines]
    ranked = table.ranked_by is not None
    heads = [
        *(["rank"] if ranked else []),
        "method",
        "source",
        "cells",
        *(markdown_text(column.title) for column in columns),
    ]
    rows = [row if ranked else row[1:] for row in body]
    text = (
        tabulate(rows, heads, tablefmt="github", disable_numparse=True)
        if rows
        else "No entries yet."
    )
    parts = [
        f"## {board.title}",
        board.about,
        f"**{markdown_text(board.lead)}**",
        f"{table.title}:",
        text,
        *_below(table, notes),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(line: Line, columns: Sequence[Column], notes: Footnotes) -> list[str]:
    have, of = line.coverage
    cells = [
        notes.cell(line.figures[column.key]) if column.key in line.figures else "–"
        for column in columns
    ]
    name = markdown_text(line.method)
    name = f"*{name}*" if line.baseline else name
    name += (
        f" (breaks a law: {', '.join(law.replace('_', ' ') for law in line.broken)})"
        if line.broken
        else ""
    )
    return [line.rank_text or "–", name, line.badge, f"{have} of {of}", *cells]


def _below(table: Table, notes: Footnotes) -> Iterator[str]:
    yield "\n".join(f"- {markdown_text(line)}" for line in notes.lines())
    reasons: dict[str, list[str]] = {}
    for line in table.lines:
        if line.rank is None and line.unranked and table.ranked_by is not None:
            reasons.setdefault(line.unranked, []).append(line.method)
    yield "\n".join(
        f"- without a rank: {markdown_text(', '.join(names))}: {markdown_text(why)}"
        for why, names in reasons.items()
    )
    keys = {column.key for column in table.columns}
    shown = (figure for line in table.lines for key, figure in line.figures.items() if key in keys)
    spread = spread_text(shown, table.spread)
    notes_below = [*([f"{spread}."] if spread else []), *table.notes]
    yield "\n".join(f"- {markdown_text(note)}" for note in notes_below)
