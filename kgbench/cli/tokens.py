"""`kgbench tokens`: what a model says in place of the answer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import groupby
from typing import TYPE_CHECKING, Any

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
from kgbench.cli.output import echo_json
from kgbench.cli.values import grafts_of

if TYPE_CHECKING:
    from kgbench.runner.tokens import Answered, Likely


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
@sample_size(3, least=1, help="Number of facts.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="K",
    help="How many tokens.",
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
    from kgbench.runner.tokens import likeliest

    check_pair(options)
    grafts = grafts_of(options["graft"]) or ("FE", "LT", "FE+LT")
    spec = spec_of(options, grafts=grafts)
    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        found = likeliest(spec, settings_of(options), options["facts"], options["top"])
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

    return (
        f"{'*' if likely.token == target else ' '}{likely.token!r} "
        f"{plain_text(likely.probability, 3)}"
    )
