"""`kgbench specificity`: what a graft moves besides the facts that it is meant for."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any

import click

from kgbench.cli.jobs import check_asked, evaluation_prompts, pair_and_facts, sample_size
from kgbench.cli.output import echo_json, progress
from kgbench.cli.values import arguments_of, completer, donors_of, grafts_of, listed


@click.command()
@pair_and_facts
@evaluation_prompts
@click.option(
    "--localizer",
    default="dynamic_graft",
    show_default=True,
    metavar="NAME|FILE.py:CLASS",
    help="A method that intervenes, without draws.",
    shell_complete=completer("localizers"),
)
@click.option(
    "--localizer-arg",
    multiple=True,
    metavar="KEY=VALUE",
    help="Argument of the localizer; may be repeated.",
)
@click.option(
    "--graft",
    multiple=True,
    metavar="GRAFT",
    help="Beside SFT; several with commas.  [default: FE, LT, FE+LT, ALL]",
)
@click.option(
    "--known",
    metavar="NAME|FILE",
    help="Facts that finetuning did not teach.  [default: what pretraining taught, where known]",
)
@click.option(
    "--other", metavar="NAME|FILE", help="Facts of another kind.  [default: of a shipped data set]"
)
@sample_size(100, least=2, about="At most so many facts of a kind.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Of the choice and the resampling.",
)
@click.option("--dtype", metavar="DTYPE", help="float32, float64, bfloat16, float16.")
@click.option(
    "--device", default="auto", show_default=True, metavar="DEVICE", help="cpu, cuda, cuda:1, mps."
)
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
    from kgbench.cli.jobs import imports_of, trained_lines
    from kgbench.report import to_text
    from kgbench.runner import Settings, Spec
    from kgbench.specificity import Asked, specificity

    check_asked(options)
    same = {
        name: options[name]
        for name in ("model", "recipient", "dataset", "dtype", "seed", "localizer")
    }
    spec = Spec(
        **same,
        localizer_args=arguments_of(
            options["localizer"], [options["localizer"]], options["localizer_arg"]
        ),
        donors=donors_of(options["donor"]),
        imports=imports_of(options),
        prompts=listed(options["prompt"]),
        grafts=grafts_of(options["graft"]),
    )
    asked = Asked(options["facts"], options["known"], options["other"])
    with (
        redirect_stdout(sys.stderr if options["as_json"] else sys.stdout),
        progress(shown=not options["quiet"]) as report,
    ):
        found = specificity(spec, Settings(device=options["device"]), asked, report)
    if options["as_json"]:
        echo_json(found.to_json())
    else:
        click.echo("\n".join([to_text(found.report()), *trained_lines(found.origins)]))
