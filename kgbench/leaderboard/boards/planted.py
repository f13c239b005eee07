"""The board of plants: how well each method finds the blocks that learned the facts.

The unit is a place: a plant, whose blocks, facts and recipient are drawn. Levels are fixed by
design. So a mean over plants is the mean over levels, which weigh the same, of the mean over their
plants; its interval and the ranks are from one variance, that between places of a level. All
methods share one resample of the plants, so that their differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import (
    Board,
    Column,
    Measured,
    Table,
    lead,
    ordered,
    trusted_lines,
)
from kgbench.leaderboard.cells import (
    FORWARDS,
    Cell,
    Plant,
    Runs,
    core_cells,
    first_runs,
    overall_lines,
    runs_on,
    without_scans,
)
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import METRIC
from kgbench.models import catalog
from kgbench.numbers import count_text
from kgbench.records import Effect, Planted
from kgbench.sites import parse_graft
from kgbench.stats import Resampled, resampled_strata, stratified_mean

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class PlantScores:
    """A method's score on each of some plants; higher is better."""

    values: Mapping[Plant, float]
    """By plant."""
    support: tuple[float, float] = (0.0, 1.0)
    """Bounds of a score."""

    @cached_property
    def figure(self) -> Estimate:
        """The mean with its interval; of one plant the value alone."""
        if len(self.values) == 1:
            return Estimate.alone(next(iter(self.values.values())), 1, "one plant")
        return stratified_mean(_strata(self.values), self.support)

    def minus(self, other: PlantScores) -> Resampled:
        """Its paired difference from another method on the same plants.

        Raises:
            DataError: The two are not of the same plants.
        """
        if set(self.values) != set(other.values):
            raise DataError("two methods have figures of other plants, and cannot be compared")
        gaps = {plant: value - other.values[plant] for plant, value in self.values.items()}
        return resampled_strata(_strata(gaps))


def _strata(values: Mapping[Plant, float]) -> list[Array]:
    """Values by level, or the means of levels as one stratum where a level has one plant."""
    levels: dict[str, list[float]] = {}
    for (level, _), value in sorted(values.items()):
        levels.setdefault(level, []).append(value)
    if len(levels) > 1 and min(map(len, levels.values())) < 2:
        return [np.array([float(np.mean(scores)) for scores in levels.values()])]
    return list(map(np.array, levels.values()))


# ------------------------------------------------------------------------------------------ figures

RANKED, ABOVE, ABOVE_PRIOR = "average_precision", "above_chance", "above_prior"

PRIVILEGED = "privileged: it knows where the facts were planted"

ROUNDING = 1e-6
"""Of stored figures, so that one at the end of what it can be is not beyond it."""

COLUMNS = (
    Column(
        RANKED,
        "average precision",
        "Average precision of the blocks that learned the facts among those whose weights changed",
        "higher",
    ),
    Column(
        ABOVE,
        "above chance",
        "The same less what a random order of these blocks is expected to have, plant by plant",
        "higher",
    ),
    Column(
        ABOVE_PRIOR,
        "above the prior",
        "The same less what the fixed order of the baseline prior has, plant by plant",
        "higher",
    ),
    Column(
        "sufficiency",
        "sufficiency of the best sites",
        "Recovery where the highest-ranked sites are grafted, as many as were planted",
        "higher",
    ),
    Column(
        "necessity",
        "necessity of the best sites",
        "What is lost where all sites but these are grafted",
        "higher",
    ),
)

ABOUT = (
    "Facts were finetuned by ordinary forwards with only some blocks trainable (a block is the "
    "attention or the FFN of a layer), and other facts with other blocks. All changes have the "
    "same singular values, relative to their matrix. So it is known which blocks learned the facts; no "
    "graft measured it. A method ranks the blocks that changed, each by the largest score of its "
    "sites (a component of a layer at a region of tokens)."
)

Judged = Mapping[Plant, Planted]
"""Comparisons with the truth, by plant."""


def _judged(runs: Mapping[Cell, Entry]) -> Judged:
    return {cell.plant: _planted(entry) for cell, entry in runs.items()}


