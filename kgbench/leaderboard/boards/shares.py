"""The boards of shares of the donor's gain: of the pathways, and of budgets of sites.

All methods share one resample of the facts of a cell, so that their differences are paired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import chain
from typing import Any, Literal
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Measured, Table, lead, ordered
from kgbench.leaderboard.cells import (
    FORWARDS,
    Cell,
    Runs,
    by_cell,
    core_cells,
    first_runs,
    overall_lines,
    runs_on,
    without_scans,
)
from kgbench.leaderboard.entries import BOARD_FACTS, Entry
from kgbench.leaderboard.hits import PromptHits
from kgbench.numbers import count_text
from kgbench.records import NOT_APPLICABLE
from kgbench.resources import read_toml
from kgbench.sites import BASELINES, PATHWAYS
from kgbench.stats import (
    Parts,
    Resampled,
    apart,
    hit_rate,
    mean_of,
    resample,
    resampled_ratio,
)
from kgbench.stats.ratios import area_weights, no_gain
from kgbench.stats.summary import budgets_in

Array = NDArray[Any]


_resample = lru_cache(maxsize=4)(resample)
"""A resample of n facts [draws, n] by its seed, the same for every method."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """A method's figure on a cell: a weighted sum of configurations over the donor's gain."""

    facts: tuple[str, ...]
    """Ids of the facts."""
    parts: Parts
    """The weighted sum and the donor's gain, of each fact [n]; integers where the weights are."""
    anchors: Sequence[int] = (0, 1)
    """Ratios that facts can take exactly."""

    @cached_property
    def resampled(self) -> Resampled:
        """The ratio under the resample of its facts."""
        counts = _resample(len(self.facts), seed=crc32("\n".join(self.facts).encode()))
        return resampled_ratio(self.parts, counts, self.anchors)

    def minus(self, other: Contrast) -> Resampled:
        """The paired difference; both are of the same facts."""
        return apart((other.parts, other.resampled), (self.parts, self.resampled), self.anchors)


def contrast(
    prompt: PromptHits, weights: Mapping[str, float], anchors: Sequence[int] = (0, 1)
) -> Contrast | str:
    """Share of the donor's gain that a weighted sum of configurations has, or why there is none.

    Args:
        prompt: One prompt's hits.
        weights: Of each configuration; whole numbers where the sum is of hits.
        anchors: Ratios that facts can take exactly.
    """
    hits = prompt.hits
    if missing := [graft for graft in (*BASELINES, *weights) if graft not in hits]:
        return f"{' and '.join(dict.fromkeys(missing))} was not run"
    if (undefined := no_gain(hits)) is not None:
        return undefined.undefined or ""
    are_hits = all(weight == int(weight) for weight in weights.values())
    kind: type = np.int64 if are_hits else np.float64
    terms = [kind(weight) * hits[graft].astype(kind) for graft, weight in weights.items()]
    total = np.sum(terms, axis=0)
    if not are_hits:
        # Rounded, so that facts tie exactly where nothing but the order of the sum differs.
        total = np.round(total, 12)
    return Contrast(prompt.facts, (total, hits["SFT"].astype(kind) - hits["PRE"]), anchors)


@dataclass(frozen=True, eq=False)
class Means:
    """The mean of a figure over cells, of one method."""

    cells: Mapping[Any, Contrast]
    """By cell."""

    @property
    def n(self) -> int:
        """Number of facts behind it, each counted once."""
        return len(set(chain.from_iterable(part.facts for part in self.cells.values())))

    @cached_property
    def figure(self) -> Estimate:
        """The mean with its interval."""
        return mean_of([part.resampled for part in self.cells.values()], self.n).figure()

    def minus(self, other: Means) -> Resampled:
        """Its paired difference from another method on the same cells."""
        gaps = [part.minus(other.cells[cell]) for cell, part in self.cells.items()]
        return mean_of(gaps, self.n)


@dataclass(frozen=True)
class Shares:
    """Shares of the donor's gain: of one cell, or their means over several."""

    share: Callable[[Entry, Cell], Mapping[str, Contrast | str]]
    """Figures by key, or why there is none; empty where the method does not answer the question."""
    why_not: str = ""
    """Why a method without figures is not ranked."""
    ranked_by: str | None = None
    """Key of a figure; None where methods are not ranked."""
    unranked: str = ""
    """Why no method is ranked."""

    def measure(self, runs: Mapping[Cell, Entry]) -> Measured:
        """Figures of a method, and what it is ranked by."""
        entries = list(dict.fromkeys(runs.values()))
        shares = {cell: self.share(entry, cell) for cell, entry in runs.items()}
        if not all(shares.values()):
            return Measured(entries, {}, self.why_not)
        figures = {}
        standing: Means | str = self.unranked
        for key in next(iter(shares.values())):
            contrasts, reasons = {}, []
            for cell, by_key in shares.items():
                part = by_key[key]
                if isinstance(part, str):
                    reasons.append(f"{part} (on {cell.title})" if len(shares) > 1 else part)
                else:
                    contrasts[cell] = part
            means = Means(contrasts)
            figures[key] = Estimate.missing(reasons[0]) if reasons else means.figure.rounded()
            if key == self.ranked_by:
                standing = reasons[0] if reasons else means
        return Measured(entries, figures, standing)


