"""From figures of methods to the lines of a table: badges, coverage, ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.model import Badge, Line, Table
from kgbench.leaderboard.ranks import Comparable, dense_ranks
from kgbench.leaderboard.validate.known import known
from kgbench.numbers import figure_text
from kgbench.records import Estimate
from kgbench.stats import Figure

__all__ = ["PRIVILEGED", "Measured", "lead", "make_line", "ordered", "store"]

PRIVILEGED = "privileged: it is told where the facts were planted"


@dataclass(frozen=True)
class Measured:
    """What one method has in one table."""

    entries: Sequence[Entry]
    figures: Mapping[str, Estimate]
    coverage: tuple[int, int]
    standing: Comparable | None = None
    """What it is ranked by, where it can be."""
    unranked: str = ""
    """Why it cannot."""


def ordered(methods: Mapping[str, Measured]) -> tuple[Line, ...]:
    """Lines, ranked ones first, then those without a rank by name."""
    ranks = dense_ranks({name: own.standing for name, own in methods.items() if own.standing is not None})
    lines = {name: replace(make_line(name, own), rank=ranks.get(name)) for name, own in methods.items()}
    best = {name: -(own.standing.figure.value or 0.0) for name, own in methods.items() if own.standing is not None and name in ranks}
    return tuple(lines[name] for name in sorted(lines, key=lambda name: (ranks.get(name, len(lines) + 1), best.get(name, 0.0), name)))


def make_line(name: str, own: Measured) -> Line:
    """A line without its rank."""
    reason = own.unranked
    if not reason and own.standing is not None and own.standing.figure.undefined:
        reason = f"undefined: {own.standing.figure.undefined}"
    return Line(
        method=name,
        figures=own.figures,
        runs=tuple(entry.record.id for entry in own.entries),
        coverage=own.coverage,
        badge=_badge(own.entries),
        unranked=reason,
        baseline=_baseline(own.entries),
    )


def _badge(entries: Sequence[Entry]) -> Badge:
    if any(entry.submission is None for entry in entries):
        return "yours"
    return "verified" if all(entry.verified for entry in entries) else "self-reported"


def _baseline(entries: Sequence[Entry]) -> bool:
    names = {entry.record.identity.localizer.name for entry in entries}
    return all(name in known().localizers and known().localizers[name].baseline for name in names)


def store(figure: Figure) -> Estimate:
    """The figure as it is stored."""
    return Estimate(**figure.to_json())


def lead(table: Table) -> str:
    """Who leads a table, who says so, and who cannot be told apart from it."""
    column = next((column for column in table.columns if column.key == table.ranked_by), None)
    first = [line for line in table.lines if line.rank == 1]
    if column is None or not first:
        return "No method has been run on all cells."
    best, others = first[0], [line.method for line in first[1:]]
    figure = best.figures[column.key]
    shown = f"{figure_text(figure)} ({column.title}, n = {figure.n}; {best.badge})"
    leads = f"{best.method} leads with {shown}"
    if others:
        some = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        return f"{leads}; {some} cannot be told apart from it."
    rest = [line for line in table.lines if line.rank is not None and line.rank > 1]
    if not rest:
        return f"{leads}; there is no other method to compare with."
    apart = f"the 95 % interval of its difference from {rest[0].method} ({rest[0].badge}), the next"
    return f"{leads}; {apart}, leaves out 0."
