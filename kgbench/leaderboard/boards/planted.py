"""The board of plants: how well each method finds where facts were put on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kgbench.leaderboard.boards.cost import FORWARDS, plain_forwards
from kgbench.leaderboard.cells import Cell, core_cells, first_runs
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import METRIC
from kgbench.leaderboard.lines import PRIVILEGED, Measured, lead, ordered, store
from kgbench.leaderboard.maps import PlantMap, PlantMaps, mean_over_plants, plant_map
from kgbench.leaderboard.model import Board, Column, Line, Table
from kgbench.numbers import figure_text, number_text
from kgbench.records import Effect, Estimate, Planted
from kgbench.stats import hit_rate

__all__ = ["planted_board"]

DECOY = "auroc_decoy"
CHANCE = 0.5

COLUMNS = (
    Column("auroc", "AUROC", "Chance that a planted place is ranked above another; .5 at random", "higher"),
    Column(DECOY, "AUROC against the decoy", "The same among the planted places and those of the decoy only", "higher"),
    Column("average_precision", "average precision", "Mean precision of the ranking down to each planted place", "higher"),
    Column("recall_at_k", "recall@k", "Share of the k planted places among the k ranked highest", "higher"),
    Column(
        "sufficiency",
        "sufficiency of the best sites",
        "Recovery where the highest-ranked sites are grafted, as many as were planted",
        "higher",
    ),
    Column("necessity", "necessity of the best sites", "What is lost where all sites but these are grafted", "higher"),
    Column(
        "told",
        "position plants told right",
        "Prompts of position plants on which the method's intervals tell the planted pathway",
        "higher",
    ),
)

ABOUT = (
    "Facts were finetuned with only the weights of a known place trainable, and that place active in the forward pass, so that here the "
    "truth is known; decoy facts were planted elsewhere with changes of like norm, so that looking for changed weights is not enough. "
    "Weight plants are judged by (layer, component), position plants by (layer, component, region)."
)


def planted_board(entries: Sequence[Entry]) -> Board:
    """The board.

    Args:
        entries: All entries; those stand here that were judged by a plant.
    """
    found = {key: entry for key, entry in first_runs(e for e in entries if e.record.planted is not None).items()}
    cells = core_cells(planted=True, prompts=("",))
    overall = _overall(found, cells)
    by_cell: dict[Cell, dict[str, Entry]] = {}
    for (method, cell), entry in found.items():
        by_cell.setdefault(cell, {})[method] = entry
    singles = [_table(cell, by_cell[cell]) for cell in sorted(by_cell, key=lambda c: (not c.core, c))]
    return Board("planted", "Planted knowledge", ABOUT, _lead(overall), (overall, *singles))


def _lead(table: Table) -> str:
    """Who tells plants from decoys best; then who leads by rank."""
    known = [(f.value, line) for line in table.lines if (f := _decoy(line)) is not None and f.value is not None]
    if not known:
        return lead(table)
    highest = max(value for value, _ in known)
    first, *tied = [line for value, line in known if value == highest]
    figure = first.figures[DECOY]
    above = sum((line.figures[DECOY].low or 0.0) > CHANCE for _, line in known)
    names = " and ".join([first.method, *(line.method for line in tied)])
    shown = f"{figure_text(figure)} (AUROC against the decoy, n = {figure.n}; {first.badge})"
    return (
        f"Plants are told from decoys best by {names}: {shown}; "
        f"{above} of {len(known)} methods do better than chance, {number_text(CHANCE)}. "
        f"Ranks go by AUROC among all places: {lead(table)}"
    )


def _decoy(line: Line) -> Estimate | None:
    """A method's AUROC against the decoy; None of baselines and of those without a rank."""
    return None if line.baseline or line.rank is None else line.figures.get(DECOY)


def _overall(found: Mapping[tuple[str, Cell], Entry], cells: Sequence[Cell]) -> Table:
    methods: dict[str, dict[Cell, Entry]] = {}
    for (method, cell), entry in found.items():
        if cell in cells:
            methods.setdefault(method, {})[cell] = entry
    measured = {name: _mean(own, cells) for name, own in methods.items()}
    return Table(
        key="all",
        title=f"All {len(cells)} plants",
        columns=(*_told([entry for (_, cell), entry in found.items() if cell in cells]), FORWARDS),
        lines=ordered(measured),
        ranked_by="auroc",
        shown_first=DECOY,
        notes=(
            f"Means, intervals and ranks are for these {len(cells)} plants, and say nothing of other models. "
            "Intervals are from resampling plants, and of the AUROC also the layers and components of each.",
        ),
    )


