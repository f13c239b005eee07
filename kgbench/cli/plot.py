"""`kgbench plot`: pictures of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.output import echo_json, write_file
from kgbench.cli.runs import find_run, output_dir
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry
    from kgbench.records import Record

SUFFIXES = (".png", ".svg", ".pdf")


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--kind",
    type=click.Choice(["chart", "curve", "map"]),
    default="chart",
    show_default=True,
    help="What to draw.",
)
@click.option("--metric", metavar="NAME", help="What is drawn.  [default: the first run's]")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to: .png, .svg or .pdf.  [default: KIND-METRIC.png here]",
)
@output_dir
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout: the file and what it shows."
)
def command(
    runs: tuple[str, ...],
    kind: str,
    metric: str | None,
    output: Path | None,
    output_dir: Path,
    as_json: bool,
) -> None:
    """Draw runs, with 95 % intervals.

    One run: its bars, its budget curve, or the map of its scores. Several: bars
    beside each other, curves on one pair of axes, or a line of maps for each.

    \b
    kgbench plot kgbench-results/RUN -o run.pdf
    kgbench plot RUN_A RUN_B --metric logprob -o both.svg
    kgbench plot --kind curve RUN_A RUN_B RUN_C -o curves.svg
    """  # noqa: D301 (click reads the character, not its escape)
    found = [find_run(run, output_dir) for run in runs]
    records = [_on(run, metric or found[0].record.metric) for run in found]
    path = output or Path(f"{kind}-{records[0].metric}.png" if kind != "map" else "map.png")
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"--output {str(path)!r}: expected a name that ends with {', '.join(SUFFIXES)}"
        )
    from kgbench.board.files import picture_bytes

    draw, shown = _picture(records, kind)
    write_file(path, picture_bytes(draw, shown, path.suffix.lower()[1:]))
    if as_json:
        echo_json(
            {
                "path": str(path),
                "kind": kind,
                "metric": records[0].metric,
                "runs": [record.id for record in records],
            }
        )
    else:
        click.echo(f"picture  {path}")


def _on(run: Entry, metric: str) -> Record:
    """The record with its ratios on a metric."""
    from kgbench.stats.scores import check_metric
    from kgbench.stats.summary import rescored

    wanted = check_metric(metric)
    return run.record if run.record.metric == wanted else rescored(run.record, run.facts(), wanted)


def _picture(records: Sequence[Record], kind: str) -> tuple[Callable[[Any], Any], Any]:
    """What draws, and what it draws.

    Raises:
        InputError: The runs have nothing of this kind, or there are too many of them.
    """
    from kgbench import board
    from kgbench.board.grouped import MOST, draw_grouped

    first = records[0]
    if len(records) > MOST:
        raise InputError(
            f"{len(records)} runs in one picture cannot be told apart; give at most {MOST}"
        )
    if kind == "chart":
        return (board.draw_chart, first) if len(records) == 1 else (draw_grouped, records)
    for record in records:
        if not (record.curve if kind == "curve" else record.scores):
            what = "budget curve" if kind == "curve" else "map"
            raise InputError(
                f"{_name(record)} has no {what}, for no sites were ranked; --kind chart draws its "
                "bars"
            )
    if len(records) == 1:
        return (board.draw_curve if kind == "curve" else board.draw_heatmap), first
    for i, record in enumerate(records):
        _check_together(kind, record, records[:i])
    return (
        (board.draw_curves, records)
        if kind == "curve"
        else (board.draw_heatmaps, _with_meanings(records))
    )


def _check_together(kind: str, record: Record, others: Sequence[Record]) -> None:
    """Refuse a run that is not on the facts and prompts of those before it.

    Raises:
        InputError: It is one of them, or has other data or prompts.
    """
    expected = f"--kind {kind} draws runs of the same facts and prompts beside each other"
    for other in others:
        what, that = record.identity, other.identity
        if record.id == other.id:
            raise InputError(
                f"{_name(record)} ({record.id[:8]}) is given twice; give each run once"
            )
        if what.dataset != that.dataset:
            data = " and ".join(f"{of.dataset.name} ({of.dataset.hash[:8]})" for of in (that, what))
            raise InputError(
                f"{_name(other)} and {_name(record)} have different facts, {data}; {expected}"
            )
        if what.prompts != that.prompts:
            prompts = " and ".join(
                ", ".join(f"{name} ({of[:8]})" for name, of in found.prompts.items())
                for found in (that, what)
            )
            raise InputError(
                f"{_name(other)} and {_name(record)} have different prompts, {prompts}; {expected}"
            )


def _with_meanings(records: Sequence[Record]) -> list[tuple[Record, str]]:
    """Each record with what its scores say."""
    from kgbench.localizers import score_meaning

    methods = [record.identity.localizer for record in records]
    return [
        (record, score_meaning(of.name, of.version))
        for record, of in zip(records, methods, strict=True)
    ]


def _name(record: Record) -> str:
    return f"the run of {record.identity.localizer.name} on {record.model}"
