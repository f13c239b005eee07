"""What the paper measured, figure by figure; none of it was reproduced here."""

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

__all__ = ["Experiment", "Paper", "PublishedRow", "experiments", "paper", "published"]

Rate = Annotated[float, Field(ge=0, le=1)]
Line = tuple[str, str, Rate, Annotated[float, Field(ge=1)], Rate]
"""Name in the paper, configuration, top-5 hit rate, mean rank, mean probability."""


class Paper(Strict):
    """Where the figures are from, and what to know before they are compared with others."""

    citation: str
    url: str
    version: str
    """Version of the paper by whose numbers its figures are cited."""
    licence: str
    experiments: tuple[str, ...]
    """Names of the experiments; each is a file beside this one."""
    doubts: tuple[str, ...]
    datasets: dict[str, str]
    """What its data sets are, by name."""


class Cell(Strict):
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
    """What the pretrained side of its grafts is."""
    donors: dict[str, str]
    """What its grafts take weights from, by the donor's name in the expressions."""
    doubts: tuple[str, ...]
    """What is not known, or differs from our own runs."""
    cell: tuple[Cell, ...]


@dataclass(frozen=True)
class PublishedRow:
    """One configuration on one model, data set and prompt."""

    experiment: str
    """Its name here; `experiments` tells what it is."""
    model: str
    """Name of the recipient's pair in the catalog."""
    dataset: str
    """Name of the data set; `paper().datasets` tells what it is."""
    prompt: str
    """Name of our prompt of the same wording."""
    shown: str | None
    """The paper's figures that show it; None where it is in none, but among the published runs."""
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


@cache
def paper() -> Paper:
    """The paper that the figures are from."""
    return Paper.model_validate(_read("paper"))


@cache
def experiments() -> Mapping[str, Experiment]:
    """The experiments by name, in the order of `paper().experiments`."""
    return MappingProxyType(
        {name: Experiment.model_validate(_read(name)) for name in paper().experiments}
    )


@cache
def published() -> Sequence[PublishedRow]:
    """All figures: by experiment, then cell, then configuration in the paper's order."""
    return tuple(
        PublishedRow(
            name,
            cell.model,
            cell.dataset,
            cell.prompt,
            cell.shown,
            named,
            configuration,
            cell.n,
            top5,
            rank,
            prob,
        )
        for name, experiment in experiments().items()
        for cell in experiment.cell
        for named, configuration, top5, rank, prob in cell.figures
    )


def _read(name: str) -> object:
    return tomllib.loads(files(__package__).joinpath(f"{name}.toml").read_text("utf-8"))
