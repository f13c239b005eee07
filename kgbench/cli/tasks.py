"""`kgbench tasks`: the tasks for lm-eval."""

from __future__ import annotations

import click

from kgbench.cli.options import cli_command
from kgbench.cli.output import Output


@click.group()
def tasks_command() -> None:
    """Tasks for the Language Model Evaluation Harness; `kgbench ls tasks` lists them."""


@cli_command(group=tasks_command)
def path() -> Output:
    """Print the folder of the tasks.

    For lm-eval: --include_path "$(kgbench tasks path)".
    """
    from kgbench.harness import tasks_path

    return Output([str(tasks_path())])
