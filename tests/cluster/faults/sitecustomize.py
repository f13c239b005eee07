"""Stops a process where a test asks for it, so that it can be killed just there.

The folder of the environment variable FAULTS holds a file per point that is armed; the process that
takes it away stops itself. In `groups` there every finished group of prompts adds a line.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("FAULTS", "/nonexistent"))


def stop(point: str) -> None:
    """Stop this process, if the point is armed."""
    try:
        os.rename(FOLDER / point, FOLDER / f"{point}-{os.getpid()}")
    except OSError:
        return
    os.kill(os.getpid(), signal.SIGSTOP)


def in_work(module: Any) -> None:
    """Points at the start of a unit, and between its record and its receipt."""
    computed, write = module._computed, module.Receipts.write

    def begun(*arguments: Any) -> Any:
        stop("start")
        return computed(*arguments)

    def written(*arguments: Any) -> None:
        stop("receipt")
        write(*arguments)

    module._computed, module.Receipts.write = begun, written


def in_journal(module: Any) -> None:
    """A point in mid-unit, after a group, and the list of groups."""
    append = module.Journal.append

    def appended(self: Any, *arguments: Any) -> None:
        append(self, *arguments)
        with open(FOLDER / "groups", "a", encoding="utf-8") as file:
            file.write(f"{self.folder.name}\n")
        stop("mid")

    module.Journal.append = appended


PATCHES = {"kgbench.runner.sweeps.work": in_work, "kgbench.records.journal": in_journal}


class Finder(MetaPathFinder):
    """Patches a module after it is executed."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The module's own specification, with a loader that patches it."""
        if name not in PATCHES:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None and spec.loader is not None
        run = spec.loader.exec_module

        def executed(module: Any) -> None:
            run(module)
            PATCHES[name](module)

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


if FOLDER.is_dir():
    sys.meta_path.insert(0, Finder())
