"""From a specification to a record.

Everything but the specification is loaded on first use, so that mistakes are reported at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kgbench.runner.spec import Settings, Spec

if TYPE_CHECKING:
    from kgbench.runner.earlier_runs import Run, known_run
    from kgbench.runner.forecast import dry_run
    from kgbench.runner.job import Pairs
    from kgbench.runner.lookup import check, load_prompts, suites
    from kgbench.runner.run import run_job

__all__ = [
    "Pairs",
    "Run",
    "Settings",
    "Spec",
    "check",
    "dry_run",
    "known_run",
    "load_prompts",
    "run_job",
    "suites",
]

_MODULES = {
    "dry_run": "forecast",
    "Pairs": "job",
    "Run": "earlier_runs",
    "known_run": "earlier_runs",
    "run_job": "run",
    "check": "lookup",
    "load_prompts": "lookup",
    "suites": "lookup",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
