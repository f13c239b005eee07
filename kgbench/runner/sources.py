"""Where the parts of a run are on this machine, noted next to its record.

A record holds names and hashes, and no path. The note is local: what is submitted, published or
saved elsewhere lacks it, and no identity or check depends on it. It may come with a folder from a
stranger. So it is read only when a user asks for a run's models; it names models and
facts, which are data and are compared with the hashes of the record, and never code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import Field, ValidationError

from kgbench.data import ImportOptions, is_shipped
from kgbench.errors import DataError, InputError, first_fault
from kgbench.models import catalog
from kgbench.records import SOURCES, Strict, write_whole
from kgbench.runner.spec import Settings, Spec


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


def note_sources(spec: Spec, settings: Settings, folder: Path) -> None:
    """Note where a run was found or computed; nothing depends on it, and a full disk is no error.

    No note is made of models or facts in memory, nor of what the names in the record give already.

    Args:
        spec: What was evaluated, with its donors.
        settings: How.
        folder: The run's.
    """
    memory = spec.in_memory
    if memory.pair is not None or memory.dataset is not None:
        return
    noted = Sources(
        model=_place(spec.model, catalog.pair_names().__contains__),
        recipient=_place(spec.recipient, _is_name),
        donors={name: str(_place(source, _is_name)) for name, source in spec.donors.items()},
        revision=spec.revision,
        chat_template=spec.chat_template,
        dataset=_place(spec.dataset, is_shipped),  # with its part, as in FILE:first150
        imports=spec.imports,
        device_map=settings.device_map,
    )
    path = folder / SOURCES
    if noted != Sources(model=spec.model, dataset=spec.dataset) or path.exists():
        with suppress(OSError):
            text = noted.model_dump_json(indent=1, exclude_defaults=True)
            write_whole(path, f"{text}\n".encode())


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
