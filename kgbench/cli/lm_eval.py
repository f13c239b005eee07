"""`kgbench lm-eval`: lm-eval's command line with kgbench in it."""

from __future__ import annotations

from collections.abc import Sequence

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: Sequence[str]) -> int:
    """Run lm-eval with `--model kgbench` registered and kgbench's tasks on the path.

    All arguments are lm-eval's, but for --continuation lt|none|all.
    """
    from kgbench.harness.launch import launch

    return launch(arguments)
