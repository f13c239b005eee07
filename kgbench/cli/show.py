"""`kgbench show`: a run that was recorded."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.eval import RESULTS
from kgbench.cli.output import echo_json


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "--output-dir", type=click.Path(path_type=Path, file_okay=False), default=RESULTS, show_default=True, help="Where records are."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, as `kgbench eval --json`.")
def command(run: str, output_dir: Path, as_json: bool) -> None:
    """Print the table of a recorded run.

    RUN is its folder, or the start of its id or of its folder's name.
    """
    from kgbench.board import render_table
    from kgbench.records import load_record

    stored = load_record(run, output_dir)
    if as_json:
        echo_json(stored.record.answer(str(stored.path)))
    else:
        click.echo(render_table(stored.record))
