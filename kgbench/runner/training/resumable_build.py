"""Resumable builds: a folder that is filled stage by stage and receives its card last.

Pairs, plants, donors and the runs of the study are built by the same rules:

- The work folder holds the hash of all choices (`identity`) before anything else; a folder with
  another identity is refused, one with the same identity is resumed.
- A stage is resumed from its last checkpoint. Its result is written under another name and renamed
  when it is complete, so a result that exists is complete.
- The card comes last, so a folder with a card is complete.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import nn

from kgbench.engine.out_of_memory import is_out_of_memory
from kgbench.errors import InputError, OutputError
from kgbench.models.catalog import CARD, read_donor_card
from kgbench.models.tensors import stored_hash
from kgbench.progress import Progress
from kgbench.records import write_whole
from kgbench.runner.training.recipes import Stage
from kgbench.runner.training.stages import (
    SAVE_EVERY,
    StageOutcome,
    StageRun,
    Steps,
    run_stage,
)

Model = TypeVar("Model", bound=nn.Module)

_PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "faker")
_ADVICE = "give a new folder with --output-dir"
_UNCHOSEN = ("identity", "name", "recipe", "changes")
"""Fields of a card that follow from others, or are compared one by one."""


def write_card(card: Mapping[str, Any], path: Path) -> None:
    """Write a card atomically."""
    write_whole(path, f"{json.dumps(card, indent=1, ensure_ascii=False)}\n".encode())


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that determine the outcome of a training."""
    packages = {name: metadata.version(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **packages}


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which takes its name when the block ends."""
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    os.replace(partial, folder)


@dataclass(frozen=True)
class Build:
    """A folder being built; between interruptions, all state is in its work folder."""

    out: Path
    work: Path
    """Folder of unfinished parts; in `out` or next to it."""
    label: str
    """What is built, for messages."""
    about: Mapping[str, Any]
    """The card without results, `identity` among it."""
    progress: Progress | None = None
    save_every: int = SAVE_EVERY
    """Steps between checkpoints."""
    parts: tuple[str, ...] = ()
    """Names in `out` that only a build writes."""
    read: Callable[[Path], Mapping[str, Any]] = read_donor_card
    """Reads and checks the card in a folder."""

    @property
    def card(self) -> Path:
        """Where the card is, once the build is complete."""
        return self.out / CARD

    def run(self, make: Callable[[], None]) -> None:
        """Make what is missing: nothing where this very build is complete.

        Args:
            make: Trains, and writes the results and the card.

        Raises:
            InputError: The device has too little memory.
            OutputError: The folder holds something else, is in use by another process, or cannot
                be written.
        """
        try:
            if not self._is_done():
                self.out.parent.mkdir(parents=True, exist_ok=True)
                self.work.parent.mkdir(parents=True, exist_ok=True)
                lock = self.work.with_suffix(".lock")
                with FileLock(lock, timeout=0):
                    if not self._is_done():
                        self.begin()
                        make()
                lock.unlink(missing_ok=True)
            if self.card.exists():
                shutil.rmtree(self.work, ignore_errors=True)
        except Timeout as error:
            reason = f"{self.out} is being trained by another process; wait for it, or"
            if not lock.exists():  # as where no file can be made
                reason = f"cannot write {self.label} to {self.out}: no files can be made there;"
            raise OutputError(f"{reason} {_ADVICE}") from error
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(
                "the memory of the device is too small for this: give a smaller --batch-size "
                "or --recipe lora"
            ) from error
        except (OSError, SafetensorError) as error:  # the latter as on a full disk
            why = getattr(error, "strerror", None) or error
            raise OutputError(
                f"cannot write {self.label} to {self.out}: {why}; make room, or {_ADVICE}"
            ) from error

    def _is_done(self) -> bool:
        """Whether the folder holds this very build, complete."""
        if not self.card.exists():
            return False
        card = self.read(self.out)
        if card["identity"] != self.about["identity"]:
            different = []
            for key, value in self.about["recipe"].items():
                if card["recipe"].get(key) != value:
                    different.append(f"recipe's {key}")
            for key, value in self.about.items():
                if key not in _UNCHOSEN and card.get(key) != value:
                    different.append(key)
            raise OutputError(
                f"{self.out} holds {card.get('name')}, seed {card['seed']}, trained in another way "
                f"(different: {', '.join(different)}); remove it, or {_ADVICE}"
            )
        try:
            is_whole = "weights" not in card or stored_hash(self.out) == card["weights"]
        except SafetensorError:
            is_whole = False
        if not is_whole:
            raise OutputError(
                f"the weights in {self.out} are not those of its card: changed, or cut off; "
                "remove the folder"
            )
        return True

    def begin(self, replace: bool = False) -> None:
        """Create the work folder, or resume what was begun in it.

        Args:
            replace: Whether to clear a folder of another build instead of refusing it.

        Raises:
            OutputError: The folder holds something else.
        """
        mark, identity = self.work / "identity", str(self.about["identity"])
        if mark.is_file() and mark.read_text(encoding="utf-8", errors="replace") == identity:
            return
        if replace:
            shutil.rmtree(self.work, ignore_errors=True)
        elif self.work.exists():
            raise OutputError(
                f"{self.work} holds the beginning of another training; remove it, or {_ADVICE}"
            )
        for part in self.parts:
            if (self.out / part).exists():
                raise OutputError(f"{self.out} holds {part!r} but no card; {_ADVICE}")
        with whole_folder(self.work) as partial:
            (partial / mark.name).write_text(identity, encoding="utf-8")

    def stage(
        self,
        checkpoints: str,
        result: Path,
        start: Callable[[], Model],
        store: Callable[[Model, StageOutcome], None],
        *,
        batches: Steps,
        stage: Stage,
        seed: int,
        what: str | Callable[[int], str],
        total: int | None = None,
        before: int = 0,
        **options: Any,
    ) -> None:
        """Run one stage, unless its result exists.

        Args:
            checkpoints: Name of the folder of its checkpoints.
            result: What exists once the stage is complete.
            start: Gives the model before the first step.
            store: Writes the result, under its name when it is complete.
            batches: All steps in order.
            stage: Hyperparameters.
            seed: Seed of whatever the model draws.
            what: What is being done, for the progress callback, or its text by step.
            total: Steps of all stages, where there are several.
            before: Steps of earlier stages.
            **options: Further fields of `StageRun`.
        """
        if result.exists():
            return

        def report(step: int) -> None:
            if self.progress is not None:
                described = what if isinstance(what, str) else what(step)
                self.progress(before + step, total or len(batches), described)

        run = StageRun(self.work / checkpoints, seed, self.save_every, report, **options)
        model = start()
        report(0)
        store(model, run_stage(model, batches, stage, run))
        shutil.rmtree(run.work, ignore_errors=True)
