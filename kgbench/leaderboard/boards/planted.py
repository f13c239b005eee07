"""The boards of plants: how well each method finds the places that planted facts use.

Plants at all tokens ask for a (layer, component), position plants for a (layer, component, region):
two questions, two boards. A third is of the recoveries that a method claims for FE, LT and FE+LT.

A plant with its seed is the unit where methods are scored on plants, since sites of one plant are
no sample of anything. All methods share one resample of the plants, so that their differences are
paired. Levels are fixed by design, and seeds are sampled. So a mean over plants is the mean over
levels, which weigh the same, of the mean over seeds; its interval and the resample are stratified
by level. That needs two seeds of every level. Until then the level is the unit, by the mean of its
seeds, and intervals treat levels as a sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import product
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.errors import DataError
from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Line, Measured, Table, lead, ordered
from kgbench.leaderboard.cells import (
    FORWARDS,
    PROMPTS,
    Cell,
    Measure,
    Plant,
    Runs,
    by_cell,
    core_cells,
    first_runs,
    overall_lines,
    runs_on,
    shipped_plants,
    without_scans,
)
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import METRIC
from kgbench.models import catalog
from kgbench.numbers import count_text
from kgbench.records import Effect, Planted
from kgbench.stats import Resampled, hit_rate, resampled_strata, stratified_mean

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
            return on_plant(next(iter(self.values.values())))
        return stratified_mean(_strata(self.values), self.support)

    def minus(self, other: PlantScores) -> Resampled:
        """Its paired difference from another method on the same plants.

        Raises:
            DataError: The two are not of the same plants.
        """
        if set(self.values) != set(other.values):
            raise DataError("two methods have figures of other plants, and cannot be compared")
        gaps = {plant: own - other.values[plant] for plant, own in self.values.items()}
        return resampled_strata(_strata(gaps))


def _strata(values: Mapping[Plant, float]) -> list[Array]:
    """Values by level, or the means of levels as one stratum where a level has one seed."""
    levels: dict[str, list[float]] = {}
    for (level, _), value in sorted(values.items()):
        levels.setdefault(level, []).append(value)
    if len(levels) > 1 and min(map(len, levels.values())) < 2:
        return [np.array([float(np.mean(own)) for own in levels.values()])]
    return list(map(np.array, levels.values()))


def on_plant(value: float, n: int = 1) -> Estimate:
    """A figure on one plant, which has no interval."""
    return Estimate.alone(value, n, "one plant")


def mean_over_plants(
    figures: Mapping[Plant, Estimate], support: tuple[float, float] = (0.0, 1.0)
) -> Estimate:
    """The mean over levels of the mean over seeds, as of `PlantScores`.

    It is undefined where the figure of a plant is; of one plant it is the figure.

    Args:
        figures: By plant.
        support: Bounds of a figure.
    """
    if not figures:
        return Estimate.missing("no plant has such a figure")
    if len(figures) == 1:
        return next(iter(figures.values()))
    values = {}
    for plant, figure in figures.items():
        if figure.value is None:
            return Estimate.missing(f"{figure.undefined} (on {plant[1]})")
        values[plant] = figure.value
    return PlantScores(values, support).figure.rounded()


# ------------------------------------------------------------------------------------------- tables


def plant_tables(
    runs: Runs,
    cells: Sequence[Cell],
    overall: Callable[[Sequence[Cell], Runs], Table],
    level: Callable[[Sequence[Cell], Runs], Table],
    flat: Sequence[Cell] = (),
) -> tuple[Table, ...]:
    """The tables over all plants, over the shipped ones where others are replicas, and by level.

    A table of a level is over its seeds; a plant that is run in another way has one of its own.

    Args:
        runs: Runs of the board.
        cells: The plants that means are over.
        overall: Makes a table over some of them, of the runs on these.
        level: Makes the table of the plants of a level.
        flat: Plants that only have tables of their own.
    """
    tables, shipped = [overall(cells, runs_on(cells, runs))], shipped_plants(cells)
    if len(shipped) < len(cells):
        note = (
            "Replicas can only be run where they were built. A method that was run on the shipped "
            "plants alone has its rank in the table of these."
        )
        part = overall(shipped, runs_on(shipped, runs))
        tables = [
            replace(tables[0], notes=(*tables[0].notes, note)),
            replace(part, key="shipped", title=f"The {len(shipped)} shipped plants"),
        ]
    levels: dict[str, dict[Cell, None]] = {}
    ran = by_cell(runs)
    for cell in (*cells, *flat, *ran):
        levels.setdefault(cell.level, {})[cell] = None
    for name in dict.fromkeys(cell.level for cell in ran):
        tables.append(level(list(levels[name]), runs_on(levels[name], runs)))
    return tuple(tables)


def seeds_note(cells: Sequence[Cell]) -> str:
    """What means over plants are over, and what their intervals and ranks speak of."""
    sizes = Counter(cell.level for cell in cells).values()
    least, most = min(sizes, default=0), max(sizes, default=0)
    if most < 2:
        return (
            f"Means, intervals and ranks are over these {len(cells)} plants, each weighing the "
            "same, and say nothing of other models."
        )
    levels = count_text(len(sizes), "level")
    seeds = str(least) if least == most else f"{least} to {most}"
    if least < 2 and len(sizes) > 1:
        return (
            f"Means, intervals and ranks are over these {levels}, each weighing the same, by the "
            f"mean of its plants ({len(cells)} in all, {seeds} training seeds of a level). They "
            "are over seeds within levels once every level has two."
        )
    return (
        f"Levels are fixed by design, and training seeds are sampled: means are over {levels}, "
        f"each weighing the same, of the mean over its {seeds} seeds. Intervals and ranks are "
        "from the variance between seeds of one level; they speak of further seeds of these "
        "levels, and say nothing of other levels or models."
    )


def level_lines(cells: Sequence[Cell], runs: Runs, measure: Measure) -> tuple[Line, ...]:
    """Lines of a level's table: figures over the seeds that a method has been run on.

    Args:
        cells: The plants of the level.
        runs: The runs on them.
        measure: Measures a method on some plants.
    """
    measured = {}
    for method, own in runs.items():
        line = replace(measure(own), coverage=(len(own), len(cells)))
        if len(own) < len(cells) and not isinstance(line.standing, str):
            lacks = f"it has been run on {len(own)} of {len(cells)} seeds"
            line = replace(line, standing=lacks)
        measured[method] = line
    return ordered(measured)


# ------------------------------------------------------------------------------------------- places


RANKED, ABOVE, TOLD = "graded_precision", "above_chance", "told"
ABOVE_PRIOR = "above_prior"

PRIVILEGED = "privileged: it is told where the facts were planted"

ROUNDING = 1e-6
"""Of stored figures, so that one at the end of what it can be is not beyond it."""

COLUMNS = (
    Column(
        RANKED,
        "graded average precision",
        "Average precision among the places whose weights changed, the mean over thresholds of how "
        "far the facts use a place",
        "higher",
    ),
    Column(
        ABOVE,
        "above chance",
        "The same less what a random order of these places is expected to have, plant by plant",
        "higher",
    ),
    Column(
        ABOVE_PRIOR,
        "above the prior",
        "The same less what the fixed order of the baseline prior has, plant by plant",
        "higher",
    ),
    Column(
        "auroc_decoy",
        "AUROC against the decoy",
        "Chance that a planted place is ranked above one of the decoy's; .5 at random",
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
    Column(
        TOLD,
        "plants told right",
        "Share of prompts on which the method's intervals tell the planted pathway",
        "higher",
    ),
)

ABOUT = (
    "Facts were finetuned with only the weights of a known place trainable, and that place active "
    "in the forward pass; decoy facts were "
    "planted elsewhere with changes of like norm. How far the facts use each place is measured: "
    "what a graft of it alone brings, and what "
    "is lost where the whole donor lacks it. Places are ranked among those whose weights changed, "
    "since anybody can see which these are. "
)


def components_board(entries: Sequence[Entry]) -> Board:
    """The board of plants at all tokens; its entries are those that were judged by one."""
    about = "Here facts were planted at all tokens, and a place is a (layer, component)."
    return _board(entries, "planted", "Planted: layer and component", False, about)


def positions_board(entries: Sequence[Entry]) -> Board:
    """The board of position plants; its entries are those that were judged by one."""
    about = "Here facts were planted at some tokens, and a place is a (layer, component, region)."
    return _board(entries, "planted-positions", "Planted: positions", True, about)


def plant_cells(by_region: bool) -> tuple[list[Cell], list[Cell]]:
    """Plants and replicas whose truth puts places in an order, and those in which it does not.

    Args:
        by_region: Position plants, or those at all tokens.
    """
    ranked: list[Cell] = []
    flat: list[Cell] = []
    for cell in core_cells(planted=True, prompts=("",)):
        truth = catalog.graded_truth(cell.pair)
        if truth is not None and truth.by_region == by_region:
            (ranked if truth.chance is not None else flat).append(cell)
    return ranked, flat


def _board(entries: Sequence[Entry], key: str, title: str, by_region: bool, about: str) -> Board:
    """A board of one kind of plants.

    Args:
        entries: All entries.
        key: Its key.
        title: Its title.
        by_region: Whether places have a region.
        about: Where facts were planted, and what a place is.
    """
    own = []
    for entry in entries:
        planted = entry.record.planted
        if planted is not None and (planted.units == "site") == by_region:
            own.append(entry)
    cells, flat = plant_cells(by_region)
    notes = [
        "The line in the picture is chance: the score of a method that knows only which weights "
        "changed. The prior is the score of one that also knows the paper's finding, that facts "
        "are used at FE and LT by the upper layers, and looks at nothing.",
        "The truth is made of grafts of places in several orders: methods that scan single "
        "grafts are near it where places do not interact.",
    ]
    if flat:
        notes.append(
            f"Without {', '.join(cell.pair for cell in flat)}: no place there is used by itself "
            "so much that an order of places could be wrong."
        )

    def overall(some: Sequence[Cell], runs: Runs) -> Table:
        return Table(
            key="all",
            title=f"All {len(some)} plants",
            columns=(*_columns(_one_each(runs), _prior(runs)), FORWARDS),
            lines=overall_lines(runs, some, "plants", partial(_measure, prior=_prior(runs))),
            ranked_by=RANKED,
            notes=(seeds_note(some), *notes),
        )

    tables = plant_tables(first_runs(without_scans(own)), cells, overall, _level, flat)
    return Board(key, title, ABOUT + about, _lead(tables[0]), tables)


def _lead(table: Table) -> str:
    """The best method, and the numbers of methods that are better than chance and the prior."""
    counts = {}
    for key in (ABOVE, ABOVE_PRIOR):
        figures = []
        for line in table.lines:
            if line.ranks and not line.baseline and key in line.figures:
                figures.append(line.figures[key])
        counts[key] = sum((figure.low or 0.0) > 0 for figure in figures), len(figures)
    (chance, n), (prior, against) = counts.values()
    if not n:
        return lead(table)
    than_prior = f" and {prior} of {against} beat the prior" if against else ""
    return f"{lead(table)} {chance} of {n} methods beat chance{than_prior} (95 % intervals)."


def _level(cells: Sequence[Cell], runs: Runs) -> Table:
    """A level, over its seeds."""
    entries = _one_each(runs)
    planted = _planted(next(iter(entries.values())))
    places = "sites" if planted.units == "site" else "(layer, component)"
    decoy = f", decoy at {planted.decoy}" if planted.decoy else ""
    first, note = cells[0], "One plant cannot put methods in order: ranks are over plants."
    seeds = ""
    if len(cells) > 1:
        seeds = f"; {len(cells)} training seeds"
        note = f"Means, intervals and ranks are over the {len(cells)} training seeds of this level."
    return Table(
        key=first.key,
        title=f"{first.title}: planted at {planted.plant}{decoy}; {planted.n_true} of "
        f"{planted.n_units} {places} whose weights changed{seeds}",
        columns=_columns(entries, _prior(runs)),
        lines=level_lines(cells, runs, partial(_measure, prior=_prior(runs))),
        scope=first.scope,
        ranked_by=RANKED,
        notes=(note,),
    )


def _one_each(runs: Runs) -> dict[Cell, Entry]:
    """An entry of each plant."""
    entries: dict[Cell, Entry] = {}
    for own in runs.values():
        entries |= own
    return entries


def _prior(runs: Runs) -> Judged:
    """Comparisons of the prior with the truth."""
    for own in runs.values():
        if next(iter(own.values())).localizer == "prior":
            return _judged(own)
    return {}


def _measure(own: Mapping[Cell, Entry], prior: Judged) -> Measured:
    """A method's figures over some plants, and what it is ranked by."""
    entries, judged = list(own.values()), _judged(own)
    blind = entries[0].localizer == "prior"
    figures = {}
    for column in COLUMNS:
        if (figure := _figure(judged, column.key, {} if blind else prior)) is not None:
            figures[column.key] = figure
    if any(entry.localizer == "oracle" for entry in entries):
        return Measured(entries, figures, PRIVILEGED)
    if (undefined := figures[RANKED]).value is None:
        return Measured(entries, figures, undefined.undefined or "")
    values = {plant: planted.graded_precision.value or 0.0 for plant, planted in judged.items()}
    return Measured(entries, figures, PlantScores(values))


