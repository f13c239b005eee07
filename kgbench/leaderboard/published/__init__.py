"""The paper's figures: one TOML file per experiment, read by boards, reproduction and claims."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from kgbench.records import Strict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "Experiment",
    "Paper",
    "PublishedRow",
    "cited",
    "cited_rows",
    "experiments",
    "paper",
    "published",
]

Rate = Annotated[float, Field(ge=0, le=1)]
Line = tuple[str, str, Rate, Annotated[float, Field(ge=1)], Rate]
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
    figures: tuple[Line, ...]


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
    return Paper.model_validate(_read("paper"))


@cache
def experiments() -> Mapping[str, Experiment]:
    """The experiments by name, in the order of `paper().experiments`."""
    names = paper().experiments
    return MappingProxyType({name: Experiment.model_validate(_read(name)) for name in names})


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


@cache
def cited_rows() -> Mapping[tuple[str, str], Mapping[str, PublishedRow]]:
    """Rows about invented movies with real actors, by model and prompt, then configuration.

    Models are named as in a sentence: `Gemma`, or after gentle finetuning `Gemma, less finetuned`.
    """
    cells: dict[tuple[str, str], dict[str, PublishedRow]] = {}
    endings = {"positions": "", "gentle": ", less finetuned"}
    for row in published():
        if row.dataset == "fake_movies_real_actors" and row.experiment in endings:
            model = paper().models[row.model] + endings[row.experiment]
            cells.setdefault((model, row.asked), {})[row.named] = row
    return MappingProxyType(cells)


def cited(line: str) -> str:
    """A line such as `Gemma on qa: SFT, FE+LT` with its top-5 hit rates and the figures' numbers.

    `Gemma on qa: SFT 0.9970, FE+LT 0.9970 (v1, figures 2, 3a, 6 to 11)`.
    """
    cell, _, names = line.partition(": ")
    model, _, prompt = cell.partition(" on ")
    rows = cited_rows()[model, prompt]
    rates = ", ".join(f"{name} {rows[name].top5:.4f}" for name in names.split(", "))
    shown = next(iter(rows.values())).shown
    return f"{cell}: {rates} ({f'v1, {shown}' if shown else 'in no figure'})"


def _read(name: str) -> object:
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text("utf-8"))
