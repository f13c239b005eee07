"""The boards of plants: how well each method finds the places that planted facts use.

Plants at all tokens ask for a (layer, component), position plants for a (layer, component, region):
two questions, two boards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Measured, Table, lead
from kgbench.leaderboard.cells import (
    FORWARDS,
    Cell,
    Runs,
    core_cells,
    first_runs,
    level_lines,
    overall_lines,
    plant_tables,
    seeds_note,
    without_scans,
)
from kgbench.leaderboard.contrasts import Plant, PlantScores, mean_over_plants, on_plant
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import METRIC
from kgbench.models import catalog
from kgbench.records import Effect, Planted
from kgbench.stats import hit_rate

__all__ = ["components_board", "plant_cells", "positions_board"]

RANKED, ABOVE, TOLD = "graded_precision", "above_chance", "told"

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
    "since which these are anybody sees. "
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
        "Who knows no more than which weights changed has the graded average precision of "
        "chance: the line in the picture.",
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
            columns=(*_columns(_one_each(runs)), FORWARDS),
            lines=overall_lines(runs, some, "plants", _measure),
            ranked_by=RANKED,
            notes=(seeds_note(some), *notes),
        )

    tables = plant_tables(first_runs(without_scans(own)), cells, overall, _level, flat)
    return Board(key, title, ABOUT + about, _lead(tables[0]), tables)


def _lead(table: Table) -> str:
    """The best method, and the number of methods that are better than chance."""
    above = [
        line.figures[ABOVE]
        for line in table.lines
        if line.rank is not None and not line.baseline and ABOVE in line.figures
    ]
    if not above:
        return lead(table)
    better = sum((figure.low or 0.0) > 0 for figure in above)
    return (
        f"{lead(table)} {better} of {len(above)} methods are told to be better than chance, by "
        "intervals of 95 % each."
    )


def _level(cells: Sequence[Cell], runs: Runs) -> Table:
    """A level, over its seeds."""
    entries = _one_each(runs)
    planted = _planted(next(iter(entries.values())))
    places = "sites" if planted.units == "site" else "(layer, component)"
    decoy = f", decoy at {planted.decoy}" if planted.decoy else ""
    first, note = cells[0], "On one plant no method is told from another: ranks are over plants."
    seeds = ""
    if len(cells) > 1:
        seeds = f"; {len(cells)} training seeds"
        note = f"Means, intervals and ranks are over the {len(cells)} training seeds of this level."
    return Table(
        key=first.key,
        title=f"{first.title}: planted at {planted.plant}{decoy}; {planted.n_true} of "
        f"{planted.n_units} {places} whose weights changed{seeds}",
        columns=_columns(entries),
        lines=level_lines(cells, runs, _measure),
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


def _measure(own: Mapping[Cell, Entry]) -> Measured:
    """A method's figures over some plants, and what it is ranked by."""
    entries, judged = list(own.values()), _judged(own)
    figures = {}
    for column in COLUMNS:
        if (figure := _figure(judged, column.key)) is not None:
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


def _figure(judged: Judged, key: str) -> Estimate | None:
    """A figure of one plant, or the mean over several; None where it applies to no plant."""
    if key == TOLD:
        by_site = any(planted.units == "site" for planted in judged.values())
        return _told_right(judged) if by_site else None
    if key == ABOVE:
        return _above(judged)
    figures = {}
    for plant, planted in judged.items():
        part = planted.effect if key in ("sufficiency", "necessity") else planted
        if isinstance(figure := getattr(part, key), Estimate):
            figures[plant] = figure
    return mean_over_plants(figures) if figures else None


def _above(judged: Judged) -> Estimate | None:
    """The mean difference from chance; None of a single plant, or without a graded truth."""
    chance: list[float] = []
    gaps = {}
    for plant, planted in judged.items():
        if planted.chance is None:
            return None
        chance.append(planted.chance)
        gap = planted.graded_precision
        if gap.value is not None:
            gap = on_plant(gap.value - planted.chance, gap.n).rounded()
        gaps[plant] = gap
    if len(judged) == 1:
        return None
    return mean_over_plants(gaps, (-max(chance) - ROUNDING, 1 - min(chance) + ROUNDING))


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


def _columns(runs: Mapping[Cell, Entry]) -> tuple[Column, ...]:
    """The columns of a table that some entry has, with what chance gives."""
    judged = _judged(runs)
    chance = {}
    for plant, planted in judged.items():
        if planted.chance is not None:
            chance[plant] = on_plant(planted.chance)
    blind = "chance, and knowing which weights changed"
    marks = {ABOVE: (("chance", 0.0),), "auroc_decoy": ((blind, 0.5),)}
    if chance:
        marks[RANKED] = ((blind, mean_over_plants(chance).value or 0.0),)
    shown = [column for column in COLUMNS if not judged or _figure(judged, column.key) is not None]
    return tuple(replace(column, marks=marks.get(column.key, ())) for column in shown)
