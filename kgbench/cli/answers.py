"""`kgbench answers`: scores of whole answers."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from kgbench.cli.options import (
    COMPUTING,
    FACTS,
    PAIR,
    check_pair,
    run_options,
    sample_size,
    settings_of,
    spec_of,
)
from kgbench.cli.output import echo_json, progress, write_file
from kgbench.cli.values import grafts_of
from kgbench.errors import OutputError


@click.command()
@run_options(
    *PAIR,
    *FACTS,
    "grafts",
    "seed",
    *COMPUTING,
    grafts={"help": "With PRE and SFT; several with commas.  [default: FE, LT, FE+LT]"},
    seed={"help": "Random seed for sampling facts."},
)
@sample_size(100, least=1, help="Number of facts.")
@click.option(
    "--csv",
    "csv_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a row per fact there.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout, with a row per fact."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(**options: Any) -> None:
    """Score whole answers under grafts, where `kgbench eval` reads their first token.

    Names that begin alike share their first token, and one name can begin with
    several: " R", " Rob", " Robert". So this gives the log-likelihood of the
    whole answer, its rank among all answers of the data set, and beside the rank
    of its first token the best rank of any token that the name can begin with.

    \b
    kgbench answers --model tiny-gemma --prompt headline --limit 50
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.answers import (
        answers_csv,
        answers_json,
        answers_report,
        figures_of,
        score_answers,
    )
    from kgbench.cli.jobs import trained_lines
    from kgbench.report import to_text

    check_pair(options)
    target: Path | None = options["csv_file"]
    if target is not None and not target.parent.is_dir():
        raise OutputError(
            f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}"
        )
    grafts = grafts_of(options["graft"]) or ("FE", "LT", "FE+LT")
    spec = spec_of(options, grafts=grafts)
    with (
        redirect_stdout(sys.stderr if options["as_json"] else sys.stdout),
        progress(shown=not options["quiet"]) as report,
    ):
        run = score_answers(spec, settings_of(options), options["facts"], report)
    prompts = figures_of(run.answers, len(run.candidates))
    if target is not None:
        write_file(target, answers_csv(run).encode())
    if options["as_json"]:
        echo_json(answers_json(run, prompts))
        return
    click.echo("\n".join([to_text(answers_report(run, prompts)), *trained_lines(run.origins)]))
