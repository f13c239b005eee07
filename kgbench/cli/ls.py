"""`kgbench ls`: what there is to choose from."""

from __future__ import annotations

import click

from kgbench.cli.catalogues import CATALOGUES
from kgbench.cli.output import echo_json, echo_table
from kgbench.errors import UnknownNameError


def _kinds(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in CATALOGUES if kind.startswith(incomplete)]


@click.command()
@click.argument("kind", metavar="|".join(CATALOGUES), shell_complete=_kinds)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout: name to description.")
def command(kind: str, as_json: bool) -> None:
    """List models, datasets, prompts, localizers or suites."""
    if kind not in CATALOGUES:
        raise UnknownNameError("kind", kind, CATALOGUES)
    rows = CATALOGUES[kind]()
    if as_json:
        echo_json(dict(rows))
    else:
        echo_table([kind.removesuffix("s"), "what it is"], list(rows.items()))