Judged = Mapping[Plant, Planted]
"""Comparisons with the truth, by plant."""


def _judged(runs: Mapping[Cell, Entry]) -> Judged:
    return {cell.plant: _planted(entry) for cell, entry in runs.items()}


def _planted(entry: Entry) -> Planted:
    """The comparison with the truth; figures of other metrics than the board's are left out."""
    planted = entry.record.planted
    assert planted is not None
    if entry.record.metric == METRIC:
        return planted
    reason = f"the run's ratios are of {entry.record.metric}, and the board's are of {METRIC}"
    absent = Estimate.missing(reason)
    effect = Effect(sufficiency=absent, necessity=absent)
    return planted.model_copy(update={"effect": effect, "pathways": None})


def _figure(judged: Judged, key: str, prior: Judged) -> Estimate | None:
    """A figure of one plant, or the mean over several; None where it applies to no plant."""
    if key == TOLD:
        by_site = any(planted.units == "site" for planted in judged.values())
        return _told_right(judged) if by_site else None
    if key == ABOVE:
        return _above(judged, {plant: planted.chance for plant, planted in judged.items()})
    if key == ABOVE_PRIOR:
        values = {plant: planted.graded_precision.value for plant, planted in prior.items()}
        return _above(judged, values)
    figures = {}
    for plant, planted in judged.items():
        part = planted.effect if key in ("sufficiency", "necessity") else planted
        if isinstance(figure := getattr(part, key), Estimate):
            figures[plant] = figure
    return mean_over_plants(figures) if figures else None