def share_tables(
    entries: Sequence[Entry],
    shares: Shares,
    overall: Sequence[Column],
    single: Sequence[Column],
    shown: Callable[[Entry, Cell], Mapping[str, Estimate]] = lambda entry, cell: {},
) -> tuple[Table, ...]:
    """Tables of means over the tiny pairs and over each language model, and one per cell.

    Args:
        entries: Entries of the board.
        shares: Measures their shares.
        overall: Columns of the means.
        single: Columns of single cells.
        shown: Figures of the record that are shown on single cells as they are.
    """
    runs, ranked_by = first_runs(entries, by_prompt=True), shares.ranked_by
    groups: dict[str, list[Cell]] = {"": []}
    for cell in core_cells(planted=False):
        groups.setdefault(cell.language_model, []).append(cell)
    tables: list[Table] = []
    for model, cells in groups.items():
        lines = overall_lines(runs, cells, "cells", shares.measure)
        title = model or f"All {len(cells)} cells of the tiny pairs"
        table = Table(model or "all", title, tuple(overall), lines, ranked_by=ranked_by)
        tables.append(replace(table, notes=(_about(cells),), brief=not model))
    tables = [tables[0], *(table for table in tables[1:] if table.lines)]
    notes = (*tables[0].notes, *map(_further, tables[1:]), *_uncounted(runs, entries, groups))
    tables[0] = replace(tables[0], notes=notes)
    for cell, by_method in by_cell(runs).items():
        measured, n = {}, 0
        for name, entry in by_method.items():
            line = shares.measure({cell: entry})
            figures = {**line.figures, **shown(entry, cell)}
            measured[name] = replace(line, figures=figures)
            n = max([n, *(figure.n for figure in figures.values())])
        lines, title = ordered(measured), f"{cell.title}, {n} facts"
        tables.append(Table(cell.key, title, tuple(single), lines, cell.scope, ranked_by))
    return tuple(tables)


def _about(cells: Sequence[Cell]) -> str:
    """The cells that means are over."""
    counts = []
    for noun in ("pair", "prompt"):
        names = sorted({getattr(cell, noun) for cell in cells})
        counts.append(f"{count_text(len(names), noun)} ({', '.join(names)})")
    return (
        f"Figures are means over these {' and '.join(counts)}, each weighing the same; they say "
        "nothing of other models or wordings."
    )


def _further(table: Table) -> str:
    """The best method of a table that LEADERBOARD.md does not have."""
    if table.ranked_by is None:
        return f"{table.title} has a table of its own on the board's pages."
    return f"{table.title}: {lead(table)}"


def _uncounted(
    runs: Runs, entries: Sequence[Entry], groups: Mapping[str, Sequence[Cell]]
) -> Iterator[str]:
    """How many runs are on cells that no mean is over."""
    ran = runs_on(chain.from_iterable(groups.values()), runs).values()
    counted = set(chain.from_iterable(entries_of.values() for entries_of in ran))
    if more := len(entries) - len(counted):
        yield (
            f"{more} further run{'s' * (more != 1)} with other seeds, facts or settings count in "
            "no mean and have tables of their own."
        )


# ----------------------------------------------------------------------------------------- pathways


@dataclass(frozen=True)
class Ratio:
    """A weighted sum of configurations over the donor's gain, as a column."""

    title: str
    about: str
    weights: Mapping[str, float]
    anchors: Sequence[int] = (0, 1)
    """Values that facts can take exactly."""
    better: Literal["higher"] | None = None


@cache
def ratios() -> Mapping[str, Ratio]:
    """The columns of pathways, by key."""
    tables = read_toml(__package__, "pathways")
    return {key: Ratio(**table) for key, table in tables.items()}


HITS = (*BASELINES, "ALL", *PATHWAYS)
"""Configurations in the paper's order."""

HIT_COLUMNS = tuple(
    Column(graft, graft, f"Top-5 hit rate of the configuration {graft}") for graft in HITS
)

