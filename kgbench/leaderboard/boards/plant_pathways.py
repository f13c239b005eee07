"""The board of planted pathways: distance of a method's FE, LT and FE+LT from the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import lcm

import numpy as np

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Measured, Table, lead
from kgbench.leaderboard.cells import (
    FORWARDS,
    PROMPTS,
    Cell,
    Runs,
    core_cells,
    first_runs,
    level_lines,
    overall_lines,
    plant_tables,
    runs_on,
    seeds_note,
)
from kgbench.leaderboard.contrasts import Plant, PlantScores, mean_over_plants, on_plant
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import METRIC
from kgbench.models import catalog

__all__ = [
    "FIXED",
    "Recoveries",
    "distance",
    "fixed_answer",
    "plant_pathways_board",
]

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

ABOUT = (
    "Facts were planted at some tokens, so that FE, LT and FE+LT carry known shares of them. A "
    "method says what each brings by itself; the "
    "distance is how far that is from what a graft of all components there brings, the mean "
    "absolute difference over pathways and prompts."
)

WHY_ARBITER = "the arbiter: the truth is made by this very graft"


def plant_pathways_board(entries: Sequence[Entry]) -> Board:
    """The board.

    Args:
        entries: All entries; its own are those of interventions on shipped position plants.
    """
    found = [e for e in entries if e.record.planted is not None and e.record.kind == "intervention"]
    cells = [cell for cell in core_cells(planted=True, prompts=("",)) if _truth(cell) is not None]
    tables = plant_tables(runs_on(cells, first_runs(found)), cells, _overall, _level)
    return Board("planted-pathways", "Planted: pathways", ABOUT, _lead(tables[0]), tables)


def _overall(cells: Sequence[Cell], runs: Runs) -> Table:
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
        lines=overall_lines(runs, cells, "plants", _measure, fixed),
        ranked_by=DISTANCE.key,
        notes=(
            seeds_note(cells),
            f"{FIXED}: the median of the true recoveries, said of every plant alike. No answer "
            "that does not "
            "look at the plant, such as the donor's output whatever is asked, has a smaller mean "
            "distance.",
        ),
    )


def _lead(table: Table) -> str:
    """The best method; the fixed answer is none."""
    methods = replace(table, lines=tuple(line for line in table.lines if line.method != FIXED))
    ranks = [line.rank for line in methods.lines if line.rank is not None]
    if ranks and min(ranks) > 1:
        return f"{FIXED.capitalize()} is told to be better than every method."
    return lead(methods)


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


def _measure(own: Mapping[Cell, Entry]) -> Measured:
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


def _level(cells: Sequence[Cell], runs: Runs) -> Table:
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
    """A method over some plants, with the mean of what it says of each pathway."""
    measured = _measure(own)
    figures = dict(measured.figures)
    claims: dict[str, dict[Plant, Estimate]] = {}
    if not figures:
        figures[DISTANCE.key] = Estimate.missing(str(measured.standing))
    for cell, entry in own.items():
        for key, claim in _claims(entry).items():
            claims.setdefault(" ".join(key), {})[cell.plant] = claim
    figures |= {key: mean_over_plants(said) for key, said in claims.items()}
    return replace(measured, figures=figures)
