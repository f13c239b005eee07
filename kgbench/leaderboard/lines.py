"""From figures of methods to the lines of a table: badges, coverage, ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from kgbench.estimate import Estimate
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.model import Badge, Line, Table
from kgbench.leaderboard.ranks import Comparable, better
from kgbench.leaderboard.validate.known import known
from kgbench.numbers import figure_text

__all__ = ["PRIVILEGED", "Measured", "lead", "make_line", "ordered"]

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
    """Lines by rank, then those without a rank by name; a method that breaks a law has no rank."""
    lines = {name: make_line(name, own) for name, own in methods.items()}
    standing = {
        name: own.standing
        for name, own in methods.items()
        if own.standing is not None and not lines[name].unranked
    }
    ranks = _ranks(
        better(standing), {name for name, line in lines.items() if line.badge == "verified"}
    )
    best = {name: -(standing[name].figure.value or 0.0) for name in ranks}
    found = {name: replace(line, rank=ranks.get(name)) for name, line in lines.items()}
    return tuple(
        found[name]
        for name in sorted(
            found, key=lambda name: (ranks.get(name, len(lines) + 1), best.get(name, 0.0), name)
        )
    )


def _ranks(above: Mapping[str, frozenset[str]], verified: Set[str]) -> dict[str, int]:
    """1 + the number of better methods; a verified one is not put below what nobody has verified.

    Args:
        above: By method, those that are told to be better.
        verified: Methods that somebody else ran again.
    """
    return {
        name: 1 + len(found & verified if name in verified else found)
        for name, found in above.items()
    }


def make_line(name: str, own: Measured) -> Line:
    """A line without its rank."""
    reason = _unfit(own.entries) or own.unranked
    if not reason and own.standing is not None and own.standing.figure.value is None:
        reason = f"undefined: {own.standing.figure.undefined}"
    return Line(
        method=name,
        figures=own.figures,
        runs=tuple(entry.record.id for entry in own.entries),
        coverage=own.coverage,
        badge=_badge(own.entries),
        unranked=reason,
        baseline=_baseline(own.entries),
        broken=_broken(own.entries),
    )


def _broken(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Names of the laws that a method breaks in any of its entries."""
    return tuple(
        dict.fromkeys(
            law for entry in entries if entry.contract is not None for law in entry.contract.broken
        )
    )


def _unfit(entries: Sequence[Entry]) -> str:
    """Reason why a method has no rank: it breaks a law of localizers, or that is unknown."""
    if broken := _broken(entries):
        return (
            f"it breaks {'a law' if len(broken) == 1 else 'laws'} of localizers: "
            f"{', '.join(law.replace('_', ' ') for law in broken)}"
        )
    if any(_untried(entry) for entry in entries):
        return "contract not run: nobody has tried on it the laws of localizers"
    return ""


def _untried(entry: Entry) -> bool:
    """Whether the laws were never tried on a submission; kgbench's tests cover its own methods."""
    return (
        entry.submission is not None
        and entry.contract is None
        and entry.record.identity.localizer.name not in known().localizers
    )


def _badge(entries: Sequence[Entry]) -> Badge:
    if any(entry.submission is None for entry in entries):
        return "yours"
    return "verified" if all(entry.verified for entry in entries) else "self-reported"


def _baseline(entries: Sequence[Entry]) -> bool:
    names = {entry.record.identity.localizer.name for entry in entries}
    return all(name in known().localizers and known().localizers[name].baseline for name in names)


def lead(table: Table) -> str:
    """Who leads a table, who says so, and who cannot be told apart from it."""
    column = next((column for column in table.columns if column.key == table.ranked_by), None)
    first = [line for line in table.lines if line.rank == 1]
    if column is None or not first:
        return "No method has been run on all cells."
    best = next((line for line in first if line.badge == "verified"), first[0])
    others = [line.method for line in first if line is not best]
    figure = best.figures[column.key]
    leads = (
        f"{best.method} leads with {figure_text(figure)} ({column.title}, n = {figure.n}; "
        f"{best.badge})"
    )
    if others:
        some = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        return f"{leads}; {some} {'has' if len(others) == 1 else 'have'} rank 1 as well."
    if all(line.rank is None or line is best for line in table.lines):
        return f"{leads}; there is no other method to compare with."
    return f"{leads}, and is told to be better than every other method that has a rank."
