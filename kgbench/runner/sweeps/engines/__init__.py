"""What runs groups of units: a module each, whose function `run_on_NAME` takes a `Launch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from kgbench.errors import InputError, check_choice
from kgbench.extras import install_command
from kgbench.runner.sweeps.study import StudyUnit

__all__ = ["ENGINES", "Launch", "Pending", "need", "run_groups"]

ENGINES: Mapping[str, str] = {
    "local": "processes of this machine",
    "slurm": "an array of jobs, by submitit; the command returns when it is submitted",
    "ray": "tasks of a Ray cluster, that of RAY_ADDRESS or one of this machine",
}
"""By name, one line on each."""


@dataclass(frozen=True)
class Launch:
    """Groups of units, and how an engine is to run them."""

    root: Path
    """Folder of the records."""
    groups: Sequence[Sequence[StudyUnit]]
    workers: int
    """Groups that run at once."""
    retry_failed: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own."""
    ended: Callable[[int], None] | None = None
    """Called with the number of groups that have ended."""

    @property
    def at_once(self) -> int:
        """Processes that have something to do."""
        return max(1, min(self.workers, len(self.groups)))


@dataclass(frozen=True)
class Pending:
    """What an engine goes on with by itself."""

    text: str
    """In words."""
    going: Callable[[], bool]
    """Asks whether anything of it runs or waits to run."""


def run_groups(engine: str, launch: Launch) -> Pending | None:
    """Run groups of units, or have them run.

    Args:
        engine: One of `ENGINES`.
        launch: The groups.

    Returns:
        What was submitted; None where all groups have ended.

    Raises:
        UnknownNameError: There is no such engine.
        InputError: It is not installed, or an option of it is wrong.
    """
    check_choice("engine", engine, ENGINES)
    if not launch.groups:
        return None
    module = import_module(f"{__name__}.{engine}")
    pending: Pending | None = getattr(module, f"run_on_{engine}")(launch)
    return pending


def need(package: str, extra: str) -> Any:
    """Import a package of an extra.

    Raises:
        InputError: It is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(f"{package} does not load ({error}): {install_command(extra)}") from None
