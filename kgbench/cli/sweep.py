"""`kgbench sweep`: studies of many evaluations."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgbench.cli.options import File, cli_command
from kgbench.cli.output import Output
from kgbench.progress import progress
from kgbench.runner.spec import listed

if TYPE_CHECKING:
    from kgbench.runner.sweeps.plan import StudyPlan

WATCH_S = 5.0
"""How often it is looked whether units have ended."""


def _plan(study: Path) -> StudyPlan:
    from kgbench.records.mirror import folder_of
    from kgbench.runner.sweeps.plan import StudyPlan
    from kgbench.runner.sweeps.study import read_study

    read = read_study(study)
    return StudyPlan(read, folder_of(read.output_dir))


@click.group(
    epilog="Exit status: 0 done; 1 some units failed or are left; 2 wrong input; 130 interrupted."
)
def sweep_command() -> None:
    """Compute studies: many evaluations, here, on SLURM or on Ray.

    A study is a YAML file with any options of `kgbench eval` and a matrix of
    those with several values. Each unit is computed once; after any
    interruption, rerun the same command to resume.
    """


@cli_command("as_json", "quiet", group=sweep_command)
def run_command(
    study: File,
    *,
    on: str = "local",
    workers: int = 1,
    retry_failed: bool,
    watch: bool,
    dry_run: bool,
    quiet: bool,
) -> Output | None:
    """Compute what is left of a study.

    One failed unit stops nothing: `kgbench sweep status` has its reason.

    \b
    kgbench sweep run study.yaml --workers 2
    kgbench sweep run study.yaml --on slurm --workers 16 --watch
    kgbench sweep run study.yaml --dry-run         # units, what is done, and groups

    Args:
        study: The study.
        on (ENGINE): local, slurm or ray; the study's `engines` has their options.
        workers (N): Groups of units that run at once.
        retry_failed: Compute units that failed again.
        watch: On SLURM: wait until all units have ended.
        dry_run: Show each unit, whether it is done, and its group; compute nothing.
        quiet: The verdict only, with --json not even that.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.runner.sweeps.plan import run_study

    plan = _plan(study)
    if dry_run:
        groups = plan.groups(workers, retry_failed)
        keys = [list(map(attrgetter("key"), group)) for group in groups]
        return Output([plan.report(groups)], {**plan.to_json(), "groups": keys})
    with progress(not quiet) as report:
        pending = run_study(plan, on, workers=workers, retry_failed=retry_failed, announce=report)
    if pending is not None:
        click.echo(f"submitted {pending.text}; see kgbench sweep status {study}")
        if not watch:
            return None
        while pending.going() and any(
            state.word not in ("done", "failed") for state in _now(plan).states
        ):
            time.sleep(WATCH_S)
    now = _now(plan)
    return _status(now, (), int(any(state.word != "done" for state in now.states)))


@cli_command("as_json", group=sweep_command)
def status_command(study: File, *, by: tuple[str, ...]) -> Output:
    """Show what of a study is done, runs, or failed and why.

    \b
    kgbench sweep status study.yaml --by localizer

    Args:
        study: The study.
        by (OPTION): By these options; with commas.
    """  # noqa: D301 (click reads the character, not its escape)
    return _status(_plan(study), listed(by))


def _status(plan: StudyPlan, axes: Sequence[str], status: int = 0) -> Output:
    report = plan.status(axes)
    return Output([report], plan.to_json(), status, report.verdict)


def _now(plan: StudyPlan) -> StudyPlan:
    """The same study and what is done by now."""
    return type(plan)(plan.study, plan.root)
