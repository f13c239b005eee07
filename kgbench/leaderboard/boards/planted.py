"""The boards of plants: how well each method finds the places that facts use which were put there on purpose.

Plants at all tokens ask for a (layer, component), position plants for a (layer, component, region):
two questions, two boards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kgbench.estimate import Estimate
from kgbench.leaderboard.boards.cost import FORWARDS, plain_forwards
from kgbench.leaderboard.cells import Cell, core_cells, first_runs, without_scans
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import METRIC
from kgbench.leaderboard.lines import PRIVILEGED, Measured, lead, ordered
from kgbench.leaderboard.maps import PlantScores, mean_over_plants
from kgbench.leaderboard.model import Board, Column, Table
from kgbench.models import catalog
from kgbench.records import Effect, Planted
from kgbench.stats import hit_rate

__all__ = ["Kind", "components_board", "plant_cells", "positions_board"]

RANKED, ABOVE, TOLD = "graded_precision", "above_chance", "told"

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
        "Prompts on which the method's intervals tell the planted pathway",
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


@dataclass(frozen=True)
class Kind:
    """What is asked of a ranking."""

    key: str
    title: str
    by_region: bool
    """Whether places have a region."""
    about: str


COMPONENTS = Kind(
    "planted",
    "Planted: layer and component",
    False,
    "Here facts were planted at all tokens, and a place is a (layer, component).",
)
POSITIONS = Kind(
    "planted-positions",
    "Planted: positions",
    True,
    "Here facts were planted at some tokens, and a place is a (layer, component, region).",
)


def components_board(entries: Sequence[Entry]) -> Board:
    """The board of plants at all tokens; its entries are those that were judged by one."""
    return _board(entries, COMPONENTS)


def positions_board(entries: Sequence[Entry]) -> Board:
    """The board of position plants; its entries are those that were judged by one."""
    return _board(entries, POSITIONS)


def plant_cells(by_region: bool) -> tuple[list[Cell], list[Cell]]:
    """Shipped plants whose truth puts places in an order, and those in which it does not.

    Args:
        by_region: Position plants, or those at all tokens.
    """
    ranked: list[Cell] = []
    flat: list[Cell] = []
    for cell in core_cells(planted=True, prompts=("",)):
        truth = catalog.entry(cell.pair).truth
        if truth is not None and truth.by_region == by_region:
            (ranked if truth.chance is not None else flat).append(cell)
    return ranked, flat


def _board(entries: Sequence[Entry], kind: Kind) -> Board:
    own = [
        entry
        for entry in entries
        if entry.record.planted is not None
        and (entry.record.planted.units == "site") == kind.by_region
    ]
    found = first_runs(without_scans(own))
    cells, flat = plant_cells(kind.by_region)
    overall = _overall(found, cells, flat)
    by_cell: dict[Cell, dict[str, Entry]] = {}
    for (method, cell), entry in found.items():
        by_cell.setdefault(cell, {})[method] = entry
    singles = [
        _table(cell, by_cell[cell]) for cell in sorted(by_cell, key=lambda c: (not c.core, c))
    ]
    return Board(kind.key, kind.title, ABOUT + kind.about, _lead(overall), (overall, *singles))


def _lead(table: Table) -> str:
    """Who leads by rank, and how many methods are told from chance."""
    above = [
        line.figures[ABOVE]
        for line in table.lines
        if line.rank is not None and not line.baseline and ABOVE in line.figures
    ]
    told = sum((figure.low or 0.0) > 0 for figure in above)
    count = (
        f" {told} of {len(above)} methods are told to be better than chance, by intervals of 95 % "
        "each."
        if above
        else ""
    )
    return lead(table) + count


def _overall(
    found: Mapping[tuple[str, Cell], Entry], cells: Sequence[Cell], flat: Sequence[Cell]
) -> Table:
    methods: dict[str, dict[Cell, Entry]] = {}
    for (method, cell), entry in found.items():
        if cell in cells:
            methods.setdefault(method, {})[cell] = entry
    measured = {name: _mean(own, cells) for name, own in methods.items()}
    left = ", ".join(cell.pair for cell in flat)
    out = (
        (
            f"Without {left}: no place there is used by itself so much that an order of places "
            "could be wrong.",
        )
        if flat
        else ()
    )
    return Table(
        key="all",
        title=f"All {len(cells)} plants",
        columns=(
            *_columns([entry for (_, cell), entry in found.items() if cell in cells]),
            FORWARDS,
        ),
        lines=ordered(measured),
        ranked_by=RANKED,
        notes=(
            f"Means, intervals and ranks are over these {len(cells)} plants, each weighing the "
            "same, and say nothing of other models.",
            "Who knows no more than which weights changed has the graded average precision of "
            "chance: the line in the picture.",
            "The truth is made of grafts of places in several orders: methods that scan single "
            "grafts are near it "
            "where places do not interact.",
            *out,
        ),
    )


def _mean(own: Mapping[Cell, Entry], cells: Sequence[Cell]) -> Measured:
    entries, coverage = list(own.values()), (len(own), len(cells))
    if len(own) < len(cells):
        return Measured(
            entries,
            {},
            coverage,
            unranked=f"a mean needs all {len(cells)} plants, and it has been run on {len(own)}",
        )
    judged = {cell.pair: _planted(own[cell]) for cell in cells}
    return _measured(entries, judged, coverage, {FORWARDS.key: plain_forwards(entries)})


def _table(cell: Cell, own: Mapping[str, Entry]) -> Table:
    measured = {
        method: _measured([entry], {entry.pair: _planted(entry)}, (1, 1), {})
        for method, entry in own.items()
    }
    planted = _planted(next(iter(own.values())))
    places = "sites" if planted.units == "site" else "(layer, component)"
    decoy = f", decoy at {planted.decoy}" if planted.decoy else ""
    return Table(
        key=cell.key,
        title=f"{cell.title}: planted at {planted.plant}{decoy}; {planted.n_true} of "
        f"{planted.n_units} {places} whose weights changed",
        columns=_columns(own.values()),
        lines=ordered(measured),
        scope={"pair": cell.pair},
        ranked_by=RANKED,
        notes=("On one plant no method is told from another: ranks are over plants.",),
    )


def _measured(
    entries: Sequence[Entry],
    judged: Mapping[str, Planted],
    coverage: tuple[int, int],
    more: Mapping[str, Estimate],
) -> Measured:
    """A method's figures over some plants, and what it is ranked by."""
    figures = {
        column.key: figure
        for column in COLUMNS
        if (figure := _figure(judged, column.key)) is not None
    }
    ranked = figures[RANKED]
    privileged = any(entry.record.identity.localizer.name == "oracle" for entry in entries)
    if privileged or ranked.value is None:
        return Measured(
            entries,
            {**figures, **more},
            coverage,
            unranked=PRIVILEGED if privileged else ranked.undefined or "",
        )
    values = {plant: own.graded_precision.value or 0.0 for plant, own in judged.items()}
    return Measured(entries, {**figures, **more}, coverage, PlantScores(values))


