"""`kgbench specificity`: what a graft moves besides the facts that it is meant for."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
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
from kgbench.cli.output import echo_json, progress


@click.command()
@run_options(
    "localizer",
    "localizer_args",
    *PAIR,
    *FACTS,
    "grafts",
    "seed",
    *COMPUTING,
    localizer={"help": "Localizer that intervenes, without random draws."},
    grafts={"help": "With SFT; several with commas.  [default: FE, LT, FE+LT, ALL]"},
    seed={"help": "Random seed for sampling and resampling facts."},
)
@click.option(
    "--known",
    metavar="NAME|FILE",
    help="Facts that finetuning did not teach.  [default: what pretraining taught, where known]",
)
@click.option(
    "--other", metavar="NAME|FILE", help="Facts of another kind.  [default: of a shipped data set]"
)
@sample_size(100, least=2, help="At most so many facts of a kind.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(**options: Any) -> None:
    """Show what grafts move besides the facts that they are meant for.

    KL(p_PRE || p) of the next token, in nats, on the facts that the donor
    learned (target), other questions about the same first entities (sibling),
    facts of the same kind that finetuning did not teach (known), facts of
    another kind (other), and everyday sentences (neutral). All have marked
    regions, so that FE, LT and so on are tokens of theirs too; a graft at a
    region that a text lacks is told absent there. A method that learns from
    prompts learns from the texts of each kind.

    \b
    kgbench specificity --model tiny-gemma --graft FE+LT --prompt headline
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.cli.jobs import trained_lines
    from kgbench.report import to_text
    from kgbench.specificity import Asked, specificity

    check_pair(options)
    spec = spec_of(options)
    asked = Asked(options["facts"], options["known"], options["other"])
    with (
        redirect_stdout(sys.stderr if options["as_json"] else sys.stdout),
        progress(shown=not options["quiet"]) as report,
    ):
        found = specificity(spec, settings_of(options), asked, report)
    if options["as_json"]:
        echo_json(found.to_json())
    else:
        click.echo("\n".join([to_text(found.report()), *trained_lines(found.origins)]))
