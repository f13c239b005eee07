"""`kgbench plot`: draw recorded runs."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.options import File, cli_command
from kgbench.cli.output import Output, write_picture


@cli_command(
    *("kind", "metric", "output", "records", "as_json"),
    kind={"type": click.Choice(["chart", "curve", "map"])},
    as_json={"help": "One JSON object on stdout: the file and what it shows."},
)
def plot_command(
    runs: tuple[str, ...],
    *,
    kind: str = "chart",
    metric: str | None,
    output: File | None,
    **options: Path,
) -> Output:
    """Draw runs, with 95 % intervals.

    One run: its bars, its budget curve, or the map of its scores. Several: bars
    side by side, curves on one pair of axes, or a line of maps for each.

    \b
    kgbench plot kgbench-results/RUN -o run.pdf
    kgbench plot RUN_A RUN_B --metric logprob -o both.svg
    kgbench plot --kind curve RUN_A RUN_B RUN_C -o curves.svg

    Args:
        runs (RUN...): Recorded runs.
        kind: What to draw.
        metric (NAME): What is drawn.  [default: the first run's]
        output (FILE): Where to: .png, .svg or .pdf.  [default: KIND-METRIC.png here]
        **options: The folder of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.entries import find_run
    from kgbench.stats.scores import check_metric
    from kgbench.stats.summary import rescored

    entries = [find_run(run, options["output_dir"]) for run in runs]
    metric = check_metric(metric or entries[0].record.metric)
    records = []
    for run in entries:
        same = run.record.metric == metric
        records.append(run.record if same else rescored(run.record, run.facts(), metric))
    path = output or Path(f"{kind}-{records[0].metric}.png" if kind != "map" else "map.png")
    from kgbench.localizers import score_meaning
    from kgbench.report.site_maps import drawing

    write_picture(path, drawing(records, kind, score_meaning), records)
    ids = [record.id for record in records]
    answer = {"path": str(path), "kind": kind, "metric": records[0].metric, "runs": ids}
    return Output([f"picture  {path}"], answer)
