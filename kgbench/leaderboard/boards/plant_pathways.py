"""The board of planted pathways: distance of a method's FE, LT and FE+LT from the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from kgbench.estimate import Estimate
from kgbench.leaderboard.boards.cost import FORWARDS, plain_forwards
from kgbench.leaderboard.cells import PROMPTS, Cell, core_cells, first_runs
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import METRIC
from kgbench.leaderboard.lines import Measured, lead, ordered
from kgbench.leaderboard.maps import PlantScores, mean_over_plants
from kgbench.leaderboard.model import Board, Column, Table
from kgbench.models import catalog

__all__ = ["FIXED", "Recoveries", "distance", "fixed_answer", "plant_pathways_board"]

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
    own = {key: entry for key, entry in found.items() if key[1] in truths}
    overall = _overall(own, truths)
    singles = [
        _table(cell, truth, {m: e for (m, c), e in own.items() if c == cell})
        for cell, truth in truths.items()
    ]
    return Board(
        "planted-pathways",
        "Planted: pathways",
        ABOUT,
        _lead(overall),
        (overall, *(table for table in singles if table.lines)),
    )


def _lead(table: Table) -> str:
    """Who leads among methods; the fixed answer is none."""
    methods = replace(table, lines=tuple(line for line in table.lines if line.method != FIXED))
    ranks = [line.rank for line in methods.lines if line.rank is not None]
    return (
        f"{FIXED.capitalize()} is told to be better than every method."
        if ranks and min(ranks) > 1
        else lead(methods)
    )


def distance(claimed: Recoveries, truth: Recoveries) -> float:
    """Mean absolute difference over pathways and prompts."""
    return float(np.mean([abs(claimed[key] - value) for key, value in truth.items()]))


def fixed_answer(truths: Sequence[Recoveries]) -> Recoveries:
    """The medians over plants: of all answers that are the same for every plant, none has a smaller mean distance.

    Args:
        truths: By plant; all of the same pathways and prompts.
    """
    return {key: float(np.median([truth[key] for truth in truths])) for key in truths[0]}


def _truths() -> dict[Cell, Recoveries]:
    """The recoveries of the grafts on each shipped position plant."""
    found: dict[Cell, Recoveries] = {}
    for cell in core_cells(planted=True, prompts=("",)):
        truth = catalog.entry(cell.pair).truth
        if truth is not None and truth.by_region:
            found[cell] = {
                (p, g): truth.pathways[p][g].value or 0.0 for p, g in product(PROMPTS, GRAFTS)
            }
    return found


def _claims(entry: Entry) -> Recoveries | str:
    """What a method says of each pathway, or why it says nothing of one."""
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


def _overall(found: Mapping[tuple[str, Cell], Entry], truths: Mapping[Cell, Recoveries]) -> Table:
    methods: dict[str, dict[Cell, Entry]] = {}
    for (method, cell), entry in found.items():
        methods.setdefault(method, {})[cell] = entry
    measured = {name: _mean(own, truths) for name, own in methods.items()}
    if methods:
        fixed = fixed_answer(list(truths.values()))
        measured[FIXED] = _placed(
            [],
            {cell.pair: distance(fixed, truth) for cell, truth in truths.items()},
            (len(truths),) * 2,
        )
    return Table(
        key="all",
        title=f"All {len(truths)} position plants",
        columns=(DISTANCE, FORWARDS),
        lines=ordered(measured),
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


def _mean(own: Mapping[Cell, Entry], truths: Mapping[Cell, Recoveries]) -> Measured:
    entries, coverage = list(own.values()), (len(own), len(truths))
    if len(own) < len(truths):
        return Measured(
            entries,
            {},
            coverage,
            unranked=f"a mean needs all {len(truths)} plants, and it has been run on {len(own)}",
        )
    claims = {cell: _claims(entry) for cell, entry in own.items()}
    if missing := next(
        (f"{claim} (on {cell.pair})" for cell, claim in claims.items() if isinstance(claim, str)),
        None,
    ):
        return Measured(entries, {}, coverage, unranked=missing)
    apart = {
        cell.pair: distance(claim, truths[cell])
        for cell, claim in claims.items()
        if not isinstance(claim, str)
    }
    return _placed(entries, apart, coverage)


def _placed(
    entries: Sequence[Entry], apart: Mapping[str, float], coverage: tuple[int, int]
) -> Measured:
    """A method by its distance on each plant."""
    figures = {
        DISTANCE.key: mean_over_plants({plant: _alone(value) for plant, value in apart.items()})
    }
    if entries:
        figures[FORWARDS.key] = plain_forwards(entries)
    named = any(entry.record.identity.localizer.name == ARBITER for entry in entries)
    if named or max(apart.values()) < SAME:
        return Measured(entries, figures, coverage, unranked=WHY_ARBITER)
    return Measured(
        entries,
        figures,
        coverage,
        PlantScores({plant: -value for plant, value in apart.items()}, (-1.0, 0.0)),
    )


def _alone(value: float) -> Estimate:
    return Estimate.alone(value, 1, "one plant").rounded()


def _table(cell: Cell, truth: Recoveries, own: Mapping[str, Entry]) -> Table:
    """One plant: what each method says, and the truth in the titles."""
    said = tuple(
        Column(f"{p} {g}", f"{g}, {p}", f"Recovery of {g} on {p}; of the grafts {truth[p, g]:.2f}")
        for p, g in truth
    )
    measured = {}
    for method, entry in own.items():
        claims = _claims(entry)
        figures = {
            f"{row.prompt} {row.graft}": row.sufficiency
            for row in entry.record.rows
            if (row.prompt, row.graft) in truth
        }
        figures[DISTANCE.key] = (
            Estimate.missing(claims) if isinstance(claims, str) else _alone(distance(claims, truth))
        )
        measured[method] = Measured([entry], figures, (1, 1), unranked="ranks are over plants")
    return Table(
        cell.key,
        f"{cell.title}: what each method says",
        (DISTANCE, *said),
        ordered(measured),
        {"pair": cell.pair},
    )
