"""From a specification to a record."""

from __future__ import annotations

from kgbench.runner.estimate import Forecast, dry_run
from kgbench.runner.job import Run, evaluate, run_job
from kgbench.runner.prompts import load_prompts
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.suites import suites

__all__ = ["Forecast", "Run", "Settings", "Spec", "dry_run", "evaluate", "load_prompts", "run_job", "suites"]
