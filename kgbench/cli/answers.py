"""`kgbench answers`: scores of whole answers."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from kgbench.cli.jobs import check_asked, evaluation_prompts, pair_and_facts, sample_size
from kgbench.cli.output import echo_json, progress, write_file
from kgbench.cli.values import donors_of, grafts_of, listed
from kgbench.errors import OutputError


@click.command()
@pair_and_facts
@evaluation_prompts
@click.option(
    "--graft",
    multiple=True,
    metavar="GRAFT",
    help="Beside PRE and SFT; several with commas.  [default: FE, LT, FE+LT]",
)
@sample_size(100, least=1, about="How many facts.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Of the choice of facts.",
)
@click.option("--dtype", metavar="DTYPE", help="float32, float64, bfloat16, float16.")
@click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="cpu, cuda, cuda:1, mps."
)
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
    from kgbench.cli.jobs import imports_of, trained_lines
    from kgbench.report import to_text
    from kgbench.runner import Settings, Spec

    check_asked(options)
    target: Path | None = options["csv_file"]
    if target is not None and not target.parent.is_dir():
        raise OutputError(
            f"cannot write {str(target)!r}: there is no folder {str(target.parent)!r}"
        )
    same = {name: options[name] for name in ("model", "recipient", "dataset", "dtype", "seed")}
    grafts = grafts_of(options["graft"]) or ("FE", "LT", "FE+LT")
    spec = Spec(
        **same,
        donors=donors_of(options["donor"]),
        imports=imports_of(options),
        prompts=listed(options["prompt"]),
        grafts=grafts,
    )
    with (
        redirect_stdout(sys.stderr if options["as_json"] else sys.stdout),
        progress(shown=not options["quiet"]) as report,
    ):
        run = score_answers(spec, Settings(device=options["device"]), options["facts"], report)
    prompts = figures_of(run.answers, len(run.candidates))
    if target is not None:
        write_file(target, answers_csv(run).encode())
    if options["as_json"]:
        echo_json(answers_json(run, prompts))
        return
    click.echo("\n".join([to_text(answers_report(run, prompts)), *trained_lines(run.origins)]))
