"""`kgbench rerun`: a recorded run, run again."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import click

from kgbench.cli.options import settings_of
from kgbench.cli.output import echo_json, progress
from kgbench.cli.runs import again_options, find_run, output_dir, places_of


@click.command(
    epilog="Exit status: 0 it agrees; 1 it differs; 2 it cannot be run here, or wrong input."
)
@click.argument("run", metavar="RUN")
@again_options
@output_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="The verdict only, with --json not even that.")
def command(run: str, **options: Any) -> int:
    """Run a recorded run again from nothing, and compare every row.

    The weights, facts, prompts and code must be those of the record: where one
    is not, it is named. A row agrees where its log-probability does within
    the tolerance, by default 0.001 nats for float32, which is room for the
    rounding of one platform: another device, executor or version of torch may
    round otherwise. Cost is not compared. `kgbench verify` runs a sample of the
    facts; `kgbench rescore` needs no model.

    \b
    kgbench rerun kgbench-results/RUN
    kgbench rerun ENTRY --localizer my_method.py:Mine
    """  # noqa: D301 (click reads the character, not its escape)
    return rerun(run, options)


def rerun(run: str, options: Mapping[str, Any]) -> int:
    """Run a recorded run again and print how it compares.

    Args:
        run: As `find_run` takes it.
        options: Those of the command.

    Returns:
        The exit status.
    """
    found = find_run(run, options["output_dir"])
    from kgbench.report import to_text
    from kgbench.report.repeats import repeat_report, repeated_answer, repeated_sentence
    from kgbench.runner.rerun import reproduce

    with (
        redirect_stdout(sys.stderr if options["as_json"] else sys.stdout),
        progress(shown=not options["quiet"]) as report,
    ):
        places, settings = places_of(options), settings_of(options)
        again = reproduce(
            found.record, found.facts(), places, settings, options["tolerance"], report
        )
    what = f"all {len(set(found.facts()['fact'].to_pylist()))} facts"
    if options["as_json"]:
        echo_json(
            {"id": found.record.id, "path": str(found.folder), **repeated_answer(again, what)}
        )
    else:
        click.echo(
            repeated_sentence(again, what)
            if options["quiet"]
            else to_text(repeat_report(again, what))
        )
    return 0 if again.agrees else 1