def _above(judged: Judged, baseline: Mapping[Plant, float | None]) -> Estimate | None:
    """The mean difference from a baseline; None of a single plant, or where it is not known."""
    expected, gaps = [], {}
    for plant, planted in judged.items():
        value, gap = baseline.get(plant), planted.graded_precision
        if value is None:
            return None
        expected.append(value)
        if gap.value is not None:
            gap = on_plant(gap.value - value, gap.n).rounded()
        gaps[plant] = gap
    if len(gaps) < 2:
        return None
    return mean_over_plants(gaps, (-max(expected) - ROUNDING, 1 - min(expected) + ROUNDING))


def _told_right(judged: Judged) -> Estimate:
    """Share of prompts, the mean over the plants that have one pathway."""
    shares = {}
    for plant, planted in judged.items():
        answers = [pathway.told for pathway in (planted.pathways or {}).values()]
        if "not applicable" in answers:
            return Estimate.missing("not applicable: the method cannot express the pathways")
        if answers:
            shares[plant] = hit_rate(answers.count("told"), len(answers)).rounded()
    if not shares:
        return Estimate.missing("a method that makes no grafts of tokens")
    return mean_over_plants(shares)


def _columns(runs: Mapping[Cell, Entry], prior: Judged) -> tuple[Column, ...]:
    """The columns of a table that some entry has, with what chance gives."""
    judged = _judged(runs)
    chance = {}
    for plant, planted in judged.items():
        if planted.chance is not None:
            chance[plant] = on_plant(planted.chance)
    blind = "chance, and knowing which weights changed"
    marks = {ABOVE: (("chance", 0.0),), "auroc_decoy": ((blind, 0.5),)}
    marks[ABOVE_PRIOR] = (("prior", 0.0),)
    if chance:
        marks[RANKED] = ((blind, mean_over_plants(chance).value or 0.0),)
    shown = []
    for column in COLUMNS:
        if not judged or _figure(judged, column.key, prior) is not None:
            shown.append(replace(column, marks=marks.get(column.key, ())))
    return tuple(shown)


