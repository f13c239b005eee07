"""What an engine runs: the units of a group, one after the other, with a receipt each.

A receipt ties a unit to its record, so that a study is planned, reported and resumed without a
model. It is written after the record, and a lost one costs the identity of a run, never a figure.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgbench.errors import KgbenchError, OutputError, first_line
from kgbench.models.catalog import find_donor
from kgbench.progress import Progress
from kgbench.records import write_whole
from kgbench.records.mirror import mirror_of
from kgbench.runner.sweeps.study import StudyUnit
from kgbench.version import __version__

UNITS = "units"
"""Folder of the receipts, in that of the records."""
ORPHAN_S = 20.0
"""How often a process looks whether the one that waits for it is there."""


@dataclass(frozen=True)
class State:
    """A unit, and what came of it."""

    unit: StudyUnit
    receipt: Mapping[str, Any]
    """As it was written; empty where there is none."""

    @property
    def word(self) -> str:
        """`done`, `failed` or `left`; `check` where files or kgbench changed since."""
        if not self.receipt:
            return "left"
        same_kgbench = self.receipt.get("kgbench") == __version__
        if not same_kgbench or self.receipt.get("files") != _stamps(self.unit):
            return "check"
        return "failed" if "error" in self.receipt else "done"


class Receipts:
    """The receipts of a folder of records, or of the URL that it is a copy of."""

    def __init__(self, root: Path) -> None:
        """Name the folder; it is made on the first write.

        Args:
            root: The folder of records.
        """
        self.folder = root / UNITS
        self.mirror = mirror_of(root)

    def read(self, units: Sequence[StudyUnit]) -> tuple[State, ...]:
        """The state of each unit; a receipt that does not read counts as none."""
        names = [f"{unit.key}.json" for unit in units]
        if self.mirror is not None:
            contents = self.mirror.read(f"{UNITS}/{name}" for name in names)
        else:
            contents, there = {}, set[str]()
            with suppress(FileNotFoundError, NotADirectoryError):
                there.update(os.listdir(self.folder))
            for name in there.intersection(names):
                with suppress(OSError):
                    contents[f"{UNITS}/{name}"] = (self.folder / name).read_bytes()
        receipts: dict[str, Any] = {}
        for path, content in contents.items():
            with suppress(ValueError):
                receipts[Path(path).stem] = json.loads(content)
        read = [receipts.get(unit.key) for unit in units]
        return tuple(
            State(unit, receipt if isinstance(receipt, dict) else {})
            for unit, receipt in zip(units, read, strict=True)
        )

    def write(self, unit: StudyUnit, content: Mapping[str, Any]) -> None:
        """Write the receipt of a unit, whole or not at all.

        Raises:
            OutputError: It cannot be written.
        """
        receipt = {
            "unit": dict(unit.options),
            **content,
            "host": socket.gethostname(),
            "kgbench": __version__,
            "files": _stamps(unit),
        }
        text = json.dumps(receipt, indent=1).encode()
        if self.mirror is not None:
            self.mirror.write(f"{UNITS}/{unit.key}.json", text)
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / f"{unit.key}.json", text)
        except OSError as error:
            raise OutputError.of("the receipt of a unit", self.folder, error) from error


def _stamps(unit: StudyUnit) -> list[list[str | int]]:
    """Name, size and time of each file of checkpoints in folders, so that a change is seen.

    A list, since files of recipient and donor have the same names. Those of the Hub have their
    commit.
    """
    stamps: list[list[str | int]] = []
    for source in filter(None, (unit.spec.recipient, *unit.spec.donors.values(), unit.spec.model)):
        folder = find_donor(source) or Path(source)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_file():
                stat = path.stat()
                stamps.append([path.name, stat.st_size, stat.st_mtime_ns])
    return stamps


def work(
    root: Path,
    units: Sequence[StudyUnit],
    retry_failed: bool = False,
    progress: Progress | None = None,
) -> None:
    """Compute the units that are left, and write a receipt of each; none of them stops the others.

    Args:
        root: Folder of the records.
        units: Of one pair, where that is possible.
        retry_failed: Whether to compute units that failed again.
        progress: Progress callback.

    Raises:
        OutputError: A record or a receipt cannot be written; the units that are left stay so.
    """
    from kgbench.runner import Pairs

    receipts, loaded = Receipts(root), Pairs()
    for state in receipts.read(units):
        unit = state.unit
        if state.word == "done" or (state.word == "failed" and not retry_failed):
            continue
        began = time.monotonic()
        content = _computed(root, unit, loaded, progress)
        receipts.write(unit, {**content, "seconds": round(time.monotonic() - began, 3)})


def _computed(
    root: Path, unit: StudyUnit, loaded: Any, progress: Progress | None
) -> dict[str, str | bool]:
    """The outcome of a unit, for its receipt."""
    from kgbench.runner import run_job

    try:
        run = run_job(unit.spec, unit.settings(root), progress, loaded)
        return {"record": run.record.id, "reused": run.reused}
    except OutputError:  # of the place, not of the unit
        raise
    except Exception as error:
        kind = type(error).__name__
        if isinstance(error, KgbenchError):
            return {"error": str(error), "kind": kind}
        text = f"{kind}: {first_line(error)}"
        return {"error": text, "kind": kind, "traceback": traceback.format_exc()}


REFUSED = 75
"""Exit status of a process that could not write; its output has the reason."""


def work_on_group() -> None:
    """Work on the group that is on standard input as JSON.

    Standard output holds the reason alone why something could not be written; whatever else is
    printed goes to standard error.
    """
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    task = json.load(sys.stdin)
    try:
        work(Path(task["root"]), list(map(StudyUnit, task["units"])), task["retry_failed"])
    except KeyboardInterrupt:
        sys.exit(130)  # the parent reports it
    except OutputError as error:
        answer.write(str(error))
        answer.close()
        sys.exit(REFUSED)


def _end_with(parent: int) -> None:
    """End once no one waits for this process any more; what is finished is kept."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_S)
    os._exit(1)
