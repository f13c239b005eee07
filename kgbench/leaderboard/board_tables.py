"""Boards: tables of methods by figures, for pages and Markdown alike, and how methods are ranked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal

from kgbench.estimate import Estimate
from kgbench.leaderboard.entries import TRUSTED, Badge, Entry, law_names, versioned
from kgbench.leaderboard.known import known
from kgbench.leaderboard.ranks import Comparable, better, rank_sets
from kgbench.numbers import figure_text

Spread = Literal["interval", "range"]
"""Meaning of a figure's brackets: its 95 % interval, or the smallest and largest value."""


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
    ranks: tuple[int, int] | None = None
    """Its first and last rank (see `ranks`), where it is compared with others; one of a trusted
    source with others of such alone.
    """
    unranked: str = ""
    """Why no rank is shown."""
    baseline: bool = False
    broken: tuple[str, ...] = ()
    """Names of the laws of localizers that the method breaks."""

    @property
    def rank_text(self) -> str:
        """The ranks, in brackets where they are unverified; empty where none are shown."""
        if self.ranks is None or self.unranked:
            return ""
        text = "–".join(map(str, dict.fromkeys(self.ranks)))
        return text if self.badge in TRUSTED else f"({text})"

    @property
    def may_be_best(self) -> bool:
        """Whether it is compared, and no method is significantly better."""
        return self.ranks is not None and self.ranks[0] == 1

    @property
    def broken_text(self) -> str:
        """The laws that it breaks, in words."""
        return law_names(self.broken)


@dataclass(frozen=True)
class Table:
    """Methods on one cell, or their means over several."""

    key: str
    """Its place in a board, fit for a link, such as `tiny-gemma-headline`."""
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    """By the figure that ranks, the best at the top; those without one last."""
    scope: Mapping[str, str] = field(default_factory=dict)
    """Its limits, such as pair and prompt; empty for the one over all cells."""
    ranked_by: str | None = None
    """Key of a column."""
    spread: Spread = "interval"
    notes: tuple[str, ...] = ()
    brief: bool = True
    """Whether LEADERBOARD.md has it; pages have all."""

    @property
    def ordered_columns(self) -> tuple[Column, ...]:
        """All columns: the one that ranks, the others."""
        return tuple(sorted(self.columns, key=lambda column: column.key != self.ranked_by))

    @property
    def named_runs(self) -> list[tuple[str, ...]]:
        """The runs of each line, where it is on one cell, or on the seeds of one."""
        return [line.runs if self.scope or line.coverage[1] == 1 else () for line in self.lines]

    @property
    def ranked(self) -> bool:
        """Whether methods are compared with each other."""
        return any(line.ranks for line in self.lines)

    @property
    def unranked(self) -> dict[str, list[str]]:
        """Reasons why no rank of methods is shown, with the methods."""
        names: dict[str, list[str]] = {}
        for line in self.lines:
            if line.unranked:
                names.setdefault(line.unranked, []).append(line.method)
        return names


@dataclass(frozen=True)
class Board:
    """One question, and what all methods answer."""

    key: str
    """`pathways`, `planted`, …"""
    title: str
    about: str
    """What is measured and how to read it, in two or three sentences."""
    lead: str
    """The best method, the source of its figure, and its equals, in a sentence or two."""
    tables: tuple[Table, ...]
    """The one over all cells first."""

    @property
    def versioned(self) -> str:
        """Its key with its version."""
        return versioned(self.key)


@dataclass(frozen=True)
class Leaderboard:
    """All boards, and the entries behind them."""

    boards: tuple[Board, ...]
    entries: tuple[Entry, ...]
    """By method, pair and id."""


def spread_text(figures: Iterable[Estimate], spread: Spread) -> str:
    """Meaning of the brackets of some figures, as a clause; empty where no figure is defined."""
    wide = {figure.low != figure.high for figure in figures if figure.value is not None}
    if not wide:
        return ""
    if True not in wide:
        return "Figures here have no interval"
    if spread == "range":
        return "Brackets hold the smallest and the largest value, not an interval"
    rest = "" if len(wide) == 1 else "; figures without brackets have none"
    return f"Brackets hold 95 % intervals{rest}"


