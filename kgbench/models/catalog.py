"""The catalog of named model pairs: those of catalog.toml, then the plants, one per folder.

A plant is a donor in which facts were planted in known blocks: a folder with a card and the weights
that differ from those of its recipient. Wherever a name is expected, the path of such a folder can
be given.

Donors that `kgbench train` made are in `donors/<model>/<name>` under the user's data folder, or
under the folder that the environment variable KGBENCH_HOME names, and `<model>/<name>` is what they
are called wherever a checkpoint can be named. A folder of one's own of that path comes first, a
repository of the Hub last.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from kgbench.errors import ModelError, UnknownNameError, first_fault
from kgbench.numbers import number_text
from kgbench.resources import read_toml

CARD, DELTA = "card.json", "delta.safetensors"
"""The two files of a plant."""

FLOPS = {"cuda": 1e14, "mps": 5e12, "cpu": 1e11}
"""Operations per second assumed for a kind of device where no step is measured."""

_PLANTS = "plants"
_CHECKPOINTS = (
    "a checkpoint goes by its folder or Hub id: the base by --recipient PATH, the finetuned one by "
    "--donor sft=PATH"
)


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
    """The graft expression of other facts, with changes of equal norm."""
    level: str | None = None
    """Of a plant, the level of the benchmark that it was drawn for."""
    parameters: int | None = None
    """Number of weights of the recipient, where that is not shipped."""
    layers: int | None = None
    """Number of its layers, there."""
    width: int | None = None
    """Of its residual stream, there."""
    vocabulary: int | None = None
    """Number of its tokens, there."""
    tied: bool = False
    """Whether its input and output embeddings are one, which a pair holds twice, there."""
    stored: str | None = None
    """Type of its weights as stored, there."""
    like: str | None = None
    """A shipped pair of its architecture, in whose place work is counted, there."""


@cache
def _pairs() -> Mapping[str, Entry]:
    rows = read_toml(__package__, "catalog")
    return {name: Entry(name=name, **row) for name, row in rows.items()}


@cache
def _plants() -> Mapping[str, Entry]:
    entries = {}
    folder = Path(str(files(__package__).joinpath("zoo", _PLANTS)))
    for card in sorted(folder.glob(f"*/{CARD}")):
        name = card.parent.name
        entries[name] = _plant_entry(
            _read_card(card.parent, _PlantCard, "a plant"), f"zoo:{_PLANTS}/{name}"
        )
    return entries


@cache
def _organisms() -> Mapping[str, Entry]:
    """Organisms by name: a finetuned model, and its base, a named pair's or of the Hub."""
    entries = {}
    for row in read_toml(__package__, "organisms")["organism"]:
        about, cases = f"{row['behaviour']} ({row['source']})", row.get("cases", "")
        for name, base in row["bases"].items():
            pair = _pairs().get(base, Entry("", "", base, ""))
            donor = f"zoo:organisms/{name.partition('.')[2]}" if base in _pairs() else name
            given = {"name": name, "about": about, "donors": {"sft": donor}, "dataset": cases}
            entries[name] = replace(pair, **given)
    return entries


def describe_organisms() -> Mapping[str, Mapping[str, str]]:
    """Of each finetuned model whose behaviour is known: base, behaviour and source."""
    rows = {}
    for row in read_toml(__package__, "organisms")["organism"]:
        for name, base in row["bases"].items():
            rows[name] = {"base": base, "about": row["behaviour"], "source": row["source"]}
    return rows


def pair_names() -> tuple[str, ...]:
    """Names of all pairs, then of all plants that are shipped."""
    return (*_pairs(), *plants())


def plants() -> tuple[str, ...]:
    """Names of the plants that are shipped."""
    return tuple(_plants())


def plants_in_shipped_pairs() -> tuple[str, ...]:
    """Names of those whose base comes with the package, too, so that nothing is fetched."""
    return tuple(name for name, entry in _plants().items() if zoo_path(entry.recipient) is not None)


def published(name: str) -> Entry | None:
    """The entry of a pair, plant or organism by its name alone; None where there is none."""
    return {**_pairs(), **_plants(), **_organisms()}.get(name)


def is_name(name: str) -> bool:
    """Whether it is the name of a pair, a plant or an organism."""
    return published(name) is not None


def shipped() -> tuple[str, ...]:
    """Names of the trained pairs that come with the package, without the plants."""
    return tuple(name for name, pair in _pairs().items() if zoo_path(pair.recipient) is not None)


