"""`kgbench validate`: check recorded runs and entries of the board, without a model."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kgbench.cli.options import Folder, cli_command
from kgbench.cli.output import Output
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.leaderboard.validate import Finding


SCHEMAS = ("record", "submission", "verification")


@cli_command(
    "as_json",
    epilog="Exit status: 0 all is well; 1 something is refused; 2 wrong input.",
    path={"type": click.Path(path_type=Path)},
    schema={"type": click.Choice(SCHEMAS)},
)
def validate_command(
    path: Path | None,
    *,
    strict: bool,
    against: Folder | None,
    withdraw: tuple[str, ...],
    schema: str | None,
) -> Output | None:
    """Check results: everything that needs no model.

    PATH is a run's folder, its record.json, a folder of such folders, or a
    method's folder of the leaderboard, alone or with the name of one of its
    entries after it. Figures are made of the per-fact rows, whatever record.json
    says of them; data, prompts and weights are compared with what is shipped. The first line counts
    the entries in order; then a line for each finding, notes last: file, field,
    what is wrong and what was expected. With --strict and --against, a folder of
    entries is the whole board as it is to be: what is changed or gone is refused.

    \b
    kgbench validate kgbench-results/tiny-gemma-tiny_movies-my_method-0123456789ab
    kgbench validate --strict leaderboard/results
    kgbench validate --strict leaderboard/results/planted/snip

    Args:
        path: What is checked.
        strict: As for the board: known data, models and prompts only, and a submission of each
            record.
        against: Results on the board already, to compare with.
        withdraw (NAME): An entry, or a method, that is taken from --against; may be repeated.
        schema: Print the JSON Schema of a file instead.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.validate import validate

    if schema is not None:
        shipped = files("kgbench.leaderboard").joinpath("schemas", f"{schema}.schema.json")
        click.echo(shipped.read_text("utf-8"), nl=False)
        return None
    if path is None:
        raise InputError("which results? Give a run's folder, a folder of such, or a method's")
    if withdraw and against is None:
        raise InputError("--withdraw is for --against: give the results on the board")
    findings: list[Finding] = []
    checked = accepted = 0
    for entry in validate(path, strict, against, withdraw):
        checked, accepted = checked + 1, accepted + entry.accepted
        findings += entry.findings
    noun = "entry is" if checked == 1 else "entries are"
    lines = [f"{accepted} of {checked} {noun} in order{'' if strict else ' (not --strict)'}"]
    lines += map(str, sorted(findings, key=lambda finding: not finding.refuses))
    answer = {"path": str(path), "strict": strict, "entries": checked, "accepted": accepted}
    answer["findings"] = [finding.to_json() for finding in findings]
    return Output(lines, answer, int(accepted != checked))