def _mean(own: Mapping[Cell, Entry], cells: Sequence[Cell]) -> Measured:
    entries, coverage = list(own.values()), (len(own), len(cells))
    if len(own) < len(cells):
        return Measured(entries, {}, coverage, unranked=f"a mean needs all {len(cells)} plants, and it has been run on {len(own)}")
    judged = {cell.pair: _planted(own[cell]) for cell in cells}
    maps = {cell.pair: plant_map(own[cell].record) for cell in cells}
    reasons = [f"{reason} (on {pair})" for pair, reason in maps.items() if isinstance(reason, str)]
    standing = None if reasons else PlantMaps({pair: m for pair, m in maps.items() if isinstance(m, PlantMap)})
    figures = {column.key: _mean_figure(judged, column.key) for column in COLUMNS if column.key not in ("auroc", "told")}
    figures["auroc"] = store(standing.figure) if standing is not None else Estimate(n=0, undefined=reasons[0])
    figures["told"] = _told_right(judged.values())
    figures[FORWARDS.key] = plain_forwards(entries)
    return _standing(entries, figures, coverage, standing, reasons)


def _standing(
    entries: Sequence[Entry],
    figures: Mapping[str, Estimate],
    coverage: tuple[int, int],
    standing: PlantMaps | None,
    reasons: Sequence[str],
) -> Measured:
    if any(entry.record.identity.localizer.name == "oracle" for entry in entries):
        return Measured(entries, figures, coverage, unranked=PRIVILEGED)
    return Measured(entries, figures, coverage, standing, reasons[0] if reasons else "")


def _table(cell: Cell, own: Mapping[str, Entry]) -> Table:
    measured = {method: _single(entry) for method, entry in own.items()}
    planted = _planted(next(iter(own.values())))
    units = "(layer, component)" if planted.units == "layer and component" else "sites"
    decoy = f", decoy at {planted.decoy}" if planted.decoy else ""
    changed = planted.expected.get("changed")
    notes = () if changed is None else (f"Knowing no more than which weights changed has an AUROC of {number_text(changed)}.",)
    return Table(
        key=cell.key,
        title=f"{cell.title}: planted at {planted.plant}{decoy}; {planted.n_true} of {planted.n_units} {units}",
        columns=_told(own.values()),
        lines=ordered(measured),
        scope={"pair": cell.pair},
        ranked_by="auroc",
        shown_first=DECOY if planted.decoy else None,
        notes=notes,
    )


def _single(entry: Entry) -> Measured:
    planted, found = _planted(entry), plant_map(entry.record)
    figures = {column.key: figure for column in COLUMNS if (figure := _figure(planted, column.key)) is not None}
    figures["told"] = _told_right([planted])
    maps = PlantMaps({entry.pair: found}, planted.auroc) if isinstance(found, PlantMap) else None
    return _standing([entry], figures, (1, 1), maps, [found] if isinstance(found, str) else [])


def _planted(entry: Entry) -> Planted:
    """The comparison with the truth; figures of other metrics than the board's are left out."""
    found = entry.record.planted
    assert found is not None
    if entry.record.metric == METRIC:
        return found
    reason = f"the run's ratios are of {entry.record.metric}, and the board's are of {METRIC}"
    absent = Estimate(n=0, undefined=reason)
    effect = Effect(sufficiency=absent, necessity=absent)
    return found.model_copy(update={"effect": effect, "pathways": None})


def _figure(planted: Planted, key: str) -> Estimate | None:
    found = getattr(planted.effect if key in ("sufficiency", "necessity") else planted, key, None)
    return found if isinstance(found, Estimate) else None


def _mean_figure(judged: Mapping[str, Planted], key: str) -> Estimate:
    """The mean over plants that have such a figure by their nature; undefined if one that should have it has not."""
    figures = {pair: _figure(planted, key) for pair, planted in judged.items()}
    return mean_over_plants({pair: figure for pair, figure in figures.items() if figure is not None})


def _told_right(judged: Iterable[Planted]) -> Estimate:
    answers = [found.told for planted in judged for found in (planted.pathways or {}).values()]
    if not answers:
        return Estimate(n=0, undefined="no plant of positions, or a method that makes no grafts of tokens")
    if "not applicable" in answers:
        return Estimate(n=0, undefined="not applicable: the method cannot express the pathways")
    return store(hit_rate(answers.count("told"), len(answers)))


def _told(entries: Iterable[Entry]) -> tuple[Column, ...]:
    """The columns of a table, with what its entries' plants are expected to give without a method."""
    by_plant = {entry.pair: _planted(entry).expected for entry in entries}
    return tuple(replace(column, marks=_marks(column.key, list(by_plant.values()))) for column in COLUMNS)


def _marks(key: str, expected: Sequence[Mapping[str, float]]) -> tuple[tuple[str, float], ...]:
    """What chance gives, and what knowing the changed weights gives: means over plants."""
    if not expected:
        return ()
    if key == DECOY:
        # The decoy's weights changed as the plant's did, so that knowing which changed ties all of them.
        return (("chance, and knowing which weights changed", CHANCE),)
    known = (("chance", key), ("knowing which weights changed", "changed" if key == "auroc" else ""))
    found = ((name, [own[part] for own in expected if part in own]) for name, part in known)
    return tuple((name, sum(values) / len(values)) for name, values in found if len(values) == len(expected))
