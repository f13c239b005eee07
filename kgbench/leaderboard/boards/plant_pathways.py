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
    level_tables,
    overall_lines,
    plants_tables,
    seeds_note,
)
from kgbench.leaderboard.contrasts import Plant, PlantScores, mean_over_plants, on_plant
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
    overall = plants_tables(
        list(truths), lambda cells: _overall(runs, {cell: truths[cell] for cell in cells})
    )
    singles = level_tables(
        runs,
        list(truths),
        lambda cells, methods: _table({cell: truths[cell] for cell in cells}, methods),
    )
    title = "Planted: pathways"
    return Board("planted-pathways", title, ABOUT, _lead(overall[0]), (*overall, *singles))


def _overall(runs: Runs, truths: Mapping[Cell, Recoveries]) -> Table:
    """The table over all position plants, or over the shipped ones."""
    fixed = {}
    if runs:
        answer = fixed_answer({cell.plant: truth for cell, truth in truths.items()})
        gaps = {cell.plant: distance(answer, truth) for cell, truth in truths.items()}
        fixed[FIXED] = replace(_placed([], gaps), coverage=(len(truths),) * 2)
    return Table(
        key="all",
        title=f"All {len(truths)} position plants",
        columns=(DISTANCE, FORWARDS),
        lines=overall_lines(runs, list(truths), "plants", lambda own: _measure(own, truths), fixed),
        ranked_by=DISTANCE.key,
        notes=(
            seeds_note(list(truths)),
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


def _truths() -> dict[Cell, Recoveries]:
    """The recoveries of the grafts on each position plant and its replicas."""
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
    """A method over some plants."""
    gaps = {}
    for cell, entry in own.items():
        claims = _claims(entry)
        if isinstance(claims, str):
            return Measured(list(own.values()), {}, unranked=f"{claims} (on {cell.pair})")
        gaps[cell.plant] = distance(claims, truths[cell])
    return _placed(list(own.values()), gaps)


def _placed(entries: Sequence[Entry], gaps: Mapping[Plant, float]) -> Measured:
    """A method by its distance on each plant."""
    alone = {plant: on_plant(value).rounded() for plant, value in gaps.items()}
    figures = {DISTANCE.key: mean_over_plants(alone)}
    if any(entry.localizer == ARBITER for entry in entries) or max(gaps.values()) < SAME:
        return Measured(entries, figures, unranked=WHY_ARBITER)
    if len(gaps) == 1:
        return Measured(entries, figures, unranked="ranks are over plants")
    scores = PlantScores({plant: -value for plant, value in gaps.items()}, (-1.0, 0.0))
    return Measured(entries, figures, scores)


def _table(truths: Mapping[Cell, Recoveries], methods: Mapping[str, Mapping[Cell, Entry]]) -> Table:
    """A level: the recoveries of each method over its seeds, and the truth in the titles."""
    first, *others = truths
    columns = [DISTANCE]
    for key in truths[first]:
        prompt, graft = key
        mean = float(np.mean([truth[key] for truth in truths.values()]))
        about = f"Recovery of {graft} on {prompt}; of the grafts {mean:.2f}"
        columns.append(Column(f"{prompt} {graft}", f"{graft}, {prompt}", about))

    def measure(own: Mapping[Cell, Entry]) -> Measured:
        measured, claimed = _measure(own, truths), {}
        if not measured.figures:
            claimed[DISTANCE.key] = Estimate.missing(measured.unranked)
        for prompt, graft in truths[first]:
            said = {}
            for cell, entry in own.items():
                rows = {(row.prompt, row.graft): row.sufficiency for row in entry.record.rows}
                if (prompt, graft) in rows:
                    said[cell.plant] = rows[prompt, graft]
            if said:
                claimed[f"{prompt} {graft}"] = mean_over_plants(said)
        return replace(measured, figures={**measured.figures, **claimed})

    seeds = f"; {len(truths)} training seeds" if others else ""
    return Table(
        first.key,
        f"{first.title}: what each method says{seeds}",
        tuple(columns),
        level_lines(list(truths), methods, measure),
        first.scope,
        ranked_by=DISTANCE.key if others else None,
    )


PLACE = 2
BOARDS = (plant_pathways_board,)
