"""`kgbench show`: tables and figures of recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import File, cli_command
from kgbench.cli.output import Output, write_file

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry
    from kgbench.report import Report


@cli_command(
    *("kind", "output", "records", "as_json"),
    kind={"flag": "--format", "type": click.Choice(["csv", "markdown", "latex"])},
    as_json={"help": "One JSON object, as `kgbench eval --json`."},
)
def show_command(
    runs: tuple[str, ...],
    *,
    kind: str | None,
    output: File | None,
    as_json: bool,
    **options: Path,
) -> Output | None:
    """Print the tables of recorded runs, or write all their figures.

    RUN is its folder, or the start of its id or of its folder's name; for an
    entry of the leaderboard, its submission and verification are printed too.
    CSV has a line per figure, with interval, number of facts and the reason
    where it is undefined. Markdown and LaTeX have a row per configuration.

    \b
    kgbench show kgbench-results/RUN
    kgbench show kgbench-results/RUN --format csv -o run.csv
    kgbench show RUN_A RUN_B --format latex

    Args:
        runs (RUN...): Recorded runs.
        kind: Format.  [default: tables for the terminal]
        output (FILE): Where to.  [default: stdout]
        as_json: One JSON object.
        **options: The folder of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.entries import find_run
    from kgbench.report.export import FORMATS
    from kgbench.report.run_report import record_report

    if as_json and kind is not None:
        raise click.UsageError(f"--json and --format {kind} are two formats: give one of them")
    entries = [find_run(run, options["output_dir"]) for run in runs]
    parts: list[str | Report] = []
    if kind is not None:
        parts = [FORMATS[kind]([run.record for run in entries]).removesuffix("\n")]
    else:
        for i, run in enumerate(entries):
            parts += [*[""] * bool(i), record_report(run.record), *_submission_lines(run)]
    answers = [{**run.record.answer(str(run.folder)), **_submission_json(run)} for run in entries]
    shown = Output(parts, answers[0] if len(answers) == 1 else {"runs": answers})
    if output is None:
        return shown
    write_file(output, f"{shown.text(as_json)}\n".encode())
    click.echo(f"written to {output}", err=True)
    return None


def _submission_json(run: Entry) -> dict[str, Any]:
    """What was submitted with a record, and who ran it again."""
    if run.submission is None:
        return {}
    verification = run.verification
    return {
        "submission": run.submission.model_dump(mode="json", exclude_none=True),
        "verification": None if verification is None else verification.model_dump(mode="json"),
    }


def _submission_lines(run: Entry) -> list[str]:
    from kgbench.leaderboard.entries import SOURCES
    from kgbench.numbers import plain_text

    submission, verification = run.submission, run.verification
    if submission is None:
        return []
    paper = f", {submission.paper}" if submission.paper else ""
    lines = ["", f"submitted as {submission.name}, code {submission.code}{paper}"]
    if verification is None:
        return [*lines, f"{run.badge}: {SOURCES[run.badge]}"]
    flips = (
        f", {verification.changed_hits} of {verification.rows} hits flipped"
        if verification.changed_hits
        else ""
    )
    largest = (
        f"largest difference {plain_text(verification.largest_difference, 2)} of "
        f"{plain_text(verification.tolerance)} nats"
    )
    sample = f"{verification.about} (seed {verification.seed})"
    again = f"{sample} run again by kgbench {verification.kgbench} on {verification.time[:10]}"
    return [*lines, f"{run.badge}: {again}, {largest}{flips}"]