# ----------------------------------------------------------------------------------------- pathways


GRAFTS = ("FE", "LT", "FE+LT")

Recoveries = Mapping[tuple[str, str], float]
"""Recovery by prompt and pathway."""

ARBITER = "dynamic_graft"
"""The method whose grafts are the truth."""

SAME = 1e-3
"""Distance below which a method's grafts are those of the truth: cards have three decimals."""

FIXED = "fixed answer"
"""Name of the line of the best answer that is the same for all plants."""

DISTANCE = Column(
    "distance",
    "distance from the truth",
    "Mean absolute difference of the recoveries of FE, LT and FE+LT from those of the grafts, over "
    "pathways and prompts",
    "lower",
)

PATHWAYS_ABOUT = (
    "Facts were planted at some tokens, so that FE, LT and FE+LT carry known shares of them. A "
    "method says what each brings by itself; the "
    "distance is how far that is from what a graft of all components there brings, the mean "
    "absolute difference over pathways and prompts."
)

WHY_ARBITER = "the arbiter: the truth is made by this very graft"


def plant_pathways_board(entries: Sequence[Entry]) -> Board:
    """The board of planted pathways: distance of a method's FE, LT and FE+LT from the truth.

    Args:
        entries: All entries; its own are those of interventions on shipped position plants.
    """
    found = [e for e in entries if e.record.planted is not None and e.record.kind == "intervention"]
    cells = [cell for cell in core_cells(planted=True, prompts=("",)) if _truth(cell) is not None]
    tables = plant_tables(
        runs_on(cells, first_runs(found)), cells, _pathways_overall, _pathways_level
    )
    return Board(
        "planted-pathways", "Planted: pathways", PATHWAYS_ABOUT, _pathways_lead(tables[0]), tables
    )


