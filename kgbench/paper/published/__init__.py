"""The paper's figures, one TOML file per experiment, and their board: never ranked with ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import attrgetter
from typing import Annotated

from pydantic import Field

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Line, Table
from kgbench.leaderboard.entries import Entry
from kgbench.numbers import percent_text
from kgbench.records import Strict
from kgbench.resources import read_toml
from kgbench.sites import BASELINES
from kgbench.stats import rate_interval

__all__ = [
    "Experiment",
    "Paper",
    "PublishedRow",
    "experiments",
    "paper",
    "published",
    "published_board",
]

Rate = Annotated[float, Field(ge=0, le=1)]
Figures = tuple[str, str, Rate, Annotated[float, Field(ge=1)], Rate]
"""Name in the paper, configuration, top-5 hit rate, mean rank, mean probability."""


class Paper(Strict):
    """Source of the figures, and caveats of a comparison."""

    citation: str
    url: str
    version: str
    """Version of the paper by whose numbers its figures are cited."""
    licence: str
    experiments: tuple[str, ...]
    """Names of the experiments, each a TOML file in this folder."""
    doubts: tuple[str, ...]
    models: dict[str, str]
    """Its models in a sentence, by the name of the recipient's pair."""
    datasets: dict[str, str]
    """Its data sets, described by name."""


class PublishedCell(Strict):
    """All configurations of an experiment on one model, data set and prompt."""

    model: str
    dataset: str
    prompt: str
    shown: str | None = None
    n: int = Field(ge=1)
    figures: tuple[Figures, ...]


class Experiment(Strict):
    """What one experiment grafts, and its figures."""

    title: str
    about: str
    recipient: str
    """The pretrained side of its grafts."""
    donors: dict[str, str]
    """Sources of the grafted weights, by the donor's name in the expressions."""
    doubts: tuple[str, ...]
    """Unknowns, and differences from our own runs."""
    cell: tuple[PublishedCell, ...]


@dataclass(frozen=True)
class PublishedRow:
    """One configuration on one model, data set and prompt."""

    experiment: str
    """Its name in `experiments`."""
    model: str
    """Name of the recipient's pair in the catalog."""
    dataset: str
    """Its name in `paper().datasets`."""
    prompt: str
    """Name of our prompt of the same wording, where `_v1` has a doubled "in"."""
    shown: str | None
    """The paper's figures that show it; None of a published run in no figure."""
    named: str
    """The paper's name of the configuration."""
    configuration: str
    """`PRE`, `SFT` or a graft expression."""
    n: int
    """Number of facts."""
    top5: float
    """Hit rate, to four digits."""
    rank: float
    """Mean rank of the target, from 1."""
    prob: float
    """Mean probability of the target."""

    @property
    def asked(self) -> str:
        """Our prompt without the doubled "in"."""
        return self.prompt.removesuffix("_v1")


@cache
def paper() -> Paper:
    """The paper that the figures are from."""
    return Paper.model_validate(read_toml(__package__, "paper"))


@cache
def experiments() -> Mapping[str, Experiment]:
    """The experiments by name, in the order of `paper().experiments`."""
    names = paper().experiments
    return {name: Experiment.model_validate(read_toml(__package__, name)) for name in names}


@cache
def published() -> Sequence[PublishedRow]:
    """All figures: by experiment, then cell, then configuration in the paper's order."""
    rows = []
    for name, experiment in experiments().items():
        for cell in experiment.cell:
            about = (name, cell.model, cell.dataset, cell.prompt, cell.shown)
            for named, configuration, *numbers in cell.figures:
                rows.append(PublishedRow(*about, named, configuration, cell.n, *numbers))
    return tuple(rows)


# -------------------------------------------------------------------------------------------- board


_UNRANKED = "published, not reproduced here"
_NONE = "no interval was published"
_FIGURES = {
    "top5": f"Top-5 hit rate; the interval is computed by us from rate and n, for {_NONE}.",
    "rank": f"Mean rank of the target, from 1; {_NONE}.",
    "prob": f"Mean probability of the target; {_NONE}.",
}
_TITLES = {"top5": "top-5 hit rate", "rank": "mean rank", "prob": "mean probability"}
_ENOUGH = 0.95
"""Recovery from which the lead counts FE+LT as sufficient."""
_BEYOND = 1.1
"""Recovery from which FE+LT counts as further than the finetuned model itself."""

_UNPAIRED = (
    f"computed by us from top-5 rates; no interval, for {_NONE} and the rows of single "
    "facts are not there to resample."
)
_DERIVED = (
    Column("recovery", "recovery of FE+LT", f"(FE+LT - PRE) / (SFT - PRE), {_UNPAIRED}"),
    Column("complement", "recovery of (FE+LT)^C", f"((FE+LT)^C - PRE) / (SFT - PRE), {_UNPAIRED}"),
    Column(
        "separation",
        "separation",
        f"Recovery of FE+LT less that of its complement, {_UNPAIRED}",
        better="higher",
    ),
)

Cell = Sequence[PublishedRow]
"""All configurations of an experiment on one model, data set and prompt."""


