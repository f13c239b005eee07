"""`kgbench export`: runs as tables for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgbench.cli.output import write_file
from kgbench.cli.runs import find_run, output_dir

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["csv", "markdown", "latex", "json"]),
    help="Format.  [default: csv]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to.  [default: stdout]",
)
@output_dir
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def command(
    runs: tuple[str, ...], kind: str | None, output: Path | None, output_dir: Path, as_json: bool
) -> None:
    """Write the figures of one or several runs as text.

    CSV has a line per figure, all of them, with interval, number of facts and
    the reason where it is undefined. Markdown and LaTeX have a row per
    configuration. JSON is what `kgbench show --json` prints.

    \b
    kgbench export kgbench-results/RUN --format csv -o run.csv
    kgbench export RUN_A RUN_B --format latex
    """  # noqa: D301 (click reads the character, not its escape)
    if as_json and kind not in (None, "json"):
        raise click.UsageError(
            f"--json is --format json, and --format {kind} is given: give one of them"
        )
    found = [find_run(run, output_dir) for run in runs]
    text = _json(found) if as_json or kind == "json" else _text(found, kind or "csv")
    if output is None:
        click.echo(text, nl=False)
    else:
        write_file(output, text.encode())
        click.echo(f"written to {output}", err=True)


def _text(runs: Sequence[Entry], kind: str) -> str:
    from kgbench.board.export import FORMATS

    return FORMATS[kind]([run.record for run in runs])


def _json(runs: Sequence[Entry]) -> str:
    answers = [run.record.answer(str(run.folder)) for run in runs]
    return (
        json.dumps(
            answers[0] if len(answers) == 1 else {"runs": answers},
            indent=2,
            ensure_ascii=False,
            allow_nan=False,
        )
        + "\n"
    )
