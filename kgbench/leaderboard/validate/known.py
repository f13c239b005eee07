"""Known pairs, methods and suites, against which results are checked.

`known.json` is written by `tests/write_known.py` from the loaded pairs, so that results are checked
without loading any model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from kgbench.data import Dataset, load_dataset
from kgbench.models import catalog

__all__ = ["Known", "KnownLocalizer", "KnownPair", "known", "own_facts"]

Spot = tuple[int | None, str]
"""A layer and a component; None outside the layers."""


@dataclass(frozen=True)
class KnownPair:
    """A shipped pair."""

    weights: Mapping[str, Mapping[str, str]]
    """By dtype, the hash of the recipient and of each donor."""
    tokenizer: str
    places: tuple[Spot, ...]
    """The default components, in the order of computation."""
    regions: Mapping[str, Sequence[str]]
    """By built-in prompt, the regions that its tokens are scored under."""
    changed: frozenset[Spot]
    """Where the donor has other weights than the recipient."""

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return 1 + max(layer for layer, _ in self.places if layer is not None)


@dataclass(frozen=True)
class KnownLocalizer:
    """A built-in method."""

    version: str
    kind: str
    floor: str
    needs: Sequence[str]
    baseline: bool
    """Whether it is a point of reference, which is shown under its own name only."""
    parameters: Sequence[str]
    about: str
    """What it does, in a line."""
    scan_of: str
    """The intervention whose scan is its map and has the line on boards; otherwise empty."""
    paper: str
    """Where it is described, such as `arXiv 2202.05262`; empty where nowhere."""


@dataclass(frozen=True)
class Known:
    """All of it."""

    metric_version: str
    ranking_version: str
    made_with: Mapping[str, str]
    """Versions of the packages on which the hashes of pairs depend."""
    pairs: Mapping[str, KnownPair]
    localizers: Mapping[str, KnownLocalizer]
    suites: Mapping[str, Mapping[str, Sequence[str]]]
    """Configurations by suite and kind of method (`scoring`, or `intervention` and its floor)."""
    answers: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
    """By pair and prompt of the board, in the order of the pair's facts and in single precision:
    `position`, `target`, log-probabilities in nats under `PRE` and `SFT`, and top-5 hits,
    `PRE hits` and `SFT hits`."""


@cache
def known() -> Known:
    """What is shipped with this version."""
    data = json.loads(files(__package__).joinpath("known.json").read_text("utf-8"))
    for name, fields in data["pairs"].items():
        places = tuple(map(tuple, fields["places"]))
        changed = frozenset(places[i] for i in fields["changed"])
        data["pairs"][name] = KnownPair(**{**fields, "places": places, "changed": changed})
    for name, fields in data["localizers"].items():
        data["localizers"][name] = KnownLocalizer(**fields)
    return Known(**data)


@cache
def own_facts(model: str) -> Dataset | None:
    """The facts that the donor of a pair learned; None where the catalog has no such pair."""
    entry = catalog.published(model)
    if entry is None:
        return None
    dataset = load_dataset(entry.dataset)
    return dataset if entry.facts is None else dataset.subset(entry.facts)