@dataclass(frozen=True)
class Measured:
    """Figures of one method in one table."""

    entries: Sequence[Entry]
    figures: Mapping[str, Estimate]
    standing: Comparable | str = ""
    """What it is ranked by, or why it has no rank."""
    coverage: tuple[int, int] = (1, 1)


def ordered(methods: Mapping[str, Measured]) -> tuple[Line, ...]:
    """Lines by the figure that ranks, then those without one by name.

    A method that breaks a law has no rank; of one whose ranks are all ranks none is shown. Those
    of a trusted source are compared with each other alone, all others with all.
    """
    lines = {name: _line(name, measured) for name, measured in methods.items()}
    standing: dict[str, Comparable] = {}
    for name, measured in methods.items():
        if not isinstance(measured.standing, str) and not lines[name].unranked:
            standing[name] = measured.standing
    trusted = {line.method for line in trusted_lines(lines.values())} & standing.keys()
    sets = rank_sets(better(standing))
    if trusted != standing.keys():  # what else is tested changes how sure of a difference one is
        sets |= rank_sets(better({name: standing[name] for name in trusted}))
    for name, ranks in sets.items():
        among = len(trusted if name in trusted else standing)
        reason = "it differs significantly from no other method" * (
            1 < among == ranks[1] - ranks[0] + 1
        )
        lines[name] = replace(lines[name], ranks=ranks, unranked=reason)

    def place(line: Line) -> tuple[bool, float, str]:
        value = standing[line.method].figure.value if line.method in standing else None
        return value is None, -(value or 0.0), line.method

    return tuple(sorted(lines.values(), key=place))


def _line(name: str, measured: Measured) -> Line:
    """A line without its rank."""
    contracts = [entry.contract for entry in measured.entries if entry.contract is not None]
    broken = dict.fromkeys(chain.from_iterable(contract.broken for contract in contracts))
    builtin = [known().localizers.get(entry.localizer) for entry in measured.entries]
    if broken:
        laws = "a law" if len(broken) == 1 else "laws"
        reason = f"it breaks {laws} of localizers: {law_names(broken)}"
    elif any(e.untried and b is None for e, b in zip(measured.entries, builtin, strict=True)):
        reason = "contract not run: the laws of localizers were not tried on it"
    elif isinstance(measured.standing, str):
        reason = measured.standing
    else:
        undefined = measured.standing.figure.value is None
        reason = f"undefined: {measured.standing.figure.undefined}" if undefined else ""
    badges = [entry.badge for entry in measured.entries]
    return Line(
        method=name,
        figures=measured.figures,
        runs=tuple(entry.result.id for entry in measured.entries),
        coverage=measured.coverage,
        badge=max(badges, key=_STRENGTHS.index, default="verified"),
        unranked=reason,
        baseline=all(each is not None and each.baseline for each in builtin),
        broken=tuple(broken),
    )


def trusted_lines(lines: Iterable[Line]) -> list[Line]:
    """The lines that ranks and sentences of a trusted source count: those of one, or else all."""
    lines = list(lines)
    return [line for line in lines if line.badge in TRUSTED] or lines


_STRENGTHS: tuple[Badge, ...] = (*TRUSTED, "self-reported", "yours")
"""Badges of entries; a line has the weakest of its own."""


def lead(table: Table) -> str:
    """The method with the best figure, its source, and which methods may be the best."""
    column = next((column for column in table.columns if column.key == table.ranked_by), None)
    there = trusted_lines(line for line in table.lines if line.ranks)
    if column is None or not there:
        return "No method has been run on all cells."
    best = there[0]
    figure = best.figures[column.key]
    leads = (
        f"{best.method} leads with {figure_text(figure)} ({column.title}, n = {figure.n}; "
        f"{best.badge})"
    )
    if len(there) == 1:
        return f"{leads}; there is no other method to compare with."
    first = [line.method for line in there if line.may_be_best]
    if len(first) == len(there):
        return f"{leads}; none of the other {len(there) - 1} methods is significantly worse."
    others = [name for name in first if name != best.method]
    if not others:
        return f"{leads}, and is significantly better than every other method that has a rank."
    besides = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return (
        f"{leads}; {len(first)} of {len(there)} methods may be the best ({besides} besides): every "
        "other one is significantly worse than one of these."
    )