def with_fetched_base() -> tuple[str, ...]:
    """Names of the pairs whose finetuned model comes with the package, and whose base is fetched."""
    names = []
    for name, pair in _pairs().items():
        donors = map(zoo_path, pair.donors.values())
        if name not in shipped() and any(folder is not None for folder in donors):
            names.append(name)
    return tuple(names)


def describe_pairs() -> Mapping[str, str]:
    """One line on each pair."""
    return {name: entry(name).about for name in pair_names()}


def entry(name: str) -> Entry:
    """The entry of a named pair.

    Args:
        name: A name in the catalog, or the path of a plant's folder.

    Raises:
        UnknownNameError: No pair has this name, and it is the path of no folder.
        ModelError: It is the path of a folder that holds no plant.
    """
    if (pair := published(name)) is not None:
        return pair
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _plant_entry(read_plant(folder), name)
    hint = f"No folder has this name either; {_CHECKPOINTS}."
    raise UnknownNameError("model", name, pair_names(), hint)


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
    if not is_delta(directory):
        if any(directory.glob("*config.json")):
            raise ModelError(
                f"{str(directory)!r} is a checkpoint or an adapter, and --model takes the name of "
                f"a pair: {_CHECKPOINTS}"
            )
        raise ModelError(
            f"{str(directory)!r} holds no plant: expected {CARD} and {DELTA}, see 'kgbench zoo "
            "build --help'"
        )
    return _read_card(directory, _DeltaCard, "a donor")


def read_plant(directory: Path) -> dict[str, Any]:
    """The card of a plant.

    Raises:
        ModelError: The folder holds no plant, or one whose card does not read.
    """
    read_delta_card(directory)
    return _read_card(directory, _PlantCard, "a plant")


class _Part(BaseModel):
    """A card or a part of one; further fields are kept."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Base(_Part):
    source: str
    weights: str


class _DeltaCard(_Part):
    recipient: _Base


class _Planted(_Part):
    planted: list[Any]
    """Ids of facts."""


class _PlantCard(_Part):
    name: str
    plant: str
    data: _Planted


class _PairCard(_Part):
    identity: str
    seed: NonNegativeInt
    recipe: dict[str, Any]
    scores: dict[str, Any]


def read_pair_card(directory: Path) -> dict[str, Any]:
    """The card of a tiny pair or a plant, as its build writes it.

    Raises:
        ModelError: It does not read.
    """
    return _read_card(directory, _PairCard, "a tiny pair or a plant")


def _read_card(directory: Path, kind: type[BaseModel], what: str) -> dict[str, Any]:
    """The card in a folder.

    Raises:
        ModelError: It does not read.
    """
    what = f"{directory / CARD} is no card of {what}"
    card = read_object(directory / CARD, what)
    try:
        kind.model_validate(card)
    except ValidationError as error:
        raise ModelError(f"{what}: {first_fault(error, 'the whole')}") from error
    return card


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The object in a file of JSON.

    Args:
        path: The file.
        what: How an error begins.

    Raises:
        ModelError: It does not read, or holds another value.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{what}: its {path.name} does not read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelError(f"{what}: its {path.name} holds no object")
    return content


def zoo_path(source: str) -> Path | None:
    """Directory of a shipped checkpoint; None where the source is not of the zoo."""
    kind, _, inner = source.partition(":")
    if kind != "zoo":
        return None
    folder = Path(str(files(__package__).joinpath("zoo", inner)))
    fetched = release_folder() / inner
    left_out = (fetched / CARD).is_file() or (fetched / "config.json").is_file()
    return fetched if left_out and not any(folder.glob("*.safetensors")) else folder


def _plant_entry(card: Mapping[str, Any], source: str) -> Entry:
    """The entry of a plant, of its base's size."""
    ids = tuple(map(str, card["data"]["planted"]))
    base = _pairs().get(str(card.get("base")))
    return replace(
        base or Entry("", "", "", ""),
        name=card["name"],
        about=f"{len(ids)} facts planted at {card['plant']}",
        recipient=card["recipient"]["source"],
        dataset=card["data"]["name"],
        donors={"sft": source},
        facts=ids,
        plant=card["plant"],
        decoy=card.get("decoy"),
        level=card.get("level"),
    )


# ---------------------------------------------------------------------------------- trained donors

HOME = "KGBENCH_HOME"
"""Environment variable: the folder in which what is made is kept."""

_DONOR = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*")


class DamagedDonorWarning(UserWarning):
    """A folder among the donors has a card that is no donor's."""


class _Recipe(_Part):
    name: str


class _Recipient(_Part):
    weights: str


class _Data(_Part):
    name: str
    direction: str
    facts: NonNegativeInt
    hash: str


