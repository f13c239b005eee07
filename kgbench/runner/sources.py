"""Where the models and facts of a run are on this machine: named, looked up, and noted.

A record holds names and hashes, and no path. The note next to it is local: what is submitted,
published or saved elsewhere lacks it, and no identity or check depends on it. It may come with a
folder from a stranger. So it is read only when a user asks for a run's models; it names models and
facts, which are data and are compared with the hashes of the record, and never code.
"""

from __future__ import annotations

import filecmp
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from pydantic import Field, ValidationError

from kgbench.data import Dataset, ImportOptions, is_shipped, load_dataset
from kgbench.data.facts import PARTS
from kgbench.errors import DataError, InputError, first_fault
from kgbench.models import catalog
from kgbench.models.catalog import Entry, choose_donor, find_donor
from kgbench.records import SOURCES, Strict, Truth, write_whole
from kgbench.runner.spec import Held, Settings, Spec


class Sources(Strict):
    """Locations of a run's models and facts, as options of `kgbench eval` give them."""

    model: str | None = None
    recipient: str | None = None
    donors: Mapping[str, str] = Field(default_factory=dict)
    revision: str | None = None
    chat_template: bool = False
    dataset: str | None = None
    imports: ImportOptions | None = None
    device_map: str | None = None

    @classmethod
    def of(cls, spec: Spec) -> Sources:
        """Those that a specification names."""
        return cls(
            **{name: getattr(spec, name) for name in cls.model_fields if hasattr(spec, name)}
        )

    @property
    def entry(self) -> Entry | None:
        """Entry of the pair in the catalog; None of checkpoints.

        Raises:
            UnknownNameError: The catalog has no such pair.
        """
        return None if self.model is None else catalog.entry(self.model)

    @property
    def catalog_donors(self) -> Mapping[str, str]:
        """Donors of the catalog; none where there is another recipient."""
        entry = self.entry
        return {} if entry is None or self.recipient is not None else entry.donors

    @property
    def recipient_source(self) -> str | None:
        """The recipient, by itself or of the catalog; None of neither."""
        entry = self.entry
        return entry.recipient if self.recipient is None and entry else self.recipient

    @property
    def truth(self) -> Truth | None:
        """Ground-truth location of the pair's facts; None on a pair without a plant.

        A pair with other checkpoints or other facts than those of the catalog has no known truth.
        """
        entry = self.entry
        others = self.recipient is not None or self.donors or self.dataset is not None
        if entry is None or entry.plant is None or others:
            return None
        return Truth(plant=entry.plant, decoy=entry.decoy)

    @property
    def pair_text(self) -> str:
        """The pair in a message."""
        is_named = self.model is not None and not self.donors and self.recipient is None
        return f"model {self.model!r}" if is_named else "a pair of checkpoints"

    def facts(self) -> Dataset:
        """Load the facts.

        Raises:
            InputError: Neither a data set nor a pair of the catalog that has one is named.
        """
        if self.dataset is not None:
            return load_dataset(self.dataset, self.imports)
        if self.entry is None or not self.entry.dataset:
            raise InputError(
                "which facts did the donor learn? Give --dataset NAME or --dataset FILE.jsonl"
            )
        return pair_facts(self.entry)

    def check(self) -> None:
        """Refuse a path at which there is nothing any more.

        Raises:
            InputError: The first such path.
        """
        donors = ((f"donor {name}=", source) for name, source in self.donors.items())
        dataset = ("dataset ", self.dataset)
        for what, path in (("recipient ", self.recipient), *donors, dataset):
            if path is None or not os.path.isabs(path):
                continue
            if not any(map(os.path.exists, (path, path.partition(":")[0]))):
                raise InputError(
                    f"nothing is at {path!r}, where {what.strip(' =')} of this run was: give "
                    f"--{what}PATH to `kgbench rerun`, or to the same `kgbench eval` once more, "
                    "which finds the run and notes it"
                )

    def on(self, settings: Settings) -> Settings:
        """Settings with the layers spread as they were, unless a device is chosen."""
        spread = settings.device == "auto" and settings.device_map is None
        return replace(settings, device_map=self.device_map) if spread else settings


def pair_facts(entry: Entry) -> Dataset:
    """Facts of the donor of a catalog pair."""
    dataset = load_dataset(entry.dataset)
    return dataset if entry.facts is None else dataset.subset(entry.facts)


# Note


def note_sources(sources: Sources, held: Held, settings: Settings, folder: Path) -> None:
    """Note where a run was found or computed; nothing depends on it, and a full disk is no error.

    No note is made of models or facts in memory, nor of what the names in the record give already.

    Args:
        sources: Of what was evaluated.
        held: What of it was in memory.
        settings: How.
        folder: The run's.
    """
    if held.pair is not None or held.dataset is not None:
        return
    donors = {name: str(_place(source, _is_name)) for name, source in sources.donors.items()}
    places = {
        "model": _place(sources.model, catalog.is_name),
        "recipient": _place(sources.recipient, _is_name),
        "donors": donors,
        "dataset": _place(sources.dataset, is_shipped),  # with its part, as in FILE:first150
        "device_map": settings.device_map,
    }
    noted, path = sources.model_copy(update=places), folder / SOURCES
    if noted != Sources(model=sources.model, dataset=sources.dataset) or path.exists():
        content = f"{noted.model_dump_json(indent=1, exclude_defaults=True)}\n".encode()
        with suppress(OSError):
            if not path.exists() or path.read_bytes() != content:  # a finished run is not touched
                write_whole(path, content)


