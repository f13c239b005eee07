"""What pages show of tables and runs: cells with footnotes and links, and data of pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

from markupsafe import Markup

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Line, Table
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.known import planted_sites
from kgbench.records import Result
from kgbench.report import Footnotes
from kgbench.sites import parse_graft

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_]*")
_LONGEST = 60


def method_slug(name: str) -> str:
    """Unique file name of a method, also on file systems without case."""
    if _PLAIN.fullmatch(name) and len(name) <= _LONGEST:
        return name
    plain = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:_LONGEST]
    return f"{plain or 'method'}-{sha256(name.encode()).hexdigest()[:8]}"


def method_page(line: Line) -> str:
    """The page of a line's method, from the site's root; empty where it has none."""
    return "" if line.badge == "published" else f"methods/{method_slug(line.method)}.html"


def run_name(record: Result | str) -> str:
    """Name of a run's files: the first twelve digits of its id."""
    return (record if isinstance(record, str) else record.id)[:12]


def brief(title: str) -> str:
    """A table's title up to the first colon."""
    return title.partition(": ")[0]


# ------------------------------------------------------------------------------------------ tables


@dataclass
class Cells:
    """Cells of one table, with the footnotes that they need and the figures that were shown."""

    footnotes: Footnotes = field(default_factory=Footnotes)
    shown: list[Estimate] = field(default_factory=list)

    def cell(self, estimate: Estimate | None, columns: int = 1) -> Markup:
        """A cell with data for pictures and sorting; an undefined one points to a footnote.

        Args:
            estimate: The figure; None where nothing was run.
            columns: Columns that the cell takes.
        """
        if estimate is None:
            return Markup("<td>–")
        text = self.footnotes.cell(estimate)
        value, low, high = estimate.value, estimate.low, estimate.high
        if value is None:
            mark = self.footnotes.reasons.index(estimate.undefined or "") + 1
            span = f" colspan={columns}" if columns > 1 else ""
            return Markup(f"<td data-f={mark}{span}>{text}")
        ends = (value, value, value) if low is None or high is None else (value, low, high)
        if low is not None:
            self.shown.append(estimate)
        exact = " ".join(_unpadded(f"{end:.4g}") for end in ends)
        return Markup(f'<td data-v="{exact} {estimate.n}">{text}')


def _unpadded(number: str) -> str:
    """A number without the zero before its point."""
    return number.replace("0.", ".", 1) if number.lstrip("-−").startswith("0.") else number


def shown_table(table: Table, limit: int | None = None, keys: Sequence[str] = ()) -> Table:
    """A table as pages show it: the reader's runs first.

    Args:
        table: The figures.
        limit: Only the first so many lines.
        keys: Only these columns; all where empty.
    """
    columns = tuple(column for column in table.ordered_columns if not keys or column.key in keys)
    lines = tuple(sorted(table.lines, key=lambda line: line.badge != "yours")[:limit])
    return replace(table, columns=columns, lines=lines)


def lines_of(board: Board, method: str) -> tuple[Table, list[str]] | None:
    """All lines of a method on a board, named by their tables, and these; None where it has none."""
    columns: dict[str, Column] = {}
    lines: dict[str, Line] = {}
    for table in board.tables:
        for line in table.lines:
            if line.method == method:
                columns |= {column.key: column for column in table.ordered_columns}
                lines[table.key] = replace(line, method=brief(table.title))
    if not lines:
        return None
    summary = replace(
        board.tables[0],
        key=board.key,
        title=board.title,
        columns=tuple(columns.values()),
        lines=tuple(lines.values()),
        notes=(),
    )
    return summary, list(lines)


# ------------------------------------------------------------------------------- data of pictures


def compact_json(value: Any) -> str:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _short(value: float) -> float:
    """Four significant digits: what a picture can show."""
    return float(f"{value:.4g}")


def table_curves(table: Table, entries: Mapping[str, Entry]) -> list[tuple[str, list[list[float]]]]:
    """Budget curves of a table's methods on its prompt, of those lines that are from one run.

    Args:
        table: The table.
        entries: By the name of the run.

    Returns:
        The method, and its points: budget in per cent, recovery with its interval.
    """
    curves = []
    for line in table.lines:
        runs = [entries[name] for name in map(run_name, line.runs) if name in entries]
        by_prompt = (runs[0].record.curve if len(runs) == 1 else None) or {}
        if (curve := by_prompt.get(table.scope.get("prompt", ""))) is not None:
            points = []
            for point in curve.points:
                if (ends := point.recovery.numbers) is not None:
                    points.append(list(map(_short, (point.budget, *ends))))
            curves.append((line.method, points))
    return curves


def map_data(record: Result) -> dict[str, Any] | None:
    """Scores by region, component and layer, and the sites that were planted; None without a map."""
    if not (scores := record.by_site):
        return None
    truth, tree, planted = record.identity.truth, dict[str, dict[str, dict[str, float]]](), []
    true = frozenset() if truth is None else planted_sites(scores, parse_graft(truth.plant))
    for site, score in scores.items():
        layer = "embed" if site.layer is None else str(site.layer)
        components = tree.setdefault(site.region, {})
        components.setdefault(site.component, {})[layer] = _short(score)
        if site in true:
            planted.append(f"{site.region} {site.component} {layer}")
    return {"scores": tree, "planted": planted}
