"""`kgbench submit`: recorded runs as entries of the leaderboard."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Any

import click

from kgbench.cli.leaderboard import root_option
from kgbench.cli.output import echo_json, json_option
from kgbench.cli.runs import output_dir


@click.command(
    epilog="Exit status: 0 done; 1 a run is refused, and nothing was copied; 2 wrong input.",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option(
    "--as",
    "name",
    metavar="NAME",
    help="The method's name on the board.  [default: the localizer's]",
)
@click.option(
    "--code",
    metavar="URL@COMMIT|PACKAGE==VERSION",
    help="Where the method's code is.  [default: its installed package]",
)
@click.option(
    "--localizer",
    metavar="FILE.py:CLASS",
    help="The method, where it is not installed: the laws are tried on it.",
)
@click.option("--paper", metavar="URL", help="A paper about the method.")
@root_option
@output_dir
@click.option("--dry-run", is_flag=True, help="Check and show, but copy nothing.")
@json_option()
def command(runs: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Check recorded runs, copy them into the leaderboard, and show their rank.

    RUN is a run's folder, or the start of its id or of its folder's name, as in
    `kgbench show`; give all runs of a method at once. Only results are copied:
    the method's code comes as an installed package or a pull request of its own.
    The laws of `kgbench check-localizer` are tried on it, and the outcome
    is part of the entry: a method that breaks one, or on which they were not
    tried, has no rank.

    \b
    kgbench submit kgbench-results/*-my_method-* --as "my method" --code my-package==1.0
    kgbench submit 0123abcd --code https://github.com/me/method@89abcdef
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.api.submission import submit

    with redirect_stdout(sys.stderr if as_json else sys.stdout):
        submitted = submit(*runs, **options)
    if as_json:
        echo_json(submitted.to_json())
    else:
        click.echo(str(submitted))
    return 0 if submitted.accepted else 1