def _place(source: str | None, is_name: Callable[[str], bool]) -> str | None:
    """A path from the root; a name as it is."""
    if source is None or is_name(source):
        return source
    return os.path.abspath(Path(source).expanduser())


def _is_name(checkpoint: str) -> bool:
    """Whether a checkpoint is one of the zoo, a donor that was trained here, or of the Hub."""
    if catalog.zoo_path(checkpoint) is not None or catalog.find_donor(checkpoint) is not None:
        return True
    return not Path(checkpoint).expanduser().exists()


def sources_of(folder: Path) -> Sources:
    """The note next to a record; an empty one where there is none.

    Raises:
        DataError: It is no note of kgbench.
    """
    path = folder / SOURCES
    if not path.is_file():
        return Sources()
    try:
        return Sources.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DataError(f"{path}: {first_fault(error, 'note')}; delete it") from error


# Donors


def read_donors(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse donors, each given as `NAME=PATH` or as a path alone, whose name is `sft`.

    Args:
        option: The option's name, for messages.
        texts: Values of the option; a path alone may have an equals sign after a slash.

    Raises:
        InputError: A value has no name or no path, or a name comes twice.
    """
    donors: dict[str, str] = {}
    for text in texts:
        name, equals, place = (part.strip() for part in text.partition("="))
        if not equals or "/" in name:
            name, place = "sft", text.strip()
        if not name or not place:
            raise InputError(
                f"{option} {text!r}: expected NAME=PATH, such as sft=path/to/checkpoint, "
                "or only the path"
            )
        if name in donors:
            raise InputError(f"{option}: {name!r} is given twice; give it once")
        donors[name] = place
    return donors


def with_donor(sources: Sources, dataset: Dataset) -> Sources:
    """Add a donor trained on this machine, where one is needed.

    Args:
        sources: What is evaluated.
        dataset: Its facts.

    Returns:
        The same sources where they name a donor, where the catalog's donor learned the facts,
        and where no donor was trained.

    Raises:
        ModelError: Several donors would do, see `choose_donor`.
    """
    entry = sources.entry
    if sources.donors or (entry is None) == (sources.recipient is None):
        return sources
    hashes = {dataset.content_hash}
    dataset_name, _, part = (sources.dataset or "").rpartition(":")
    if dataset_name and part in PARTS:  # a half of a data set
        hashes.add(load_dataset(dataset_name, sources.imports).content_hash)
    if entry is None:
        source = str(sources.recipient)
        weights = cache(lambda: _weights_hash(source, sources.revision))
        donor = choose_donor(source, hashes, lambda donor: donor.recipient == weights())
    else:
        if entry.plant is not None or not entry.dataset:
            return sources
        if entry.donors and load_dataset(entry.dataset).content_hash in hashes:
            return sources
        model = entry.name
        donor = choose_donor(model, hashes, lambda donor: donor.model == model)
    return sources if donor is None else sources.model_copy(update={"donors": {"sft": donor.name}})


def _weights_hash(source: str, revision: str | None) -> str | None:
    """Hash of a checkpoint's weights; None where it is not on this machine."""
    from kgbench.models.checkpoints import find_here
    from kgbench.models.tensors import stored_hash

    checkpoint = find_here(source, revision)
    return None if checkpoint is None else stored_hash(checkpoint.directory)


def check_different(sources: Sources) -> None:
    """Refuse a donor that is the recipient, as far as names and local files show.

    Raises:
        InputError: A donor has the recipient's name, folder or weights.
    """
    recipient = sources.recipient_source
    if recipient is None:
        return
    for name, source in sources.donors.items():
        if source == recipient or _same_weights(
            checkpoint_folder(recipient), checkpoint_folder(source)
        ):
            raise InputError(
                f"donor {name!r} ({source}) has the recipient's weights ({recipient}), so that "
                "there is nothing to compare: give the checkpoint before finetuning by "
                "--recipient and the one after by --donor"
            )


def checkpoint_folder(source: str) -> Path:
    """Where a checkpoint would be on this machine, by its name or path."""
    return catalog.zoo_path(source) or find_donor(source) or Path(source).expanduser()


def _same_weights(first: Path, second: Path) -> bool:
    """Whether two folders are the same, or their weight files are equal byte for byte."""
    if not (first.is_dir() and second.is_dir()):
        return False
    names = {path.name for path in first.glob("*.safetensors")}
    others = {path.name for path in second.glob("*.safetensors")}
    if first.samefile(second) or not names or names != others:
        return first.samefile(second)
    _, differing, unreadable = filecmp.cmpfiles(first, second, names, shallow=False)
    return not differing and not unreadable