def _pathways_overall(cells: Sequence[Cell], runs: Runs) -> Table:
    """The table over all position plants, or over the shipped ones."""
    fixed = {}
    if runs:
        truths = {cell.plant: _truth(cell) or {} for cell in cells}
        answer = fixed_answer(truths)
        gaps = {plant: distance(answer, truth) for plant, truth in truths.items()}
        fixed[FIXED] = replace(_placed([], gaps), coverage=(len(cells),) * 2)
    return Table(
        key="all",
        title=f"All {len(cells)} position plants",
        columns=(DISTANCE, FORWARDS),
        lines=overall_lines(runs, cells, "plants", _measure_distance, fixed),
        ranked_by=DISTANCE.key,
        notes=(
            seeds_note(cells),
            f"{FIXED}: the median of the true recoveries, said of every plant alike. No answer "
            "that does not "
            "look at the plant, such as the donor's output whatever is asked, has a smaller mean "
            "distance.",
        ),
    )


def _pathways_lead(table: Table) -> str:
    """The best method, and whether any is better than the fixed answer, which is none."""
    methods = replace(table, lines=tuple(line for line in table.lines if line.method != FIXED))
    if methods.ranked and not any(line.may_be_best for line in methods.lines):
        return f"{FIXED.capitalize()} is significantly better than every method."
    none = f" None is significantly better than a {FIXED}, which looks at no plant."
    best = any(line.may_be_best for line in table.lines if line.method == FIXED)
    return lead(methods) + none * best


def distance(claimed: Recoveries, truth: Recoveries) -> float:
    """Mean absolute difference over pathways and prompts."""
    return float(np.mean([abs(claimed[key] - value) for key, value in truth.items()]))


