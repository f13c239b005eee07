"""Forecast of making figures, by part and in all, without training or downloads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kgbench.errors import InputError
from kgbench.models.catalog import CARD
from kgbench.models.checkpoints import locate
from kgbench.models.placement import usable_device
from kgbench.models.trained import read_donor_card
from kgbench.reproduction.ingredients import SHIPPED, Ingredients
from kgbench.reproduction.made import Progress, parts_of
from kgbench.reproduction.measured import Measured
from kgbench.runner import Pairs, dry_run
from kgbench.runner.forecast import free_bytes
from kgbench.training.builds import read_card
from kgbench.training.finetuning_forecast import forecast_finetuning
from kgbench.training.finetuning_plan import FinetuningPlan, plan_finetuning

__all__ = ["Needs", "PartForecast", "Room", "forecasts", "needs", "room"]


@dataclass(frozen=True)
class PartForecast:
    """One donor or one evaluation."""

    part: str
    work: str
    """What is done, or that it is there."""
    seconds: float | None
    """None where nobody can say before the checkpoints are here."""
    memory_bytes: int | None
    disk_bytes: int
    """While it is made."""
    kept_bytes: int = 0
    """What of it stays when it is made."""
    download_bytes: int = 0
    """Of a recipient that is not on this machine."""
    basis: str = ""
    """What the time rests on; empty where nothing is left to do."""

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return asdict(self)


@dataclass(frozen=True)
class Room:
    """What is free where figures would be made, before anything is loaded."""

    memory_bytes: int
    device: str
    disk_bytes: int
    folder: Path
    """Of the donors."""


@dataclass(frozen=True)
class Needs:
    """What all parts need together, one made after the other, against what is free."""

    memory_bytes: int
    """Of the part that needs most."""
    disk_bytes: int
    """At most: what was kept before, and the part that is being made; downloads are among it."""
    kept_bytes: int
    """When all are made."""
    download_bytes: int
    room: Room

    @property
    def memory_fits(self) -> bool:
        """Whether there is enough memory for each part."""
        return self.memory_bytes <= self.room.memory_bytes

    @property
    def disk_fits(self) -> bool:
        """Whether there is enough disk for all parts."""
        return self.disk_bytes <= self.room.disk_bytes

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        return {
            "memory_bytes": self.memory_bytes,
            "free_memory_bytes": self.room.memory_bytes,
            "disk_bytes": self.disk_bytes,
            "kept_bytes": self.kept_bytes,
            "free_disk_bytes": self.room.disk_bytes,
            "download_bytes": self.download_bytes,
            "fits": self.memory_fits and self.disk_fits,
        }


def room(what: Ingredients, output_dir: Path, device: str) -> Room:
    """What is free now on a device, and on the disk that donors go to.

    Args:
        what: What figures are made of.
        output_dir: Where records would go.
        device: Where it would be computed.

    Raises:
        InputError: There is no such device.
    """
    memory, where = free_bytes(what.settings(output_dir, device), usable_device(device))
    folder = what.made / "donors"
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return Room(memory, where, shutil.disk_usage(there).free, folder)


def needs(parts: Sequence[PartForecast], free: Room) -> Needs:
    """What parts need, made in this order; all that is made is kept, and what is only there while one is made is removed before the next.

    Args:
        parts: All of them.
        free: What is free before the first.
    """
    # Every evaluation names the download of the recipient, which is made once.
    download = max((part.download_bytes for part in parts), default=0)
    kept = most = download
    for part in parts:
        most = max(most, kept + part.disk_bytes)
        kept += part.kept_bytes
    return Needs(
        max((part.memory_bytes or 0 for part in parts), default=0),
        max(most, kept),
        kept,
        download,
        free,
    )


def forecasts(
    figures: Sequence[str],
    seeds: Sequence[Ingredients],
    output_dir: Path,
    device: str,
    progress: Progress | None = None,
    known: Measured | None = None,
) -> Iterator[PartForecast]:
    """All parts of some figures, in the order in which they are made.

    Args:
        figures: Their names.
        seeds: What they are made of, under each training seed.
        output_dir: Where records would go.
        device: Where it would be computed.
        progress: Progress callback, called before each part is measured.
        known: Rows that are there, which would not be made again.

    Raises:
        InputError: Something is wrong that can be told beforehand.
    """
    parts, pairs = parts_of(figures, seeds, known), Pairs()
    for done, part in enumerate(parts):
        of = f", seed {part.what.seed}" if len(seeds) > 1 else ""
        name = f"pair{of}" if part.kind == "pair" else f"{part.kind} {part.name}{of}"
        if progress is not None:
            progress(done, len(parts), name)
        if part.kind == "pair":
            yield _pair(part.what, bool(part.name), name)
        elif part.kind == "donor":
            yield _training(part.name, part.what, device, name)
        else:
            yield _evaluation(part.name, part.what, (output_dir, device), pairs, name)


def _pair(what: Ingredients, donor: bool, part: str) -> PartForecast:
    """Pretraining of a recipient and finetuning of its donor, from those of the shipped pair."""
    shipped = read_card(locate(what.entry.recipient).directory.parent / CARD)
    left = {"recipient": not what.ready, "sft": donor and not what.has_own_donor}
    if not any(left.values()):
        return PartForecast(part, "there", 0.0, 0, 0)
    size = sum(file.stat().st_size for file in locate(what.entry.recipient).directory.iterdir())
    seconds = sum(shipped["seconds"][stage] for stage, wanted in left.items() if wanted)
    work = "pretrained" if left["recipient"] else "finetuned"
    # A recipient and a donor, and while they are made gradients and two moments of each weight.
    return PartForecast(
        part, work, seconds, 4 * size, 2 * size, 2 * size, basis="the shipped pair's time"
    )


def _training(name: str, what: Ingredients, device: str, part: str) -> PartForecast:
    try:
        if (what.place(name) / CARD).is_file():
            return _there(
                part, read_donor_card(what.place(name)), plan_finetuning(what.training(name))
            )
        # A recipient that is not there yet is as large as the shipped one.
        spec = what.training(name) if what.ready else replace(what, seed=SHIPPED).training(name)
        found = forecast_finetuning(spec, what.place(name), device=device)
    except InputError as error:
        return PartForecast(part, f"cannot be made: {error}", None, None, 0)
    memory = found.weights_bytes + found.gradients_bytes + found.optimizer_bytes
    work = f"{found.steps:,} steps on {found.texts:,} texts"
    return PartForecast(
        part, work, found.seconds, memory, found.disk_bytes, found.donor_bytes, basis=found.basis
    )


def _there(part: str, card: Mapping[str, Any], plan: FinetuningPlan) -> PartForecast:
    """A stored donor, if its card fits; its weights are not read."""
    spec = plan.spec
    wanted = {
        "model": spec.model,
        "seed": spec.seed,
        "changes": spec.changed(),
        "data": plan.data(),
    }
    other = [key for key, value in wanted.items() if card[key] != value] + ["recipe"] * (
        card["recipe"]["name"] != spec.recipe
    )
    if other:
        return PartForecast(
            part,
            f"cannot be made: trained in another way is there (other: {', '.join(other)})",
            None,
            None,
            0,
        )
    return PartForecast(part, "there", 0.0, 0, 0)


def _evaluation(
    name: str, what: Ingredients, where: tuple[Path, str], pairs: Pairs, part: str
) -> PartForecast:
    # With the recipient as its own donor everything takes as long as with those that are not there yet.
    spec = what.job(name)
    stand_in = replace(
        spec,
        recipient=what.entry.recipient,
        donors=dict.fromkeys(spec.donors, what.entry.recipient),
    )
    output_dir, device = where
    found = dry_run(stand_in, what.settings(output_dir, device), pairs)
    work = (
        f"{found.prompts} prompts × {found.configurations} configurations, "
        f"{found.token_rows:,} token rows"
    )
    memory = found.weights_bytes + found.logits_bytes + found.activations_bytes
    return PartForecast(
        part,
        work,
        found.seconds,
        memory,
        found.disk_bytes,
        found.disk_bytes,
        found.download_bytes,
        found.basis,
    )
