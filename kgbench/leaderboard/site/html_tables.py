"""Tables of methods as pages show them: cells with footnotes, and links to methods and runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from markupsafe import Markup

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Line, Spread, Table, spread_text
from kgbench.numbers import number_text
from kgbench.records import Record
from kgbench.report import Footnotes

__all__ = [
    "Cells",
    "Places",
    "ShownLine",
    "ShownTable",
    "brief",
    "method_slug",
    "run_name",
    "shown_part",
    "shown_rows",
    "shown_table",
]

_PLAIN = re.compile(r"[a-z0-9][a-z0-9_]*")
_LONGEST = 60


def method_slug(name: str) -> str:
    """Unique file name of a method, also on file systems without case."""
    if _PLAIN.fullmatch(name) and len(name) <= _LONGEST:
        return name
    plain = re.sub(r"[^a-z0-9_]+", "-", name.lower()).strip("-")[:_LONGEST]
    return f"{plain or 'method'}-{sha256(name.encode()).hexdigest()[:8]}"


def run_name(record: Record | str) -> str:
    """Name of a run's files: the first twelve digits of its id."""
    return (record if isinstance(record, str) else record.id)[:12]


def brief(title: str) -> str:
    """A table's title up to the first colon."""
    return title.partition(": ")[0]


@dataclass
class Cells:
    """Cells of one table, with the footnotes that they need and the figures that were shown."""

    exact: bool = True
    """Whether a cell also holds its figure in more digits than its text."""
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
        if estimate.value is None:
            mark = self.footnotes.reasons.index(estimate.undefined or "") + 1
            span = f" colspan={columns}" if columns > 1 else ""
            return Markup(f"<td data-f={mark}{span}>{text}")
        ends = [estimate.value] * 3
        if estimate.low is not None and estimate.high is not None:
            ends = [estimate.value, estimate.low, estimate.high]
            self.shown.append(estimate)
            if not self.exact:
                return Markup(f"<td>{text}")
        exact = " ".join(_unpadded(f"{end:.4g}") for end in ends)
        return Markup(f'<td data-v="{exact} {estimate.n}">{text}')

    def precise(self, estimate: Estimate | None) -> Markup:
        """A plain cell with three decimals, for pages that draw pictures from their tables."""
        if estimate is None or estimate.undefined is not None:
            return self.cell(estimate)
        return Markup(f"<td>{self.footnotes.cell(estimate, _precise)}")

    def legend(self, spread: Spread) -> str:
        """Meaning of the brackets, and how many facts or plants the figures are over."""
        if not self.shown:
            return ""
        sizes = [figure.n for figure in self.shown]
        low, high = min(sizes), max(sizes)
        n = f"n = {low}" if low == high else f"n from {low} to {high}"
        return f"{spread_text(self.shown, spread)}; {n}."


def _unpadded(number: str) -> str:
    """A number without the zero before its point."""
    return re.sub(r"^([-−]?)0\.", r"\1.", number)


def _precise(estimate: Estimate) -> str:
    ends = (estimate.value, estimate.low, estimate.high)
    value, low, high = (_decimals(end) for end in ends if end is not None)
    return value if estimate.low == estimate.high else f"{value} [{low}, {high}]"


def _decimals(value: float) -> str:
    if abs(value) >= 9.9995:
        return number_text(value)
    text = f"{value:.3f}".replace("-", "−")
    return text[-5] if text.lstrip("−") == "0.000" or text == "1.000" else _unpadded(text)


@dataclass(frozen=True)
class ShownLine:
    """A row."""

    line: Line
    name: str
    """Text of its first cell: a method, or, on a method's own page, a table."""
    href: str
    """Where the name leads; empty where nowhere."""
    tied: bool
    cells: tuple[Markup, ...]
    runs: tuple[str, ...]
    """Names of the runs that it is from; empty where they are too many to name."""


