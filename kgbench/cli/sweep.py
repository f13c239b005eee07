"""`kgbench sweep`: studies of many evaluations."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kgbench.cli.options import FolderOrURL, listed
from kgbench.cli.output import VERDICT_ONLY, echo_json, json_option, quiet_option, working
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.sweeps.plan import StudyPlan

_Command = TypeVar("_Command", bound=Callable[..., Any])

WATCH_S = 5.0
"""How often a status is shown again."""


class _Part(click.ParamType[tuple[int, int]]):
    """`K/N`, the k-th of n parts, from 1."""

    name = "part"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Read it."""
        if isinstance(value, tuple):
            return value
        k, slash, n = str(value).partition("/")
        if not (slash and k.isdigit() and n.isdigit() and 1 <= int(k) <= int(n)):
            self.fail(f"{value!r}: expected K/N with K from 1 to N, such as 3/16", param, ctx)
        return int(k), int(n)


_study = click.argument("study", type=click.Path(path_type=Path, dir_okay=False))
_workers = click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Bundles of units that run at once.",
)


def _plan(study: Path) -> StudyPlan:
    from kgbench.records.mirror import folder_of
    from kgbench.sweeps.plan import StudyPlan
    from kgbench.sweeps.study import read_study

    read = read_study(study)
    return StudyPlan(read, folder_of(read.output_dir))


@click.group(
    epilog="Exit status: 0 done; 1 some units failed or are left; 2 wrong input; 130 interrupted."
)
def command() -> None:
    """Compute studies: many evaluations, here, on SLURM or on Ray.

    A study is a YAML file with any options of `kgbench eval` and a matrix of
    those with several values. Each unit is computed once, whoever launches it
    however often, and the same command goes on after any interruption.
    """


@command.command("plan")
@_study
@_workers
@json_option()
def plan_command(study: Path, workers: int, as_json: bool) -> None:
    """Show what a study would take; no model is loaded.

    \b
    kgbench sweep plan study.yaml --workers 8
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.report import to_text

    plan = _plan(study)
    if as_json:
        echo_json(plan.to_json(workers))
    else:
        click.echo(to_text(plan.report(workers)))


@command.command("run")
@_study
@click.option(
    "--on",
    "engine",
    default="local",
    show_default=True,
    metavar="ENGINE",
    help="local, slurm or ray; the study's `engines` has their options.",
)
@_workers
@click.option(
    "--part", type=_Part(), metavar="K/N", help="Only the K-th of N parts, in this process."
)
@click.option("--retry-failed", is_flag=True, help="Compute units that failed again.")
@click.option("--watch", is_flag=True, help="On SLURM: wait until all units have ended.")
@json_option()
@quiet_option(VERDICT_ONLY)
def run_command(
    study: Path,
    engine: str,
    workers: int,
    part: tuple[int, int] | None,
    retry_failed: bool,
    watch: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Compute what is left of a study.

    One failed unit stops nothing: `kgbench sweep status` has its reason.

    \b
    kgbench sweep run study.yaml --workers 2
    kgbench sweep run study.yaml --on slurm --workers 16 --watch
    kgbench sweep run study.yaml --part 3/16       # in an array task of any scheduler
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.sweeps.plan import StudyPlan, run_study

    if part is not None and (engine != "local" or workers > 1):
        raise InputError("--part runs in this process: leave out --on and --workers")
    plan = _plan(study)
    with working(as_json, quiet) as report:
        submitted = run_study(
            plan, engine, workers=workers, part=part, retry_failed=retry_failed, announce=report
        )
    for each in submitted:
        click.echo(f"submitted {each.text}; see kgbench sweep status {study}", err=as_json)
    if submitted and not watch:
        return 0
    if submitted:
        _wait(plan, None if quiet else 1, lambda: any(each.going() for each in submitted))
    now = StudyPlan(plan.study, plan.root)
    if quiet and not as_json:
        click.echo(now.status().verdict)
    else:
        _show(now, as_json, ())
    return int(any(state.word != "done" for state in now.states) and part is None)


@command.command("status")
@_study
@click.option("--by", multiple=True, metavar="OPTION", help="By these options; with commas.")
@click.option("--watch", is_flag=True, help="Again and again, until no unit is left.")
@json_option()
def status_command(study: Path, by: Sequence[str], watch: bool, as_json: bool) -> None:
    """Show what of a study is done, runs, or failed and why.

    \b
    kgbench sweep status study.yaml --watch
    """  # noqa: D301 (click reads the character, not its escape)
    plan = _plan(study)
    if watch:
        _wait(plan, 2)
    _show(plan if not watch else _plan(study), as_json, listed(by))


def _show(plan: StudyPlan, as_json: bool, axes: Sequence[str]) -> None:
    from kgbench.report import to_text

    if as_json:
        echo_json(plan.to_json())
    else:
        click.echo(to_text(plan.status(axes)))


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
    from kgbench.sweeps.plan import StudyPlan

    console = Console(stderr=True, quiet=shown is None)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            now = StudyPlan(plan.study, plan.root)
            ended = [state for state in now.states if state.word in ("done", "failed")]
            if len(ended) == len(now.states) or not going():
                return
            line = f"{len(ended)} of {len(now.states)} units have ended"
            text = to_text(now.status()) if shown == 2 else line
            live.update(console.render_str(text, markup=False, highlight=False), refresh=True)
            time.sleep(WATCH_S)


@command.command("merge")
@click.argument("sources", metavar="FOLDER|URL...", type=FolderOrURL(), nargs=-1, required=True)
@click.option(
    "-o",
    "--output-dir",
    required=True,
    type=FolderOrURL(),
    metavar="FOLDER|URL",
    help="Where all records go.",
)
@json_option()
def merge_command(sources: Sequence[Path], output_dir: Path, as_json: bool) -> None:
    """Put the records of several folders or URLs into one.

    Records of one identity are one record; where their rows contradict each
    other by more than rounding, nothing is copied.

    \b
    kgbench sweep merge node-1/ node-2/ -o all/
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.sweeps.merge import merge

    merged = merge(sources, output_dir)
    if as_json:
        echo_json({"new": merged.new, "known": merged.known})
    else:
        click.echo(f"{merged.new} records new, {merged.known} known before")
