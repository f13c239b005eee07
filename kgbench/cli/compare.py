"""`kgbench compare`: two runs beside each other."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.output import echo_json
from kgbench.cli.runs import find_run, output_dir


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--metric", metavar="NAME", help="What is compared.  [default: A's]")
@click.option(
    "--facts", "all_facts", is_flag=True, help="List all facts that flipped, not the first few."
)
@output_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    first: str, second: str, metric: str | None, all_facts: bool, output_dir: Path, as_json: bool
) -> None:
    """Compare two runs: B − A for every configuration of every prompt.

    Differences are paired over the facts that both runs have, with 95 %
    intervals. What differs in what the runs are of is told first. A and B are
    folders, starts of ids, or entries of the leaderboard.

    \b
    kgbench compare kgbench-results/before kgbench-results/after
    kgbench compare 3f9c 81d2 --metric logprob
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.board import compare_records, comparison_report
    from kgbench.report import to_text

    one, two = (find_run(run, output_dir) for run in (first, second))
    found = compare_records((one.record, one.facts()), (two.record, two.facts()), metric)
    if as_json:
        paths = {"first": str(one.folder), "second": str(two.folder)}
        answer = found.answer()
        echo_json(
            {**answer, **{which: {**answer[which], "path": path} for which, path in paths.items()}}
        )
    else:
        click.echo(to_text(comparison_report(found, all_facts)))