def _planted(entry: Entry) -> Planted:
    """The comparison with the truth; ratios of other metrics than the board's are left out."""
    planted, metric = entry.planted, entry.result.metric
    if planted is None:
        raise DataError(f"{entry.folder}: it is of no shipped plant, so that no truth is known")
    if metric == METRIC:
        return planted
    reason = f"the run's ratios are of {metric}, and the board's are of {METRIC}"
    absent = Estimate.missing(reason)
    return planted.model_copy(update={"effect": Effect(sufficiency=absent, necessity=absent)})


def _measure(runs: Mapping[Cell, Entry], prior: Judged) -> Measured:
    """A method's figures over some plants, and what it is ranked by.

    Args:
        runs: Its run on each plant.
        prior: Comparisons of the prior with the truth.
    """
    entries, judged = list(runs.values()), _judged(runs)
    method = entries[0].localizer
    figures = {}
    for column in COLUMNS:
        figure = _figure(judged, column.key, {} if method == "prior" else prior)
        if figure is not None:
            figures[column.key] = figure
    if method == "oracle":
        return Measured(entries, figures, PRIVILEGED)
    if (undefined := figures[RANKED]).value is None:
        return Measured(entries, figures, undefined.undefined or "")
    values = {plant: planted.average_precision.value or 0.0 for plant, planted in judged.items()}
    return Measured(entries, figures, PlantScores(values))


def _figure(judged: Judged, key: str, prior: Judged) -> Estimate | None:
    """A mean over plants; None where there is nothing to compare with."""
    if key == ABOVE:
        return _above(judged, {plant: planted.chance for plant, planted in judged.items()})
    if key == ABOVE_PRIOR:
        return _above(judged, {p: planted.average_precision.value for p, planted in prior.items()})
    values = {}
    for plant, planted in judged.items():
        figure = getattr(planted if key == RANKED else planted.effect, key)
        if figure.value is None:
            return Estimate.missing(f"{figure.undefined} (on {plant[1]})")
        values[plant] = figure.value
    return PlantScores(values).figure.rounded()


def _above(judged: Judged, baseline: Mapping[Plant, float | None]) -> Estimate | None:
    """The mean difference from a baseline; None where that is not known on every plant."""
    expected, gaps = [], {}
    for plant, planted in judged.items():
        value, precision = baseline.get(plant), planted.average_precision.value
        if value is None or precision is None:
            return None
        expected.append(value)
        gaps[plant] = precision - value
    support = (-max(expected) - ROUNDING, 1 - min(expected) + ROUNDING)
    return PlantScores(gaps, support).figure.rounded()


# ------------------------------------------------------------------------------------------- tables


@dataclass(frozen=True)
class Group:
    """Plants over which methods have one mean and ranks."""

    key: str
    """Of its table, fit for a link."""
    title: str
    units: str = "blocks"
    """What is ranked."""


ALL_TOKENS = Group("all", "facts at all tokens, in the tiny pairs")
TOKENS = Group("tokens", "facts at the first entity or the last token alone", "blocks at a region")


def group_of(plant: str) -> Group:
    """The group of a shipped plant; a language model that is fetched has one of its own.

    Args:
        plant: Its name.
    """
    entry = catalog.entry(plant)
    if base := Cell(True, plant, "").language_model:
        return Group(base, f"facts at all tokens, in {base}")
    terms = parse_graft(entry.plant or "").terms
    return ALL_TOKENS if all(str(term.positions) == "ALL" for term in terms) else TOKENS


def planted_board(entries: Sequence[Entry]) -> Board:
    """The board of plants; its entries are those that were judged by one."""
    runs = first_runs(without_scans(e for e in entries if e.suite == "planted"))
    groups: dict[Group, list[Cell]] = {ALL_TOKENS: [], TOKENS: []}
    for cell in core_cells(planted=True, prompts=("",)):
        groups.setdefault(group_of(cell.pair), []).append(cell)
    first, *others = (_overall(*group, runs_on(group[1], runs)) for group in groups.items())
    others = [table for table in others if table.lines]
    tables = [first]
    if runs_on(chain.from_iterable(groups.values()), runs):
        leads = tuple(f"{table.title}: {lead(table)}" for table in others)
        levels = _by_level(groups, runs)
        tables.append(replace(levels, notes=(*levels.notes, *leads)))
    return Board("planted", "Planted facts", ABOUT, _lead(first), (*tables, *others))


