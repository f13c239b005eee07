"""From a specification to a record.

What reads a specification needs no torch; what runs it loads on first use, so that a mistake is told at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kgbench.runner.spec import Settings, Spec
from kgbench.runner.workload import Workload, check, load_prompts, suites

if TYPE_CHECKING:
    from kgbench.runner.forecast import Forecast, dry_run
    from kgbench.runner.pairs import Pairs
    from kgbench.runner.run import Run, evaluate, run_job

__all__ = [
    "Forecast",
    "Pairs",
    "Run",
    "Settings",
    "Spec",
    "Workload",
    "check",
    "dry_run",
    "evaluate",
    "load_prompts",
    "run_job",
    "suites",
]

_HEAVY = {
    "Forecast": "forecast",
    "dry_run": "forecast",
    "Pairs": "pairs",
    "Run": "run",
    "evaluate": "run",
    "run_job": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HEAVY[name]}"), name)
