"""`kgbench ls`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kgbench.cli.catalogues import CATALOGUES, NOTES, Rows
from kgbench.cli.output import echo_json, echo_table
from kgbench.errors import UnknownNameError


def _kinds(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [kind for kind in CATALOGUES if kind.startswith(incomplete)]


@click.command()
@click.argument("kind", metavar="|".join(CATALOGUES), shell_complete=_kinds)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout: name to description; of localizers, name to object.")
def command(kind: str, as_json: bool) -> None:
    """List models, datasets, prompts, localizers or suites."""
    if kind not in CATALOGUES:
        raise UnknownNameError("kind", kind, CATALOGUES)
    rows = CATALOGUES[kind]()
    if kind == "models":
        rows = _with_donors(rows)
    if as_json:
        echo_json(dict(rows))
        return
    _print(kind.removesuffix("s"), rows)
    if kind in NOTES:
        click.echo(f"\n{NOTES[kind]()}")


def _with_donors(models: Rows) -> Rows:
    """Pairs with the donors that were trained here under each, those of recipients without a name last.

    They are no names for --model, and so not among what is completed for it.
    """
    from kgbench.models.trained import trained_donors

    donors = trained_donors()
    under = {name: [donor for donor in donors.values() if donor.model == name] for name in models}
    rows = {name: row for model, about in models.items() for name, row in ((model, about), *((d.name, d.about) for d in under[model]))}
    return {**rows, **{donor.name: donor.about for donor in donors.values()}}


def _print(what: str, rows: Rows) -> None:
    told = {name: row if isinstance(row, Mapping) else {"about": row} for name, row in rows.items()}
    columns = list(dict.fromkeys(column for row in told.values() for column in row)) or ["about"]
    if {row.get("from") for row in told.values()} == {"kgbench"}:
        columns.remove("from")  # it says nothing where no other package has one
    headers = [what, *("what it is" if column == "about" else column for column in columns)]
    echo_table(headers, [[name, *(_text(row[column]) for column in columns)] for name, row in told.items()])


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
