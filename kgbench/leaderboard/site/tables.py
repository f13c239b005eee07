"""Tables of methods as a page shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from kgbench.leaderboard.model import Board, Column, Line, Spread, Table
from kgbench.leaderboard.site.cells import Cells
from kgbench.leaderboard.site.links import method_slug, run_name
from kgbench.leaderboard.site.pages import brief

__all__ = ["Head", "Places", "ShownLine", "ShownTable", "shown_part", "shown_rows", "shown_table"]


@dataclass(frozen=True)
class Head:
    """A column's head."""

    key: str
    title: str
    better: str
    ranked: bool = False
    first: bool = False
    """Whether it is shown first although another one ranks."""
    marks: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ShownLine:
    """A row."""

    name: str
    """What its first cell says: a method, or, on a method's own page, a table."""
    href: str
    """Where the name leads; empty where nowhere."""
    rank: str
    """In brackets where nobody verified it."""
    tied: bool
    unranked: str
    broken: str
    """Laws of localizers that the method breaks, in words."""
    badge: str
    coverage: tuple[int, int]
    baseline: bool
    cells: tuple[Markup, ...]
    runs: tuple[str, ...]
    """Names of the runs that it is from; empty where they are too many to name."""


@dataclass(frozen=True)
class ShownTable:
    """A table."""

    key: str
    title: str
    heads: tuple[Head, ...]
    lines: tuple[ShownLine, ...]
    legend: str
    """What brackets hold, and of how many the figures are."""
    reasons: tuple[str, ...]
    """Why figures are undefined, by the numbers in the cells."""
    notes: tuple[str, ...] = ()
    scope: tuple[tuple[str, str], ...] = ()
    first: str = "Method"
    """Head of the first column."""
    spread: Spread = "interval"

    @property
    def ties(self) -> bool:
        """Whether methods share a rank."""
        return any(line.tied for line in self.lines)

    @property
    def unverified(self) -> bool:
        """Whether a rank is one that nobody verified."""
        return any(line.rank.startswith("(") for line in self.lines)

    @property
    def ranked(self) -> bool:
        """Whether there are ranks."""
        return any(line.rank for line in self.lines)

    @property
    def unranked(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Reasons why methods have no rank, with the methods unless a reason holds for all."""
        names: dict[str, list[str]] = {}
        for line in self.lines:
            if line.unranked and line.name not in names.setdefault(line.unranked, []):
                names[line.unranked].append(line.name)
        return tuple(
            (reason, () if len(names) == 1 and not self.ranked else tuple(found))
            for reason, found in names.items()
        )

    @property
    def covered(self) -> bool:
        """Whether the table is over several cells."""
        return any(line.coverage[1] > 1 for line in self.lines)

    @property
    def runs(self) -> bool:
        """Whether rows name their runs."""
        return any(line.runs for line in self.lines)


@dataclass(frozen=True)
class Places:
    """Which methods and runs have pages."""

    methods: frozenset[str]
    runs: frozenset[str]
    """Names of runs."""

    def method(self, name: str) -> str:
        """The page of a method, from the site's root; empty where it has none."""
        return f"methods/{method_slug(name)}.html" if name in self.methods else ""


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
    cells = Cells()
    sharing = _sharing(table)
    own_first = sorted(table.lines, key=lambda line: line.badge != "yours")
    lines = tuple(
        _line(line, (line.method, places.method(line.method)), columns, cells, sharing, places)
        for line in own_first[:limit]
    )
    heads = tuple(_head(column, table) for column in columns)
    scope = tuple(table.scope.items())
    first = "Setting" if all(line.badge == "published" for line in lines) else "Method"
    legend = cells.legend(table.spread)
    reasons = tuple(cells.reasons)
    return ShownTable(
        table.key,
        table.title,
        heads,
        lines,
        legend,
        reasons,
        table.notes,
        scope,
        first,
        spread=table.spread,
    )


def shown_rows(board: Board, method: str, places: Places) -> ShownTable | None:
    """All rows of a method on a board, one per table; None where it is not there."""
    here = [table for table in board.tables if any(line.method == method for line in table.lines)]
    columns = tuple(
        {column.key: column for table in here for column in table.ordered_columns}.values()
    )
    cells = Cells(exact=False)
    lines = [
        _line(
            line,
            (brief(table.title), f"{board.key}.html#t={table.key}"),
            columns,
            cells,
            _sharing(table),
            places,
        )
        for table in board.tables
        for line in table.lines
        if line.method == method
    ]
    if not lines:
        return None
    heads = tuple(_head(column, board.tables[0]) for column in columns)
    spread, reasons = board.tables[0].spread, tuple(cells.reasons)
    legend = cells.legend(spread)
    return ShownTable(
        board.key, board.title, heads, tuple(lines), legend, reasons, first="Where", spread=spread
    )


def shown_part(board: Board, places: Places, limit: int) -> ShownTable:
    """The few columns of a board's first table that its picture needs."""
    table = board.tables[0]
    wanted = ("sufficiency", "necessity", table.shown_first or "", table.ranked_by or "")
    return shown_table(table, places, limit, wanted if table.ranked_by else ())


def _sharing(table: Table) -> Mapping[str, int]:
    return Counter(line.rank_text for line in table.lines)


def _head(column: Column, table: Table) -> Head:
    ranks, leads = column.key == table.ranked_by, column.key == table.shown_first
    return Head(column.key, column.title, column.better or "", ranks, leads, column.marks)


def _line(
    line: Line,
    name: tuple[str, str],
    columns: Sequence[Column],
    cells: Cells,
    sharing: Mapping[str, int],
    places: Places,
) -> ShownLine:
    runs = tuple(run_name(id) for id in line.runs if run_name(id) in places.runs)
    return ShownLine(
        name=name[0],
        href=name[1],
        rank=line.rank_text,
        tied=line.rank is not None and sharing[line.rank_text] > 1,
        unranked=line.unranked,
        broken=", ".join(law.replace("_", " ") for law in line.broken),
        badge=line.badge,
        coverage=line.coverage,
        baseline=line.baseline,
        cells=tuple(cells.cell(line.figures.get(column.key)) for column in columns),
        runs=runs if line.coverage[1] == 1 and name[0] == line.method else (),
    )
