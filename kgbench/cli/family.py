"""`kgbench family`: propose the map of an architecture, and try it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout

import click

from kgbench.cli.options import CommandGroup, ExistingFolder, cli_command
from kgbench.cli.output import Output, json_text, terminal_text


@click.group(cls=CommandGroup)
def family_command() -> None:
    """Maps of where each component lives in the models of an architecture."""


@cli_command(
    "as_json",
    group=family_command,
    short_help="Propose a map for a checkpoint's architecture, and try it.",
    epilog="Exit status: 0 all laws hold; 1 one does not; 2 no map can be proposed, or wrong "
    "input.",
)
def infer(directory: ExistingFolder, *, as_json: bool) -> Output:
    """Propose a family map for a checkpoint, from its config.json alone.

    A small random model of the same architecture is run, and its modules are
    known by what they do. The map goes to stdout; the results of the
    self-test on a small random pair go to stderr. Saved in the recipient's folder as
    kgbench_family.json, it is what kgbench uses for that checkpoint, and is
    tested again on its own weights whenever it is loaded.

    \b
    kgbench family infer path/to/checkpoint > map.json
    mv map.json path/to/checkpoint/kgbench_family.json

    Args:
        directory (DIR): A checkpoint.
        as_json: One JSON object on stdout: the map, and what holds of it.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.models.checkpoints import stored_config
    from kgbench.models.family_map import written
    from kgbench.testing.pico import propose

    config = stored_config(directory, str(directory))
    with redirect_stdout(sys.stderr):  # what a library prints must not mix with the map
        proposal = propose(config)
    laws = [{"law": law, "holds": why is None, "why": why} for law, why in proposal.laws.items()]
    if not as_json:
        for law in laws:
            line = f"holds: {law['law']}"
            if not law["holds"]:
                line = f"does not hold: {law['law']}: {law['why']}"
            click.echo(terminal_text(line), err=True)
        if proposal.holds:
            way = "all configurations in one forward"
            if proposal.packed is not None:
                way = f"one row per configuration: {proposal.packed}"
            click.echo(terminal_text(f"models of this type run {way}"), err=True)
    family = written(proposal.family)
    answer = {
        "family": family,
        "holds": proposal.holds,
        "laws": laws,
        "packed": proposal.packed is None,
        "why_not_packed": proposal.packed,
    }
    return Output([json_text(family)], answer, int(not proposal.holds))
