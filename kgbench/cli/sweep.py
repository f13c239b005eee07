"""`kgbench sweep`: studies of many evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgbench.cli.options import File, cli_command
from kgbench.cli.output import Output
from kgbench.errors import InputError
from kgbench.progress import progress
from kgbench.runner.spec import listed

if TYPE_CHECKING:
    from kgbench.runner.sweeps.plan import StudyPlan

WATCH_S = 5.0
"""How often a status is shown again."""


Part = tuple[int, int]


def _part(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Part | None:
    """`K/N`, the k-th of n parts, from 1."""
    if text is None:
        return None
    k, slash, n = text.partition("/")
    if not (slash and k.isdigit() and n.isdigit() and 1 <= int(k) <= int(n)):
        raise click.BadParameter(f"{text!r}: expected K/N with K from 1 to N, such as 3/16")
    return int(k), int(n)


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
    those with several values. Each unit is computed once, whoever launches it
    however often, and the same command goes on after any interruption.
    """


@cli_command("as_json", group=sweep_command)
def plan_command(study: File, *, workers: int = 1) -> Output:
    """Show what a study would take; no model is loaded.

    \b
    kgbench sweep plan study.yaml --workers 8

    Args:
        study: The study.
        workers (N): Bundles of units that run at once.
    """  # noqa: D301 (click reads the character, not its escape)
    plan = _plan(study)
    return Output([plan.report(workers)], plan.to_json(workers))


@cli_command(
    *("as_json", "quiet"),
    group=sweep_command,
    part={"callback": _part},
)
def run_command(
    study: File,
    *,
    on: str = "local",
    workers: int = 1,
    part: Part | None,
    retry_failed: bool,
    watch: bool,
    quiet: bool,
) -> Output | None:
    """Compute what is left of a study.

    One failed unit stops nothing: `kgbench sweep status` has its reason.

    \b
    kgbench sweep run study.yaml --workers 2
    kgbench sweep run study.yaml --on slurm --workers 16 --watch
    kgbench sweep run study.yaml --part 3/16       # in an array task of any scheduler

    Args:
        study: The study.
        on (ENGINE): local, slurm or ray; the study's `engines` has their options.
        workers (N): Bundles of units that run at once.
        part (K/N): Only the K-th of N parts, in this process.
        retry_failed: Compute units that failed again.
        watch: On SLURM: wait until all units have ended.
        quiet: The verdict only, with --json not even that.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.runner.sweeps.plan import run_study

    if part is not None and (on != "local" or workers > 1):
        raise InputError("--part runs in this process: leave out --on and --workers")
    plan = _plan(study)
    with progress(not quiet) as report:
        submitted = run_study(
            plan, on, workers=workers, part=part, retry_failed=retry_failed, announce=report
        )
    for each in submitted:
        click.echo(f"submitted {each.text}; see kgbench sweep status {study}")
    if submitted and not watch:
        return None
    if submitted:
        _wait(plan, None if quiet else 1, lambda: any(each.going() for each in submitted))
    now = _now(plan)
    unfinished = any(state.word != "done" for state in now.states) and part is None
    return _status(now, (), int(unfinished))


@cli_command("as_json", group=sweep_command)
def status_command(study: File, *, by: tuple[str, ...], watch: bool) -> Output:
    """Show what of a study is done, runs, or failed and why.

    \b
    kgbench sweep status study.yaml --watch

    Args:
        study: The study.
        by (OPTION): By these options; with commas.
        watch: Again and again, until no unit is left.
    """  # noqa: D301 (click reads the character, not its escape)
    plan = _plan(study)
    if watch:
        _wait(plan, 2)
        plan = _plan(study)
    return _status(plan, listed(by))


def _status(plan: StudyPlan, axes: Sequence[str], status: int = 0) -> Output:
    report = plan.status(axes)
    return Output([report], plan.to_json(), status, report.verdict)


def _now(plan: StudyPlan) -> StudyPlan:
    """The same study and what is done by now."""
    return type(plan)(plan.study, plan.root)


def _wait(plan: StudyPlan, shown: int | None, going: Callable[[], bool] = lambda: True) -> None:
    """Wait until every unit is done or has failed, or nothing goes on any more.

    Args:
        plan: The study.
        shown: None for nothing, 1 for a line, 2 for the whole status.
        going: Whether something still goes on.
    """
    from rich.console import Console
    from rich.live import Live

    from kgbench.report import to_text

    console = Console(stderr=True, quiet=shown is None)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            now = _now(plan)
            ended = [state for state in now.states if state.word in ("done", "failed")]
            if len(ended) == len(now.states) or not going():
                return
            line = f"{len(ended)} of {len(now.states)} units have ended"
            text = to_text(now.status()) if shown == 2 else line
            live.update(console.render_str(text, markup=False, highlight=False), refresh=True)
            time.sleep(WATCH_S)


@cli_command(
    *("output_dir", "as_json"),
    group=sweep_command,
    output_dir={"flag": "-o --output-dir"},
)
def merge_command(sources: tuple[Path, ...], *, output_dir: Path) -> Output:
    """Put the records of several folders or URLs into one.

    Records of one identity are one record; where their rows contradict each
    other by more than rounding, nothing is copied.

    \b
    kgbench sweep merge node-1/ node-2/ -o all/

    Args:
        sources (FOLDER|URL...): Folders of records.
        output_dir (FOLDER|URL): Where all records go.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.runner.sweeps.merge import merge

    merged = merge(sources, output_dir)
    answer = {"new": merged.new, "known": merged.known}
    return Output([f"{merged.new} records new, {merged.known} known before"], answer)