def _overall(group: Group, cells: Sequence[Cell], runs: Runs) -> Table:
    """The table over all plants of a group."""
    priors = (ran for ran in runs.values() if next(iter(ran.values())).localizer == "prior")
    prior = _judged(next(priors, {}))
    judged = _judged(max(runs.values(), key=len, default={}))
    chance = {plant: planted.chance or 0.0 for plant, planted in judged.items()}
    marks = {ABOVE: (("chance", 0.0),), ABOVE_PRIOR: (("prior", 0.0),)}
    if chance:
        marks[RANKED] = (
            ("chance, and knowing which weights changed", PlantScores(chance).figure.value or 0.0),
        )
    columns = [replace(column, marks=marks.get(column.key, ())) for column in COLUMNS]
    levels = len({cell.level for cell in cells})
    return Table(
        key=group.key,
        title=f"{len(cells)} plants, {group.title}",
        brief=group is ALL_TOKENS,
        columns=(*columns, FORWARDS),
        lines=overall_lines(runs, cells, "plants", partial(_measure, prior=prior)),
        ranked_by=RANKED,
        notes=(
            f"Means are over {count_text(levels, 'level')}, each weighing the same, of the mean "
            "over its plants. Blocks and facts of plants were drawn; intervals and ranks are from "
            "the variance between plants of a level, and speak of further draws of these levels in "
            "these models. Intervals also count two imagined plants, a score of 0 and one of 1.",
            f"What is ranked are {group.units}. Chance is the score of a method that knows only "
            "which weights changed. The prior also knows the paper's finding, that facts are used "
            "at the first entity and the last token by the upper layers, and looks at nothing.",
            "The best sites are as many as were planted: recovery where they alone are put into "
            "the base (sufficiency; the right ones do little there on loud levels), and what is lost "
            "where they alone are left out of the finetuned model (necessity).",
        ),
    )


def _by_level(groups: Mapping[Group, Sequence[Cell]], runs: Runs) -> Table:
    """Average precision of each method on the plants of each level, and of each language model."""
    parts: dict[str, list[Cell]] = {}
    for group, cells in groups.items():
        for cell in cells:
            part = cell.level if group in (ALL_TOKENS, TOKENS) else group.key
            parts.setdefault(part, []).append(cell)
    columns = []
    for part, cells in parts.items():
        columns.append(
            Column(part, part, f"Average precision on the {len(cells)} plants of {part}")
        )
    every, measured = list(chain.from_iterable(parts.values())), {}
    for method, ran in runs_on(every, runs).items():
        figures = {}
        for part, cells in parts.items():
            judged = _judged({cell: ran[cell] for cell in cells if cell in ran})
            scores = {plant: each.average_precision.value for plant, each in judged.items()}
            if len(scores) == len(cells) and None not in scores.values():
                values = {plant: score or 0.0 for plant, score in scores.items()}
                figures[part] = PlantScores(values).figure.rounded()
        measured[method] = Measured(list(ran.values()), figures, "", (len(ran), len(every)))
    fetched = [group.key for group in groups if group not in (ALL_TOKENS, TOKENS)]
    title = " and ".join(["Average precision by level in the tiny pairs", *fetched])
    chance = (
        "none and all, which score all blocks alike, have what a random order is expected to have."
    )
    return Table("levels", title, tuple(columns), ordered(measured), notes=(chance,))


def _lead(table: Table) -> str:
    """The best method, and the numbers of methods that are better than chance and the prior."""
    counts = {}
    for key in (ABOVE, ABOVE_PRIOR):
        figures = []
        for line in trusted_lines(line for line in table.lines if line.ranks):
            if not line.baseline and key in line.figures:
                figures.append(line.figures[key])
        counts[key] = sum((figure.low or 0.0) > 0 for figure in figures), len(figures)
    (chance, n), (prior, against) = counts.values()
    if not n:
        return lead(table)
    than_prior = f" and {prior} of {against} beat the prior" if against else ""
    return (
        f"{lead(table)} Baselines apart, {chance} of {n} methods beat chance{than_prior} (each by "
        "its own 95 % interval)."
    )


PLACE = 1
BOARDS = (planted_board,)
