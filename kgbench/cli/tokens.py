"""`kgbench tokens`: what a model says in place of the answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.jobs import check_asked, evaluation_prompts, pair_and_facts, sample_size
from kgbench.cli.output import echo_json
from kgbench.cli.values import donors_of, grafts_of, listed

if TYPE_CHECKING:
    from kgbench.runner.tokens import Answered, Likely


@click.command()
@pair_and_facts
@evaluation_prompts
@click.option(
    "--graft",
    multiple=True,
    metavar="GRAFT",
    help="Beside PRE and SFT; several with commas.  [default: FE, LT, FE+LT]",
)
@sample_size(3, least=1, about="How many facts.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="K",
    help="How many tokens.",
)
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
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(**options: Any) -> None:
    """Show the likeliest next tokens of a few facts, drawn at random.

    Where a graft misses the answer, this shows what it says instead: another
    name, a name that begins alike, or no name at all. The answer's first token
    is marked, and stands below with its rank where it is not among them.

    \b
    kgbench tokens --model tiny-gemma --graft FE,LT --prompt headline
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.cli.jobs import imports_of
    from kgbench.runner import Settings, Spec
    from kgbench.runner.tokens import likeliest

    check_asked(options)
    same = {name: options[name] for name in ("model", "recipient", "dataset", "dtype", "seed")}
    grafts = grafts_of(options["graft"]) or ("FE", "LT", "FE+LT")
    spec = Spec(
        **same,
        donors=donors_of(options["donor"]),
        imports=imports_of(options),
        prompts=listed(options["prompt"]),
        grafts=grafts,
    )
    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        found = likeliest(
            spec, Settings(device=options["device"]), options["facts"], options["top"]
        )
    if options["as_json"]:
        echo_json([one.to_json() for one in found])
        return
    for _, some in groupby(found, key=lambda one: (one.fact, one.prompt)):
        click.echo(_table(list(some)) + "\n")


def _table(answered: Sequence[Answered]) -> str:
    from tabulate import tabulate

    from kgbench.numbers import plain_text

    first = answered[0]
    rows = [
        [str(place + 1), *(_cell(one.tokens[place], one.target.token) for one in answered)]
        for place in range(len(first.tokens))
    ]
    below = [
        "target",
        *(f"{plain_text(one.target.probability, 3)}, rank {one.rank}" for one in answered),
    ]
    table = tabulate(
        [*rows, below],
        ["", *(one.graft for one in answered)],
        tablefmt="simple",
        disable_numparse=True,
    )
    return f"{first.fact}, {first.prompt}: {first.text} →{first.target.token}\n{table}"


def _cell(likely: Likely, target: str) -> str:
    from kgbench.numbers import plain_text

    return f"{'*' if likely.token == target else ' '}{likely.token!r} {plain_text(likely.probability, 3)}"