def _planted(entry: Entry) -> Planted:
    """The comparison with the truth; figures of other metrics than the board's are left out."""
    found = entry.record.planted
    assert found is not None
    if entry.record.metric == METRIC:
        return found
    reason = f"the run's ratios are of {entry.record.metric}, and the board's are of {METRIC}"
    absent = Estimate.missing(reason)
    effect = Effect(sufficiency=absent, necessity=absent)
    return found.model_copy(update={"effect": effect, "pathways": None})


def _figure(judged: Mapping[str, Planted], key: str) -> Estimate | None:
    """A figure of one plant, or the mean over several; None where it applies to no plant."""
    if key == TOLD:
        return (
            _told_right(judged.values())
            if any(own.units == "site" for own in judged.values())
            else None
        )
    if key == ABOVE:
        return _above(judged)
    own = {
        plant: getattr(p.effect if key in ("sufficiency", "necessity") else p, key)
        for plant, p in judged.items()
    }
    known = {plant: figure for plant, figure in own.items() if isinstance(figure, Estimate)}
    if not known:
        return None
    return next(iter(known.values())) if len(judged) == 1 else mean_over_plants(known)


def _above(judged: Mapping[str, Planted]) -> Estimate | None:
    """The mean difference from chance; None of a single plant, or without a graded truth."""
    chance = {plant: own.chance for plant, own in judged.items() if own.chance is not None}
    if len(judged) == 1 or len(chance) < len(judged):
        return None
    apart = {
        plant: own.graded_precision
        if (value := own.graded_precision.value) is None
        else Estimate.alone(value - chance[plant], own.graded_precision.n, "one plant").rounded()
        for plant, own in judged.items()
    }
    return mean_over_plants(
        apart, (-max(chance.values()) - ROUNDING, 1 - min(chance.values()) + ROUNDING)
    )


def _told_right(judged: Iterable[Planted]) -> Estimate:
    answers = [found.told for planted in judged for found in (planted.pathways or {}).values()]
    if not answers:
        return Estimate.missing("a method that makes no grafts of tokens")
    if "not applicable" in answers:
        return Estimate.missing("not applicable: the method cannot express the pathways")
    return hit_rate(answers.count("told"), len(answers)).rounded()


def _columns(entries: Iterable[Entry]) -> tuple[Column, ...]:
    """The columns of a table that some entry has, with what chance gives."""
    judged = {entry.pair: _planted(entry) for entry in entries}
    chance = [own.chance for own in judged.values() if own.chance is not None]
    marks = (
        (("chance, and knowing which weights changed", sum(chance) / len(chance)),)
        if chance
        else ()
    )
    known = {
        RANKED: marks,
        ABOVE: (("chance", 0.0),),
        "auroc_decoy": (("chance, and knowing which weights changed", 0.5),),
    }
    shown = [column for column in COLUMNS if not judged or _figure(judged, column.key) is not None]
    return tuple(replace(column, marks=known.get(column.key, ())) for column in shown)
