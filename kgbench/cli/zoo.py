"""`kgbench zoo`: the tiny model pairs and how they are made."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.progress import progress
from kgbench.cli.values import completer


@click.group()
def command() -> None:
    """Tiny model pairs: build one from nothing."""


@command.command()
@click.argument("name", shell_complete=completer("models"))
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="Of weights, world and order.  [default: the shipped pair's]")
@click.option(
    "--output-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Where the pair goes.  [default: ./NAME]"
)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def build(name: str, seed: int | None, output_dir: Path | None, quiet: bool) -> None:
    """Pretrain and finetune a tiny pair from nothing (minutes on 2 cores).

    An interrupted build goes on where it stopped when the same command is
    given again.
    """
    from kgbench.models.catalog import entry
    from kgbench.training import zoo

    target = output_dir or Path(name)
    with progress(shown=not quiet) as report:
        zoo.build(name, target, seed=seed, progress=report)
    click.echo(f"pair     {target}")
    click.echo(f"try it   kgbench eval --recipient {target}/recipient --donor sft={target}/sft --dataset {entry(name).dataset}")