def published_board(entries: Sequence[Entry] = ()) -> Board:
    """The board of published figures, with what follows from those of position experiments.

    Args:
        entries: Entries of the leaderboard, of which this board has none.
    """
    cells: dict[str, list[Cell]] = {}
    by_cell = attrgetter("experiment", "model", "dataset", "prompt")
    for (experiment, *_), rows in groupby(published(), by_cell):
        name = "positions" if experiment == "gentle" else experiment
        cells.setdefault(name, []).append(tuple(rows))
    overview = _positions(cells["positions"])
    tables = [overview, *(_table("positions", cells["positions"], m) for m in ("rank", "prob"))]
    for name in ("reversal", "components", "hybrid"):
        tables += [_table(name, cells[name], metric) for metric in _FIGURES]
    source = paper()
    about = (
        f"What the paper measured on four larger models: {source.citation}, {source.url}. "
        f"{source.version}."
    )
    return Board(
        key="published",
        title="Published",
        about=f"{about} Nothing here was reproduced with this benchmark, and nothing is ranked "
        "with its results. The figures are on the board's pages.",
        lead=_lead(overview.lines),
        tables=tuple(tables),
    )


def _positions(cells: Sequence[Cell]) -> Table:
    """The table over all cells: hit rates, and what follows from them."""
    rates = _table("positions", cells, "top5")
    lines = []
    for cell, line in zip(cells, rates.lines, strict=True):
        lines.append(_line(cell, {**line.figures, **_derived(cell)}))
    notes = (
        *rates.notes,
        "A recovery above 1 is beyond the finetuned model, one below 0 is below the pretrained "
        "one; neither is clamped.",
    )
    columns = (*rates.columns, *_DERIVED)
    return Table("positions", "Positions", columns, tuple(lines), notes=notes, brief=False)


def _table(name: str, cells: Sequence[Cell], metric: str) -> Table:
    """An experiment by a metric: a line per cell, a column per configuration of the first cell."""
    experiment, lines, doubts = experiments()[name], [], dict[str, None]()
    for cell in cells:
        lines.append(_line(cell, {row.named: _figure(row, metric) for row in cell}))
        doubts.update(dict.fromkeys(experiments()[cell[0].experiment].doubts))
    columns = []
    for row in cells[0]:
        columns.append(Column(row.named, row.named, f"{_meaning(row)} {_FIGURES[metric]}"))
    return Table(
        key=f"{name}-{metric}",
        title=f"{experiment.title}: {_TITLES[metric]}",
        columns=tuple(columns),
        lines=tuple(lines),
        scope={"experiment": experiment.title, "figure": _TITLES[metric]},
        notes=(experiment.about, _shown(cells), _FIGURES[metric], *paper().doubts, *doubts),
    )


def _meaning(row: PublishedRow) -> str:
    """A sentence on a configuration; where layers differ by model, on the row's."""
    if row.named in BASELINES:
        return {"PRE": "The pretrained model.", "SFT": "The finetuned model."}[row.named]
    if row.named == row.configuration:
        return f"The graft {row.configuration}."
    return f"The graft {row.configuration} on {row.model}; on the others the layers are other ones."


def _shown(cells: Sequence[Cell]) -> str:
    """Which of the paper's figures show the cells."""
    counts = Counter(cell[0].shown or "no figure" for cell in cells)
    counted = ", ".join(f"{count} in {where}" for where, count in counts.items())
    return f"Of these {len(cells)} cells, {counted}."


def _line(cell: Cell, figures: Mapping[str, Estimate]) -> Line:
    first = cell[0]
    model = f"{first.model}, gently" if first.experiment == "gentle" else first.model
    name = f"{model} · {first.prompt} · {first.dataset}"
    return Line(name, figures, runs=(), coverage=(1, 1), badge="published", unranked=_UNRANKED)


def _figure(row: PublishedRow, metric: str) -> Estimate:
    if metric != "top5":
        return _point(getattr(row, metric), row.n)
    low, high = rate_interval(row.top5, row.n)
    return Estimate.hull(row.top5, row.n, (low, high)).rounded()


def _point(value: float, n: int) -> Estimate:
    """A figure without an interval; the ends of its estimate are its value."""
    return Estimate(value, value, value, n).rounded()


def _derived(cell: Cell) -> dict[str, Estimate]:
    """Recoveries of FE+LT and of its complement."""
    rate = {row.named: row.top5 for row in cell}
    gain = rate["SFT"] - rate["PRE"]
    inside, outside = ((rate[name] - rate["PRE"]) / gain for name in ("FE+LT", "(FE+LT)^C"))
    figures = {"recovery": inside, "complement": outside, "separation": inside - outside}
    return {name: _point(value, cell[0].n) for name, value in figures.items()}


def _lead(lines: Sequence[Line]) -> str:
    recovered = {line.method: line.figures["recovery"].value or 0.0 for line in lines}
    enough = sum(value >= _ENOUGH for value in recovered.values())
    beyond = sum(value >= _BEYOND for value in recovered.values())
    least = min(recovered, key=lambda name: recovered[name])
    return (
        f"In {enough} of {len(recovered)} cells FE+LT recovers at least {percent_text(_ENOUGH)} % "
        "of what "
        f"finetuning brought, in {beyond} of them more than {percent_text(_BEYOND)} %; "
        f"least, {percent_text(recovered[least])} %, in {least}. These recoveries have no "
        "interval, for none was published."
    )


PLACE = 100
"""After the boards of entries."""

BOARDS = (published_board,)
