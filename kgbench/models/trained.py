"""Donors that `kgbench train` made: where they are kept, and which there are.

They lie in `donors/<model>/<name>` under the user's data folder, or under the folder that the
environment variable KGBENCH_HOME names, and `<model>/<name>` is what they are called wherever a
checkpoint can be named. A folder of one's own of that path comes first, a repository of the Hub
last.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from kgbench.errors import ModelError, UnknownNameError
from kgbench.models import catalog
from kgbench.numbers import number_text

__all__ = [
    "HOME",
    "DamagedDonorWarning",
    "TrainedDonor",
    "choose_donor",
    "choose_donor_of",
    "donors_folder",
    "find_donor",
    "is_donor_name",
    "read_donor_card",
    "trained_donors",
]

HOME = "KGBENCH_HOME"
"""Environment variable: the folder in which what is made is kept."""

_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*")
_USUAL = ("aggressive", "both", 0)
"""Recipe, direction and seed of the donor that is meant where several would do."""


class DamagedDonorWarning(UserWarning):
    """A folder among the donors has a card that is no donor's."""


class _Part(BaseModel):
    """Part of a card; further fields are kept."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


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


class _Card(_Part):
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
    def kind(self) -> tuple[str, str, int]:
        """Recipe, direction and seed."""
        return self.card["recipe"]["name"], self.card["data"]["direction"], self.card["seed"]

    @property
    def about(self) -> str:
        """One line."""
        recipe, direction, seed = self.kind
        data, scores = self.card["data"], self.card["scores"]
        shares = ", ".join(
            f"{prompt} top-5 {number_text(row['PRE'])} → {number_text(row['SFT'])}"
            for prompt, row in scores.items()
        )
        line = (
            f"donor trained on {data['facts']} facts of {data['name']} ({direction}), "
            f"{recipe}, seed {seed}"
        )
        return f"{line}: {shares}" if shares else line


def donors_folder() -> Path:
    """Where trained donors are kept."""
    home = os.environ.get(HOME)
    if home:
        return Path(home).expanduser() / "donors"
    return platformdirs.user_data_path("kgbench", appauthor=False) / "donors"


def trained_donors() -> Mapping[str, TrainedDonor]:
    """All trained donors by name.

    A folder whose card does not read is left out with a `DamagedDonorWarning`.
    """
    donors = {}
    for card in sorted(donors_folder().glob(f"[!.]*/[!.]*/{catalog.CARD}")):
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
    return _NAME.fullmatch(name) is not None


def find_donor(name: str) -> Path | None:
    """The folder of a trained donor; None where no donor has this name, or a path does.

    Raises:
        UnknownNameError: It begins with a pair of the catalog, and there is no such donor.
    """
    if not is_donor_name(name) or Path(name).exists():
        return None
    folder = donors_folder() / name
    if (folder / catalog.CARD).is_file():
        return folder
    if name.partition("/")[0] in catalog.pair_names():
        raise UnknownNameError(
            "trained donor",
            name,
            trained_donors(),
            "Train one with 'kgbench train', or give the path of a checkpoint.",
        )
    return None


def choose_donor(model: str, hashes: Collection[str]) -> TrainedDonor | None:
    """The trained donor of a pair that learned some facts.

    Of several, the one by the recipe aggressive, in both directions, with seed 0 and nothing else
    changed; there is no guess where not exactly one such exists.

    Args:
        model: A pair of the catalog.
        hashes: Content hashes of the data sets that would do.

    Raises:
        ModelError: There are several, and that one is not among them.
    """
    return _chosen([donor for donor in _learned(hashes) if donor.model == model], model)


def choose_donor_of(
    recipient: str, hashes: Collection[str], weights: Callable[[], str | None]
) -> TrainedDonor | None:
    """The trained donor of a checkpoint that learned some facts, in whichever folder it is kept.

    Args:
        recipient: What to call the checkpoint in a message.
        hashes: Content hashes of the data sets that would do.
        weights: Gives the hash of the checkpoint's weights; called only where some donor learned
            the facts.

    Raises:
        ModelError: As `choose_donor` does.
    """
    candidates = _learned(hashes)
    wanted = weights() if candidates else None
    return _chosen([donor for donor in candidates if donor.recipient == wanted], recipient)


def _learned(hashes: Collection[str]) -> list[TrainedDonor]:
    return [donor for donor in trained_donors().values() if donor.card["data"]["hash"] in hashes]


def _chosen(candidates: Sequence[TrainedDonor], owner: str) -> TrainedDonor | None:
    usual = [donor for donor in candidates if donor.kind == _USUAL and not donor.card["changes"]]
    if len(candidates) > 1 and len(usual) != 1:
        choices = " or ".join(f"--donor sft={donor.name}" for donor in candidates)
        raise ModelError(
            f"{len(candidates)} donors of {owner} were trained on these facts; say which: {choices}"
        )
    return next(iter(usual or candidates), None)


def read_donor_card(folder: Path) -> dict[str, Any]:
    """The card of a trained donor.

    Raises:
        ModelError: It does not read.
    """
    try:
        card = json.loads((folder / catalog.CARD).read_text("utf-8"))
        _Card.model_validate(card)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ModelError(
            f"{folder / catalog.CARD} is no card of a trained donor: {where}: {first['msg']}"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{folder / catalog.CARD} is no card of a trained donor: it does not read as JSON "
            f"({error})"
        ) from None
    return dict(card)