class _Score(_Part):
    PRE: float
    SFT: float


class _DonorCard(_Part):
    """What is read of a card, here and where a donor is described."""

    name: str
    model: str | None
    identity: str
    weights: str
    seed: NonNegativeInt
    recipient: _Recipient
    recipe: _Recipe
    changes: dict[str, Any]
    data: _Data
    scores: dict[str, _Score]


@dataclass(frozen=True)
class TrainedDonor:
    """A donor in the donors' folder."""

    name: str
    """`<model>/<name>`."""
    folder: Path
    card: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        """The pair of the catalog whose recipient it was finetuned from.

        None for another recipient.
        """
        return self.card["model"]  # type: ignore[no-any-return]  # a card's JSON

    @property
    def recipient(self) -> str:
        """Hash of the weights that it was finetuned from."""
        return str(self.card["recipient"]["weights"])

    @property
    def about(self) -> str:
        """One line."""
        data, scores = self.card["data"], self.card["scores"]
        shares = ", ".join(
            f"{prompt} top-5 {number_text(row['PRE'])} → {number_text(row['SFT'])}"
            for prompt, row in scores.items()
        )
        line = (
            f"donor trained on {data['facts']} facts of {data['name']} ({data['direction']}), "
            f"{self.card['recipe']['name']}, seed {self.card['seed']}"
        )
        return f"{line}: {shares}" if shares else line


def home_folder() -> Path:
    """Where what is made or fetched is kept."""
    if home := os.environ.get(HOME):
        return Path(home).expanduser()
    return platformdirs.user_data_path("kgbench", appauthor=False)


def release_folder() -> Path:
    """Where weights are kept that wheels leave out, of the files that this version expects."""
    pins = json.dumps(read_toml(__package__, "release"), sort_keys=True)
    return home_folder() / "release" / sha256(pins.encode()).hexdigest()[:12]


def donors_folder() -> Path:
    """Where trained donors are kept."""
    return home_folder() / "donors"


def trained_donors() -> Mapping[str, TrainedDonor]:
    """All trained donors by name.

    A folder whose card does not read is left out with a `DamagedDonorWarning`.
    """
    donors = {}
    for card in sorted(donors_folder().glob(f"[!.]*/[!.]*/{CARD}")):
        folder = card.parent
        try:
            content = read_donor_card(folder)
        except ModelError as error:
            warnings.warn(
                f"a donor is left out: {error}; delete its folder",
                DamagedDonorWarning,
                stacklevel=2,
            )
        else:
            name = f"{folder.parent.name}/{folder.name}"
            donors[name] = TrainedDonor(name, folder, content)
    return donors


def is_donor_name(name: str) -> bool:
    """Whether a name could be that of a trained donor."""
    return _DONOR.fullmatch(name) is not None


def find_donor(name: str) -> Path | None:
    """The folder of a trained donor; None where no donor has this name, or a path does.

    Raises:
        UnknownNameError: It begins with a pair of the catalog, and there is no such donor.
    """
    if not is_donor_name(name) or Path(name).exists():
        return None
    folder = donors_folder() / name
    if (folder / CARD).is_file():
        return folder
    if name.partition("/")[0] in pair_names():
        raise UnknownNameError(
            "trained donor",
            name,
            trained_donors(),
            "Train one with 'kgbench train', or give the path of a checkpoint.",
        )
    return None


def choose_donor(
    recipient: str, hashes: Collection[str], is_of: Callable[[TrainedDonor], bool]
) -> TrainedDonor | None:
    """The trained donor of a recipient that learned some facts, in whichever folder it is kept.

    Args:
        recipient: What to call the recipient in a message.
        hashes: Content hashes of the data sets that would do.
        is_of: Whether a donor was finetuned from the recipient; asked only of donors that learned
            the facts.

    Raises:
        ModelError: There are several.
    """
    candidates = []
    for donor in trained_donors().values():
        if donor.card["data"]["hash"] in hashes and is_of(donor):
            candidates.append(donor)
    if len(candidates) > 1:
        candidates.sort(key=lambda donor: (donor.folder / CARD).stat().st_mtime_ns)
        first, *others = (f"--donor sft={donor.name}" for donor in reversed(candidates))
        raise ModelError(
            f"{len(candidates)} donors of {recipient} were trained on these facts; say which: "
            f"{first} was trained last, before it {' or '.join(others)}"
        )
    return next(iter(candidates), None)


def read_donor_card(folder: Path) -> dict[str, Any]:
    """The card of a trained donor.

    Raises:
        ModelError: It does not read.
    """
    return _read_card(folder, _DonorCard, "a trained donor")
