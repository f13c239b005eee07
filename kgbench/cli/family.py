"""`kgbench family`: maps of where each component lives in the models of an architecture."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.output import echo_json, terminal_text
from kgbench.errors import ModelError

if TYPE_CHECKING:
    from kgbench.testing.proposal import Proposal


@click.group()
def command() -> None:
    """Maps of where each component lives in the models of an architecture."""


@command.command(
    short_help="Propose a map for a checkpoint's architecture, and try it.",
    epilog="Exit status: 0 all laws hold; 1 one does not; 2 no map can be proposed, or wrong "
    "input.",
)
@click.argument(
    "directory", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON object on stdout: the map, and what holds of it.",
)
def infer(directory: Path, as_json: bool) -> int:
    """Propose a family map for a checkpoint, from its config.json alone.

    A small random model of the same architecture is run, and its modules are
    known by what they do. The map goes to stdout; what the self-test says of
    it on a small random pair to stderr. Saved in the recipient's folder as
    kgbench_family.json, it is what kgbench uses for that checkpoint, and is
    tested again on its own weights whenever it is loaded.

    \b
    kgbench family infer path/to/checkpoint > map.json
    mv map.json path/to/checkpoint/kgbench_family.json
    """  # noqa: D301 (click reads the character, not its escape)
    config = _config(directory)
    from kgbench.models.family import written
    from kgbench.testing.proposal import propose

    with redirect_stdout(sys.stderr):  # what a library prints must not mix with the map
        proposal = propose(config)
    if as_json:
        echo_json(
            {"family": written(proposal.family), "holds": proposal.holds, **_verdicts(proposal)}
        )
    else:
        echo_json(written(proposal.family))
        _tell(proposal)
    return 0 if proposal.holds else 1


def _config(directory: Path) -> dict[str, Any]:
    try:
        config = json.loads((directory / "config.json").read_text("utf-8"))
    except OSError as error:
        raise ModelError(
            f"{str(directory)!r} holds no config.json that can be read; give the folder of a "
            "checkpoint"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"the config.json in {str(directory)!r} does not read: {error}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"the config.json in {str(directory)!r} names no model_type")
    return config


def _verdicts(proposal: Proposal) -> dict[str, Any]:
    laws = [{"law": law, "holds": why is None, "why": why} for law, why in proposal.laws.items()]
    return {"laws": laws, "packed": proposal.packed is None, "why_not_packed": proposal.packed}


def _tell(proposal: Proposal) -> None:
    for law, why in proposal.laws.items():
        told = f"holds: {law}" if why is None else f"does not hold: {law}: {why}"
        click.echo(terminal_text(told), err=True)
    if proposal.holds:
        way = (
            "all configurations in one forward"
            if proposal.packed is None
            else f"one row per configuration: {proposal.packed}"
        )
        click.echo(f"models of this type run {way}", err=True)