@dataclass(frozen=True)
class ShownTable:
    """A table."""

    table: Table
    columns: Sequence[Column]
    lines: Sequence[ShownLine]
    legend: str
    """Meaning of the brackets, and how many facts or plants the figures are over."""
    reasons: Sequence[str]
    """Why figures are undefined, by the numbers in the cells."""
    first: str = "Method"
    """Head of the first column."""

    @property
    def ties(self) -> bool:
        """Whether methods share a rank."""
        return any(row.tied for row in self.lines)

    @property
    def unverified(self) -> bool:
        """Whether a rank is unverified."""
        return any(row.line.rank_text.startswith("(") for row in self.lines)

    @property
    def ranked(self) -> bool:
        """Whether there are ranks."""
        return any(row.line.rank for row in self.lines)

    @property
    def unranked(self) -> list[tuple[str, list[str]]]:
        """Reasons why methods have no rank, with the methods unless a reason holds for all."""
        names: dict[str, dict[str, None]] = {}
        for row in self.lines:
            if row.line.unranked:
                names.setdefault(row.line.unranked, {})[row.name] = None
        for_all = len(names) == 1 and not self.ranked
        return [(reason, [] if for_all else list(some)) for reason, some in names.items()]

    @property
    def covered(self) -> bool:
        """Whether the table is over several cells."""
        return any(row.line.coverage[1] > 1 for row in self.lines)

    @property
    def runs(self) -> bool:
        """Whether rows name their runs."""
        return any(row.runs for row in self.lines)


@dataclass(frozen=True)
class Places:
    """Which methods and runs have pages."""

    methods: frozenset[str]
    runs: frozenset[str]
    """Names of runs."""

    def method(self, name: str) -> str:
        """The page of a method, from the site's root; empty where it has none."""
        return f"methods/{method_slug(name)}.html" if name in self.methods else ""

    def named(self, line: Line) -> tuple[str, ...]:
        """Names of the runs of a line on one cell that have pages."""
        names = map(run_name, line.runs if line.coverage[1] == 1 else ())
        return tuple(name for name in names if name in self.runs)


def _cells(line: Line, columns: Sequence[Column], cells: Cells) -> tuple[Markup, ...]:
    return tuple(cells.cell(line.figures.get(column.key)) for column in columns)


def shown_table(
    table: Table, places: Places, limit: int | None = None, only: Sequence[str] = ()
) -> ShownTable:
    """A table of methods.

    Args:
        table: The figures.
        places: Which methods and runs have pages.
        limit: Only the first so many lines.
        only: Only these columns; all where empty.
    """
    columns = [c for c in table.ordered_columns if not only or c.key in only]
    cells, sharing = Cells(), Counter(line.rank_text for line in table.lines)
    lines = []
    for line in sorted(table.lines, key=lambda line: line.badge != "yours")[:limit]:
        tied = line.rank is not None and sharing[line.rank_text] > 1
        page, figures = places.method(line.method), _cells(line, columns, cells)
        lines.append(ShownLine(line, line.method, page, tied, figures, places.named(line)))
    first = "Setting" if all(row.line.badge == "published" for row in lines) else "Method"
    legend = cells.legend(table.spread)
    return ShownTable(table, columns, lines, legend, cells.footnotes.reasons, first)


def shown_rows(board: Board, method: str, places: Places) -> ShownTable | None:
    """All rows of a method on a board, one per table; None where it has none."""
    columns: dict[str, Column] = {}
    rows = []
    for table in board.tables:
        for line in table.lines:
            if line.method == method:
                columns |= {column.key: column for column in table.ordered_columns}
                rows.append((table, line))
    if not rows:
        return None
    cells, lines = Cells(exact=False), []
    for table, line in rows:
        sharing = [other.rank_text for other in table.lines].count(line.rank_text)
        tied, href = line.rank is not None and sharing > 1, f"{board.key}.html#t={table.key}"
        figures = _cells(line, list(columns.values()), cells)
        lines.append(ShownLine(line, brief(table.title), href, tied, figures, ()))
    first = board.tables[0]
    summary = Table(
        board.key,
        board.title,
        tuple(columns.values()),
        tuple(line for _, line in rows),
        ranked_by=first.ranked_by,
        shown_first=first.shown_first,
        spread=first.spread,
    )
    legend = cells.legend(first.spread)
    return ShownTable(summary, summary.columns, lines, legend, cells.footnotes.reasons, "Where")


def shown_part(board: Board, places: Places, limit: int) -> ShownTable:
    """The few columns of a board's first table that its picture needs."""
    table = board.tables[0]
    wanted = ("sufficiency", "necessity", table.shown_first or "", table.ranked_by or "")
    return shown_table(table, places, limit, wanted if table.ranked_by else ())
