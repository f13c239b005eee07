"""`kgbench sweep`: studies of many evaluations."""

from __future__ import annotations

import time

import click

from kgbench.cli.options import File, cli_command
from kgbench.cli.output import Output
from kgbench.progress import progress

WATCH_S = 5.0
"""How often it is looked whether units have ended."""


@cli_command(
    *("as_json", "quiet"),
    epilog="Exit status: 0 done; 1 some units failed or are left; 2 wrong input; 130 interrupted.",
)
def sweep_command(
    study: File,
    *,
    on: str = "local",
    workers: int = 1,
    retry_failed: bool,
    watch: bool,
    status: bool,
    dry_run: bool,
    quiet: bool,
) -> Output | None:
    """Compute what is left of a study: many evaluations, here, on SLURM or on Ray.

    A study is a YAML file with any options of `kgbench eval` and a matrix of
    those with several values. Each unit is computed once; after any
    interruption, rerun the same command to resume. One failed unit stops
    nothing: --status has its reason.

    \b
    kgbench sweep study.yaml --workers 2
    kgbench sweep study.yaml --on slurm --workers 16 --watch
    kgbench sweep study.yaml --dry-run         # units, what is done, and groups
    kgbench sweep study.yaml --status          # what is done, runs, or failed and why

    Args:
        study: The study.
        on (ENGINE): local, slurm or ray; the study's `engines` has their options.
        workers (N): Groups of units that run at once.
        retry_failed: Compute units that failed again.
        watch: On SLURM: wait until all units have ended.
        status: Only count what is done, runs, or failed and why; compute nothing.
        dry_run: Only show each unit, whether it is done, and its group; compute nothing.
        quiet: The verdict only, with --json not even that.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.records.mirror import folder_of
    from kgbench.runner.sweeps.plan import StudyPlan, run_study
    from kgbench.runner.sweeps.study import read_study

    if status and dry_run:
        raise click.UsageError("--status and --dry-run each show the study: give one of them")
    units = read_study(study)

    def plan_now() -> StudyPlan:
        return StudyPlan(units, folder_of(units.output_dir))

    plan = plan_now()
    if dry_run:
        groups = plan.groups(workers, retry_failed)
        keys = []
        for group in groups:
            keys.append([unit.key for unit in group])
        return Output([plan.report(groups)], {**plan.to_json(), "groups": keys})
    if not status:
        with progress(not quiet) as report:
            pending = run_study(
                plan, on, workers=workers, retry_failed=retry_failed, announce=report
            )
        if pending is not None:
            click.echo(f"submitted {pending.text}; see kgbench sweep {study} --status")
            if not watch:
                return None
            while pending.going() and any(
                state.word not in ("done", "failed") for state in plan_now().states
            ):
                time.sleep(WATCH_S)
        plan = plan_now()
    counts = plan.status()
    unfinished = any(state.word != "done" for state in plan.states)
    return Output([counts], plan.to_json(), int(unfinished and not status), counts.verdict)