def fixed_answer(truths: Mapping[Plant, Recoveries]) -> Recoveries:
    """The medians over plants, levels weighing the same: the answer of the smallest mean distance.

    Args:
        truths: By plant; all of the same pathways and prompts.
    """
    seeds = Counter(level for level, _ in truths)
    whole = lcm(*seeds.values())
    weights = [whole // seeds[level] for level, _ in truths]
    answer = {}
    for key in next(iter(truths.values())):
        values = [truth[key] for truth in truths.values()]
        answer[key] = float(np.median(np.repeat(values, weights)))
    return answer


def _truth(cell: Cell) -> Recoveries | None:
    """The recoveries of the grafts on a position plant; None of any other pair."""
    truth = catalog.graded_truth(cell.pair)
    if truth is None or not truth.by_region:
        return None
    return {key: truth.pathways[key[0]][key[1]].value or 0.0 for key in product(PROMPTS, GRAFTS)}


def _claims(entry: Entry) -> dict[tuple[str, str], Estimate]:
    """A method's recovery of each pathway that was run, by prompt and pathway."""
    rows = {(row.prompt, row.graft): row.sufficiency for row in entry.record.rows}
    return {key: rows[key] for key in product(PROMPTS, GRAFTS) if key in rows}


def _missing(entry: Entry, claims: Mapping[tuple[str, str], Estimate]) -> str:
    """Why a method has no distance; empty where it has one."""
    if entry.record.metric != METRIC:
        return f"the run's ratios are of {entry.record.metric}, and the board's are of {METRIC}"
    for key in product(PROMPTS, GRAFTS):
        if key not in claims:
            return f"{key[1]} was not run on {key[0]}"
        if claims[key].value is None:
            return claims[key].undefined or ""
    return ""


def _measure_distance(own: Mapping[Cell, Entry]) -> Measured:
    """A method over some plants."""
    entries, gaps = list(own.values()), {}
    for cell, entry in own.items():
        claims = _claims(entry)
        if reason := _missing(entry, claims):
            return Measured(entries, {}, f"{reason} (on {cell.pair})")
        values = {key: claim.value or 0.0 for key, claim in claims.items()}
        gaps[cell.plant] = distance(values, _truth(cell) or {})
    return _placed(entries, gaps)


def _placed(entries: Sequence[Entry], gaps: Mapping[Plant, float]) -> Measured:
    """A method by its distance on each plant."""
    alone = {plant: on_plant(value).rounded() for plant, value in gaps.items()}
    figures = {DISTANCE.key: mean_over_plants(alone)}
    if any(entry.localizer == ARBITER for entry in entries) or max(gaps.values()) < SAME:
        return Measured(entries, figures, WHY_ARBITER)
    if len(gaps) == 1:
        return Measured(entries, figures, "ranks are over plants")
    scores = PlantScores({plant: -value for plant, value in gaps.items()}, (-1.0, 0.0))
    return Measured(entries, figures, scores)


def _pathways_level(cells: Sequence[Cell], runs: Runs) -> Table:
    """A level: the recoveries of each method over its seeds, and the truth in the titles."""
    truths = [_truth(cell) or {} for cell in cells]
    columns = [DISTANCE]
    for prompt, graft in product(PROMPTS, GRAFTS):
        mean = float(np.mean([truth[prompt, graft] for truth in truths]))
        about = f"Recovery of {graft} on {prompt}; of the grafts {mean:.2f}"
        columns.append(Column(f"{prompt} {graft}", f"{graft}, {prompt}", about))
    first, several = cells[0], len(cells) > 1
    seeds = f"; {len(cells)} training seeds" if several else ""
    return Table(
        first.key,
        f"{first.title}: what each method says{seeds}",
        tuple(columns),
        level_lines(cells, runs, _with_claims),
        first.scope,
        ranked_by=DISTANCE.key if several else None,
    )


def _with_claims(own: Mapping[Cell, Entry]) -> Measured:
    """A method over some plants, with the mean of what it claims for each pathway."""
    measured = _measure_distance(own)
    figures = dict(measured.figures)
    claims: dict[str, dict[Plant, Estimate]] = {}
    if not figures:
        figures[DISTANCE.key] = Estimate.missing(str(measured.standing))
    for cell, entry in own.items():
        for key, claim in _claims(entry).items():
            claims.setdefault(" ".join(key), {})[cell.plant] = claim
    figures |= {key: mean_over_plants(said) for key, said in claims.items()}
    return replace(measured, figures=figures)


PLACE = 1
BOARDS = (components_board, positions_board, plant_pathways_board)
