"""The board of planted pathways: distance of a method's FE, LT and FE+LT from the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Measured, Table, lead, ordered
from kgbench.leaderboard.cells import (
    FORWARDS,
    PROMPTS,
    Cell,
    by_cell,
    core_cells,
    first_runs,
    overall_lines,
)
from kgbench.leaderboard.contrasts import PlantScores, mean_over_plants, on_plant
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import METRIC
from kgbench.models import catalog

__all__ = [
    "BOARDS",
    "FIXED",
    "PLACE",
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
    truths = _truths()
    found = first_runs(
        e for e in entries if e.record.planted is not None and e.record.kind == "intervention"
    )
    runs = {key: entry for key, entry in found.items() if key[1] in truths}
    fixed = {}
    if runs:
        answer = fixed_answer(list(truths.values()))
        gaps = {cell.pair: distance(answer, truth) for cell, truth in truths.items()}
        fixed[FIXED] = replace(_placed([], gaps), coverage=(len(truths),) * 2)
    overall = Table(
        key="all",
        title=f"All {len(truths)} position plants",
        columns=(DISTANCE, FORWARDS),
        lines=overall_lines(runs, list(truths), "plants", lambda own: _measure(own, truths), fixed),
        ranked_by=DISTANCE.key,
        notes=(
            f"Means, intervals and ranks are over these {len(truths)} plants, each weighing the "
            "same.",
            f"{FIXED}: the median of the true recoveries, said of every plant alike. No answer "
            "that does not "
            "look at the plant, such as the donor's output whatever is asked, has a smaller mean "
            "distance.",
        ),
    )
    by_plant = by_cell(runs)
    singles = [_table(cell, truths[cell], by_plant[cell]) for cell in truths if cell in by_plant]
    title = "Planted: pathways"
    return Board("planted-pathways", title, ABOUT, _lead(overall), (overall, *singles))


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


def fixed_answer(truths: Sequence[Recoveries]) -> Recoveries:
    """The medians over plants: the fixed answer with the smallest mean distance.

    Args:
        truths: By plant; all of the same pathways and prompts.
    """
    answer = {}
    for key in truths[0]:
        answer[key] = float(np.median([truth[key] for truth in truths]))
    return answer


def _truths() -> dict[Cell, Recoveries]:
    """The recoveries of the grafts on each shipped position plant."""
    truths: dict[Cell, Recoveries] = {}
    for cell in core_cells(planted=True, prompts=("",)):
        truth = catalog.graded_truth(cell.pair)
        if truth is not None and truth.by_region:
            by_prompt = truth.pathways
            truths[cell] = {
                (p, g): by_prompt[p][g].value or 0.0 for p, g in product(PROMPTS, GRAFTS)
            }
    return truths


def _claims(entry: Entry) -> Recoveries | str:
    """A method's recovery of each pathway, or the reason why one is missing."""
    if entry.record.metric != METRIC:
        return f"the run's ratios are of {entry.record.metric}, and the board's are of {METRIC}"
    rows = {(row.prompt, row.graft): row.sufficiency for row in entry.record.rows}
    claims: dict[tuple[str, str], float] = {}
    for key in product(PROMPTS, GRAFTS):
        if key not in rows:
            return f"{key[1]} was not run on {key[0]}"
        if (value := rows[key].value) is None:
            return rows[key].undefined or ""
        claims[key] = value
    return claims


def _measure(own: Mapping[Cell, Entry], truths: Mapping[Cell, Recoveries]) -> Measured:
    """A method over all plants."""
    gaps = {}
    for cell, entry in own.items():
        claims = _claims(entry)
        if isinstance(claims, str):
            return Measured(list(own.values()), {}, unranked=f"{claims} (on {cell.pair})")
        gaps[cell.pair] = distance(claims, truths[cell])
    return _placed(list(own.values()), gaps)


def _placed(entries: Sequence[Entry], gaps: Mapping[str, float]) -> Measured:
    """A method by its distance on each plant."""
    alone = {plant: on_plant(value).rounded() for plant, value in gaps.items()}
    figures = {DISTANCE.key: mean_over_plants(alone)}
    if any(entry.localizer == ARBITER for entry in entries) or max(gaps.values()) < SAME:
        return Measured(entries, figures, unranked=WHY_ARBITER)
    scores = PlantScores({plant: -value for plant, value in gaps.items()}, (-1.0, 0.0))
    return Measured(entries, figures, scores)


def _table(cell: Cell, truth: Recoveries, own: Mapping[str, Entry]) -> Table:
    """One plant: the recoveries of each method, and the truth in the titles."""
    columns = [DISTANCE]
    for prompt, graft in truth:
        about = f"Recovery of {graft} on {prompt}; of the grafts {truth[prompt, graft]:.2f}"
        columns.append(Column(f"{prompt} {graft}", f"{graft}, {prompt}", about))
    measured = {}
    for method, entry in own.items():
        claims = _claims(entry)
        figures = {}
        for row in entry.record.rows:
            if (row.prompt, row.graft) in truth:
                figures[f"{row.prompt} {row.graft}"] = row.sufficiency
        if isinstance(claims, str):
            figures[DISTANCE.key] = Estimate.missing(claims)
        else:
            figures[DISTANCE.key] = on_plant(distance(claims, truth)).rounded()
        measured[method] = Measured([entry], figures, unranked="ranks are over plants")
    title = f"{cell.title}: what each method says"
    return Table(cell.key, title, tuple(columns), ordered(measured), cell.scope)


PLACE = 2
BOARDS = (plant_pathways_board,)
