"""What runs bundles: a module each, whose function `run_on_NAME` takes a `Launch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from kgbench.errors import InputError, check_choice
from kgbench.runner.sweeps.study import StudyUnit

__all__ = ["ENGINES", "Launch", "Pending", "need", "run_bundles"]

ENGINES: Mapping[str, str] = {
    "local": "processes of this machine",
    "slurm": "an array of jobs, by submitit; the command returns when it is submitted",
    "ray": "tasks of a Ray cluster, that of RAY_ADDRESS or one of this machine",
}
"""By name, one line on each."""


@dataclass(frozen=True)
class Launch:
    """Bundles, and how an engine is to run them."""

    root: Path
    """Folder of the records."""
    bundles: Sequence[Sequence[StudyUnit]]
    workers: int
    """Bundles that run at once."""
    retry_failed: bool = False
    gpus: float = 0.0
    """Share of a GPU that a bundle needs, or number of them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own."""
    ended: Callable[[int], None] | None = None
    """Called with the number of bundles that have ended."""

    @property
    def at_once(self) -> int:
        """Processes that have something to do."""
        return max(1, min(self.workers, len(self.bundles)))


@dataclass(frozen=True)
class Pending:
    """What an engine goes on with by itself."""

    text: str
    """In words."""
    going: Callable[[], bool]
    """Asks whether anything of it runs or waits to run."""


def run_bundles(engine: str, asked: Launch) -> Pending | None:
    """Run bundles, or have them run.

    Args:
        engine: One of `ENGINES`.
        asked: The bundles.

    Returns:
        What was submitted; None where all bundles have ended.

    Raises:
        UnknownNameError: There is no such engine.
        InputError: It is not installed, or an option of it is wrong.
    """
    check_choice("engine", engine, ENGINES)
    module = import_module(f"{__name__}.{engine}")
    pending: Pending | None = getattr(module, f"run_on_{engine}")(asked)
    return pending


def need(package: str, extra: str) -> Any:
    """Import a package of an extra.

    Raises:
        InputError: It is not installed.
    """
    try:
        return import_module(package)
    except ImportError:
        raise InputError(f"{package} is not installed: pip install 'kgbench[{extra}]'") from None
