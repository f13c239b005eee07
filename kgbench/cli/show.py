"""`kgbench show`: tables, figures and pictures of recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import File, cli_command
from kgbench.cli.output import SUFFIXES, Output, write_file, write_picture

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry
    from kgbench.records import Record
    from kgbench.report import Report

PICTURES = ("chart", "curve", "map")


@cli_command(
    *("kind", "metric", "output", "records", "as_json"),
    kind={"flag": "--format", "type": click.Choice(["csv", "markdown", "latex", *PICTURES])},
    as_json={"help": "One JSON object, as `kgbench eval --json`; of a picture, what it shows."},
)
def show_command(
    runs: tuple[str, ...],
    *,
    kind: str | None,
    metric: str | None,
    output: File | None,
    as_json: bool,
    **options: Path,
) -> Output | None:
    """Print the tables of recorded runs, write all their figures, or draw them.

    RUN is its folder, or the start of its id or of its folder's name; for an
    entry of the leaderboard, its submission and verification are printed too.
    CSV has a line per figure, with interval, number of facts and the reason
    where it is undefined. Markdown and LaTeX have a row per configuration.

    A picture of one run is its bars, its budget curve, or the map of its
    scores; of several, bars side by side, curves on one pair of axes, or a line
    of maps for each. All have 95 % intervals.

    \b
    kgbench show kgbench-results/RUN
    kgbench show kgbench-results/RUN --format csv -o run.csv
    kgbench show RUN_A RUN_B --metric logprob -o both.svg
    kgbench show RUN_A RUN_B RUN_C --format curve -o curves.pdf

    Args:
        runs (RUN...): Recorded runs.
        kind: Format.  [default: tables for the terminal, or of a .png, .svg or .pdf a chart]
        metric (NAME): Metric of ratios and pictures.  [default: each run's, in pictures the first's]
        output (FILE): Where to.  [default: stdout, or KIND-METRIC.png here]
        as_json: One JSON object.
        **options: The folder of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.entries import find_run
    from kgbench.report.export import FORMATS
    from kgbench.report.run_report import record_report
    from kgbench.stats import rescored
    from kgbench.stats.scores import check_metric

    if output is not None and output.suffix.lower() in SUFFIXES:
        if kind in FORMATS:
            raise click.UsageError(f"--format {kind} is text, and {output} is named as a picture")
        kind = kind or "chart"
    if as_json and kind in FORMATS:
        raise click.UsageError(f"--json and --format {kind} are two formats: give one of them")
    entries = [find_run(run, options["output_dir"]) for run in runs]
    shared = entries[0].record.metric if kind in PICTURES else None
    wanted = check_metric(metric) if metric else shared
    records = []
    for run in entries:
        stored = metric is None and wanted in (None, run.record.metric)
        records.append(run.record if stored else rescored(run.record, run.facts(), wanted))
    if kind in PICTURES:
        return _drawn(records, kind, output)
    parts: list[str | Report] = []
    if kind is not None:
        parts = [FORMATS[kind](records).removesuffix("\n")]
    for run, record in zip(entries, records, strict=True) if kind is None else ():
        parts += [*[""] * bool(parts), record_report(record), *_submission_lines(run)]
    answers = []
    for run, record in zip(entries, records, strict=True):
        answers.append({**record.answer(str(run.folder)), **_submission_json(run)})
    shown = Output(parts, answers[0] if len(answers) == 1 else {"runs": answers})
    if output is None:
        return shown
    write_file(output, f"{shown.text(as_json)}\n".encode())
    click.echo(f"written to {output}", err=True)
    return None


def _drawn(records: Sequence[Record], kind: str, output: Path | None) -> Output:
    """Draw records into a file."""
    from kgbench.localizers import score_meaning
    from kgbench.report.site_maps import drawing

    metric = records[0].metric
    path = output or Path("map.png" if kind == "map" else f"{kind}-{metric}.png")
    write_picture(path, drawing(records, kind, score_meaning), records)
    ids = [record.id for record in records]
    answer = {"path": str(path), "kind": kind, "metric": metric, "runs": ids}
    return Output([f"picture  {path}"], answer)


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

    submission, verification = run.submission, run.verification
    if submission is None:
        return []
    paper = f", {submission.paper}" if submission.paper else ""
    how = SOURCES[run.badge]
    if verification is not None:
        how = (
            f"{verification.about} (seed {verification.seed}) run again by kgbench "
            f"{verification.kgbench} on {verification.time[:10]}"
        )
    lines = [f"submitted as {submission.name}, code {submission.code}{paper}"]
    return ["", *lines, f"{run.badge}: {how}"]
