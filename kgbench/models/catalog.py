"""The catalog of named model pairs: those of catalog.toml, then the plants, one per folder.

A plant is a donor in which facts were planted at known places (a *graft*): a folder with a card and
the weights that differ from those of its recipient. Wherever a name is expected, the path of such a
folder can be given. Of a *replica*, a plant of a further seed, the card alone is shipped: the board
has its rows, and `kgbench zoo build` makes its weights again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kgbench.errors import ModelError, UnknownNameError
from kgbench.models.plant_truth import GradedTruth, read_truth

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "CARD",
    "DELTA",
    "Entry",
    "describe_pairs",
    "entry",
    "graded_truth",
    "is_delta",
    "is_plant",
    "pair_names",
    "plants",
    "published",
    "read_delta_card",
    "read_plant",
    "replicas",
    "shipped",
    "zoo_path",
]

CARD, DELTA = "card.json", "delta.safetensors"
"""The two files of a plant."""

_PLANTS = "plants"


@dataclass(frozen=True)
class Entry:
    """A named pair: where its checkpoints are, and which facts its donor learned."""

    name: str
    about: str
    recipient: str
    dataset: str
    donors: Mapping[str, str] = field(default_factory=dict)
    facts: tuple[str, ...] | None = None
    """Ids of the facts that the donor learned and that are scored; None for all of the data set."""
    plant: str | None = None
    """The graft expression at which the facts were planted; None where the place is unknown."""
    decoy: str | None = None
    """The graft expression of other planted facts, with changes of equal norm, if any."""
    truth: GradedTruth | None = None
    """How far each place whose weights changed carries the planted facts, if measured."""
    parameters: int | None = None
    """Number of weights of the recipient, where that is not shipped."""
    layers: int | None = None
    """Number of its layers, likewise."""
    width: int | None = None
    """Of its residual stream, likewise."""
    vocabulary: int | None = None
    """Number of its tokens, likewise."""
    tied: bool = False
    """Whether its input and output embeddings are one, which a pair holds twice, likewise."""
    stored: str | None = None
    """Type of its weights as stored, likewise."""
    like: str | None = None
    """A shipped pair of its architecture, in whose place work is counted, likewise."""


@cache
def _pairs() -> Mapping[str, Entry]:
    rows = tomllib.loads(files(__package__).joinpath("catalog.toml").read_text("utf-8"))
    return {name: Entry(name=name, **row) for name, row in rows.items()}


@cache
def _plants() -> Mapping[str, Entry]:
    folder = Path(str(files(__package__).joinpath("zoo", _PLANTS)))
    entries = {}
    for card in sorted(folder.glob(f"*/{CARD}")):
        name = card.parent.name
        entries[name] = _plant_entry(_plant_card(card.parent), f"zoo:{_PLANTS}/{name}")
    return entries


@cache
def _with_weights() -> frozenset[str]:
    names = set()
    for name, plant in _plants().items():
        if is_delta(zoo_path(plant.donors["sft"]) or Path(name)):
            names.add(name)
    return frozenset(names)


def pair_names() -> tuple[str, ...]:
    """Names of all pairs, then of all plants that are shipped."""
    return (*_pairs(), *plants())


def plants() -> tuple[str, ...]:
    """Names of the plants that are shipped with their weights."""
    return tuple(name for name in _plants() if name in _with_weights())


def replicas() -> tuple[str, ...]:
    """Names of the plants of further seeds, of which the card alone is shipped."""
    return tuple(name for name in _plants() if name not in _with_weights())


def published(name: str) -> Entry | None:
    """The entry of a pair, plant or replica by its name alone; None where there is none."""
    return {**_pairs(), **_plants()}.get(name)


def graded_truth(name: str) -> GradedTruth | None:
    """The graded truth of a plant or replica; None where there is none, or no such plant."""
    entry = published(name)
    return None if entry is None else entry.truth


def shipped() -> tuple[str, ...]:
    """Names of the trained pairs that come with the package, without the plants."""
    return tuple(name for name, pair in _pairs().items() if zoo_path(pair.recipient) is not None)


def describe_pairs() -> Mapping[str, str]:
    """One line on each pair."""
    return {name: entry(name).about for name in pair_names()}


def entry(name: str) -> Entry:
    """The entry of a named pair.

    Args:
        name: A name in the catalog, or the path of a plant's folder.

    Raises:
        UnknownNameError: No pair has this name, and it is the path of no folder.
        ModelError: It is the path of a folder that holds no plant, or the name of a replica.
    """
    known = pair_names()
    if name in known:
        return {**_pairs(), **_plants()}[name]
    if _is_path(name):
        return _plant_entry(read_plant(Path(name).expanduser()), name)
    if name in replicas():
        base, level = name.partition("-seed")[0].split(".")
        seed = name.rpartition("-seed")[2]
        raise ModelError(
            f"the weights of {name!r} are not shipped, only its card and its results: make them "
            f"by `kgbench zoo build {base} --level {level} --seed {seed}`, then give "
            f"--model ./{name}"
        )
    hint = "Or give the path of a plant, or checkpoints: --recipient PATH --donor sft=PATH."
    raise UnknownNameError("model", name, known, hint)


def is_delta(directory: Path) -> bool:
    """Whether a folder holds the changed weights of a donor rather than a whole checkpoint."""
    return (directory / DELTA).is_file()


def is_plant(directory: Path) -> bool:
    """Whether a folder holds a donor in which facts were planted at a known place."""
    return is_delta(directory) and "plant" in read_delta_card(directory)


def read_delta_card(directory: Path) -> dict[str, Any]:
    """The card of a donor that is stored as changed weights; `recipient` is their base.

    Raises:
        ModelError: The folder holds no such donor, or one whose card cannot be read.
    """
    if not is_delta(directory) and (directory / "config.json").is_file():
        raise ModelError(
            f"{str(directory)!r} is a checkpoint, and --model takes the name of a pair: a "
            "checkpoint goes by --recipient "
            "(before finetuning) or --donor (after), as in --recipient before/ --donor after/"
        )
    if not is_delta(directory):
        raise ModelError(
            f"{str(directory)!r} holds no plant: expected {CARD} and {DELTA}, see 'kgbench zoo "
            "build --help'"
        )
    return _card(
        directory,
        lambda card: (card["recipient"]["source"], card["recipient"]["weights"]),
        "a donor",
    )


def read_plant(directory: Path) -> dict[str, Any]:
    """The card of a plant.

    Raises:
        ModelError: The folder holds no plant, or one whose card does not read.
    """
    read_delta_card(directory)
    return _plant_card(directory)


def _plant_card(directory: Path) -> dict[str, Any]:
    return _card(
        directory,
        lambda card: (card["name"], card["plant"], card["data"]["planted"], read_truth(card)),
        "a plant",
    )


def _card(directory: Path, needed: Callable[[Any], object], what: str) -> dict[str, Any]:
    try:
        card = json.loads((directory / CARD).read_text("utf-8"))
        needed(card)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError(
            f"{directory.name}/{CARD} is no card of {what} ({type(error).__name__}: {error})"
        ) from None
    return dict(card)


def zoo_path(source: str) -> Path | None:
    """Directory of a shipped checkpoint; None where the source is not of the zoo."""
    kind, _, inner = source.partition(":")
    return Path(str(files(__package__).joinpath("zoo", inner))) if kind == "zoo" else None


def _is_path(name: str) -> bool:
    separated = os.sep in name or (os.altsep is not None and os.altsep in name)
    return separated or name in (".", "..") or Path(name).is_dir()


def _plant_entry(card: Mapping[str, Any], source: str) -> Entry:
    plant, decoy = card["plant"], card.get("decoy")
    planted = len(card["data"]["planted"])
    about = f"{planted} facts planted in {card['base']} at {plant}"
    if decoy:
        about += f", as many decoys at {decoy}"
    facts = tuple(map(str, card["data"]["planted"]))
    return Entry(
        card["name"],
        about,
        card["recipient"]["source"],
        card["data"]["name"],
        {"sft": source},
        facts,
        plant,
        decoy,
        read_truth(card),
    )