UNRANKED = (
    "the truth on these pairs is not known, and no figure here distinguishes a right answer from a wrong "
    "one: a method that only copies the donor's output whenever the last token is named would have "
    "a separation of 1"
)

ABOUT = (
    "Which tokens carry what finetuning added, as each method sees it: it is asked what the model "
    "says when only the first entity (FE), the last token (LT), both, or all others carry the "
    "finetuned behaviour. Separation is the recovery of FE+LT less that of all other tokens; synergy "
    "is what FE and LT bring together beyond the sum of each alone."
)


def pathways_board(entries: Sequence[Entry]) -> Board:
    """The board of pathways: the share that each method gives to the first entity and last token.

    Args:
        entries: All entries; its own are those that ran the pathways.
    """
    shares = Shares(cache(_share), unranked=UNRANKED)
    shown = [entry for entry in entries if "pathways" in entry.suites]
    columns = [Column(key, r.title, r.about, r.better) for key, r in ratios().items()]
    tables = share_tables(shown, shares, columns, (*columns, *HIT_COLUMNS), _hits)
    lead = f"Nothing here has a rank: {UNRANKED}."
    return Board("pathways", "Pathways", ABOUT, lead, tables)


def _share(entry: Entry, cell: Cell) -> Mapping[str, Contrast | str]:
    shares: dict[str, Contrast | str] = {}
    hits, absent = entry.hits[cell.prompt], _absent(entry, cell)
    for key, ratio in ratios().items():
        reason = next((absent[graft] for graft in ratio.weights if graft in absent), "")
        shares[key] = reason or contrast(hits, ratio.weights, ratio.anchors)
    return shares


def _hits(entry: Entry, cell: Cell) -> Mapping[str, Estimate]:
    rates = {graft: Estimate.missing(why) for graft, why in _absent(entry, cell).items()}
    for graft, hits in entry.hits[cell.prompt].hits.items():
        if graft in HITS:
            rates[graft] = hit_rate(int(hits.sum()), len(hits)).rounded()
    return rates


def _absent(entry: Entry, cell: Cell) -> Mapping[str, str]:
    """Configurations of a prompt that the method cannot express, with the reason."""
    ran, reasons = entry.hits[cell.prompt].hits, entry.result.not_applicable.items()
    return {graft: NOT_APPLICABLE + reason for graft, reason in reasons if graft not in ran}


# ------------------------------------------------------------------------------------------ budgets


BUDGET_ABOUT = (
    "Every method ranks all sites (layer, component, region), and the same engine grafts the "
    "highest-ranked ones, up to a share of all "
    "weights × tokens. The area is the mean recovery over the logarithm of the budget, from .1 to "
    "100 %. Half of the facts rank, the "
    "other half is measured, and then they change places; methods that intervene rank sites by "
    f"their effect at each alone. A run is of the first {BOARD_FACTS['budget']} facts of a pair."
)

KEYS = {1.0: "recovery_1", 10.0: "recovery_10"}
"""Columns of single budgets, in per cent."""

BUDGET_COLUMNS = (
    Column(
        "area", "area", "Mean recovery over the logarithm of the budget, from .1 to 100 %", "higher"
    ),
    *(
        Column(key, f"recovery at {b:g} %", f"Where the best-ranked {b:g} % are grafted", "higher")
        for b, key in KEYS.items()
    ),
)


def budget_board(entries: Sequence[Entry]) -> Board:
    """The board of budgets: how much the sites carry that a method ranks highest.

    Args:
        entries: All entries; its own are those that ran budgets.
    """
    shown = without_scans(e for e in entries if e.suite == "budget")
    shares = Shares(cache(_budget_share), "it cannot rank sites", ranked_by="area")
    tables = share_tables(shown, shares, (*BUDGET_COLUMNS, FORWARDS), BUDGET_COLUMNS)
    return Board("budget", "Budget", BUDGET_ABOUT, lead(tables[0]), tables)


def _budget_share(entry: Entry, cell: Cell) -> Mapping[str, Contrast | str]:
    budgets = budgets_in(entry.result.identity.configurations)
    if not budgets or not budgets.keys().isdisjoint(entry.result.not_applicable):
        return {}
    shares = area_weights(np.array(list(budgets.values())))
    area = {label: float(share) for label, share in zip(budgets, shares, strict=True) if share}
    sums = {"area": {**area, "PRE": -1.0}}
    for label, budget in budgets.items():
        if budget in KEYS:
            sums[KEYS[budget]] = {label: 1.0, "PRE": -1.0}
    return {key: contrast(entry.hits[cell.prompt], weights) for key, weights in sums.items()}


PLACE = 2
BOARDS = (pathways_board, budget_board)
