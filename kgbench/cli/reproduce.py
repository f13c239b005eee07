"""`kgbench reproduce`: a recorded run, run again, or a figure of the paper, made again."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from kgbench.cli.again import again_options, places_of, settings_of
from kgbench.cli.figures import is_figure, reproduce_figures
from kgbench.cli.output import echo_json
from kgbench.cli.progress import progress
from kgbench.cli.runs import find_run, output_dir
from kgbench.errors import InputError

OF_FIGURES = ("report", "supplement", "dry_run")
OF_RUNS = (
    *("localizer", "recipient", "donor", "revision", "chat_template", "dataset", "subject", "object", "column", "template"),
    *("batch_size", "tolerance"),
)
"""Options that only one of the two kinds takes; --executor and --device have defaults."""


@click.command(
    short_help="Run a recorded run again, or make a figure of the paper again.",
    epilog="Exit status: 0 it agrees, or the figure is made; 1 it differs; 2 it cannot be run here, or wrong input.",
)
@click.argument("what", metavar="RUN|FIGURE|all")
@again_options
@output_dir
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Figures: where the report goes.  [default: ./kgbench-reproduction/MODEL]",
)
@click.option("--supplement", metavar="FILE|ID", help="Figures: other text for the gentle recipe; a tiny pair has its own.")
@click.option("--dry-run", is_flag=True, help="Figures: only say what it would take: time, memory, disk.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(what: str, output_dir: Path, as_json: bool, quiet: bool, **options: Any) -> int:
    """Run a recorded run again, or make a figure of the paper.

    A run is run again from nothing, and every row compared. The weights,
    facts, prompts and code must be those of the record: where one
    is not, it says which. A row agrees where its log-probability does within
    the tolerance, by default 0.001 nats for float32, which is room for the
    rounding of one platform: another device, executor or version of torch may
    round otherwise. Cost is not compared.

    A figure (figure-2 to figure-15 or their numbers, title_in_prompt,
    movie_title, relation, head, layers, articles, articles_top50, forgetting;
    `all` for all) is made on --model, by default tiny-gemma: donors that are
    missing are trained, evaluations run, and ours printed beside the paper's
    figures, with its claims checked one by one. On a tiny pair smaller data
    stands for the paper's. Whatever is interrupted goes on where it was.

    \b
    kgbench reproduce figure-2 --model tiny-gemma
    kgbench reproduce all --model gemma-2b --supplement Skylion007/openwebtext --dry-run
    kgbench reproduce kgbench-results/RUN
    kgbench reproduce leaderboard/results/RUN --localizer my_method.py:Mine
    """  # noqa: D301 (click reads the character, not its escape)
    said = {**options, "output_dir": output_dir, "as_json": as_json, "quiet": quiet}
    if is_figure(what):
        _refuse(what, "a run", [name for name in OF_RUNS if options[name]])
        return reproduce_figures(what, said)
    _refuse(what, "a figure", [name for name in OF_FIGURES if options[name]])
    return _run(what, output_dir, said)


def _refuse(what: str, kind: str, given: list[str]) -> None:
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(f"{option} says how {kind} is reproduced, and {what!r} is none: leave it out")


def _run(run: str, output_dir: Path, options: dict[str, Any]) -> int:
    found = find_run(run, output_dir)
    from kgbench.board.repeated import render_repeated, repeated_answer
    from kgbench.runner.reproduce import reproduce

    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout), progress(shown=not options["quiet"]) as report:
        places, settings = places_of(options), settings_of(options)
        again = reproduce(found.record, found.facts(), places, settings, options["tolerance"], report)
    what = f"all {len(set(found.facts()['fact'].to_pylist()))} facts"
    if options["as_json"]:
        echo_json({"id": found.record.id, "path": str(found.folder), **repeated_answer(again, what)})
    else:
        click.echo(render_repeated(again, what))
    return 0 if again.agrees else 1
