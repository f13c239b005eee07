"""`kgbench validate`: check results for the board."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgbench.cli.output import json_option
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.leaderboard.validate import CheckedEntry, Finding

SCHEMAS = ("record", "submission", "verification")


@click.command(
    epilog="Exit status: 0 all is well; 1 something is refused; 2 wrong input.",
)
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--strict",
    is_flag=True,
    help="As for the board: known data, models and prompts only, and submission.json beside each "
    "record.",
)
@click.option(
    "--beside",
    type=click.Path(path_type=Path, file_okay=False),
    help="Results on the board already, to compare with.",
)
@click.option(
    "--withdraw",
    multiple=True,
    metavar="NAME",
    help="An entry, or a method, that is taken from --beside; may be repeated.",
)
@click.option(
    "--schema", type=click.Choice(SCHEMAS), help="Print the JSON Schema of a file instead."
)
@json_option()
def command(
    path: Path | None,
    strict: bool,
    beside: Path | None,
    withdraw: tuple[str, ...],
    schema: str | None,
    as_json: bool,
) -> int:
    """Check results: everything that needs no model.

    PATH is a run's folder, its record.json, a folder of such folders, or a pack
    of the leaderboard, alone or with the name of one of its entries after it.
    Every figure is computed anew from the per-fact rows; data, prompts and
    weights are compared with what is shipped. The first line counts the entries
    in order; then a line for each finding, notes last: file, field, what is
    wrong and what was expected. With --strict and --beside, a folder of entries
    is the whole board as it is to be: what is changed or gone is refused.

    \b
    kgbench validate kgbench-results/tiny-gemma-tiny_movies-my_method-0123456789ab
    kgbench validate --strict leaderboard/results
    kgbench validate --strict leaderboard/results/planted/snip.tar.xz
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.validate import validate

    if schema is not None:
        return _print_schema(schema)
    if path is None:
        raise InputError("which results? Give a run's folder, a folder of such, or a pack")
    if withdraw and beside is None:
        raise InputError("--withdraw is for --beside: give the results on the board")
    return _check(validate(path, strict, beside, withdraw), path, strict, as_json)


def _print_schema(name: str) -> int:
    from kgbench.leaderboard.entries import schemas

    click.echo(schemas()[name])
    return 0


def _check(entries: Iterator[CheckedEntry], path: Path, strict: bool, as_json: bool) -> int:
    from kgbench.cli.output import echo_json

    findings: list[Finding] = []
    checked = accepted = 0
    for entry in entries:
        checked, accepted = checked + 1, accepted + entry.accepted
        findings += entry.findings
    if as_json:
        about = {"path": str(path), "strict": strict, "entries": checked, "accepted": accepted}
        echo_json({**about, "findings": [finding.to_json() for finding in findings]})
    else:
        noun = "entry is" if checked == 1 else "entries are"
        click.echo(f"{accepted} of {checked} {noun} in order{'' if strict else ' (not --strict)'}")
        for finding in sorted(findings, key=lambda finding: not finding.refuses):
            click.echo(str(finding))
    return 0 if accepted == checked else 1
