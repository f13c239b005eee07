"""`kgbench leaderboard`: write the board from its entries, check it, look at it."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.output import echo_json
from kgbench.cli.runs import output_dir

root_option = click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("leaderboard"),
    show_default=True,
    help="The leaderboard's folder, which holds results/.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")


@click.group()
def command() -> None:
    """The leaderboard: what the results in it say, as tables and pages.

    \b
    kgbench leaderboard build     # LEADERBOARD.md and site/ from results/
    kgbench leaderboard check     # every entry, and whether LEADERBOARD.md is what results/ gives
    kgbench leaderboard serve     # look at it, with your own runs beside
    kgbench leaderboard pack      # entries that are folders into packs
    """  # noqa: D301 (click reads the character, not its escape)


@command.command()
@root_option
@json_option
def build(root: Path, as_json: bool) -> int:
    """Write LEADERBOARD.md and site/ from the results.

    The same results give the same bytes on every machine.
    """
    from kgbench.leaderboard.build import build as build_all

    files, changed = build_all(root)
    if as_json:
        echo_json({"root": str(root), "files": files, "changed": changed})
    else:
        click.echo(f"{files} files, {changed} of them written or deleted; look at {root / 'site' / 'index.html'}")
    return 0


@command.command(epilog="Exit status: 0 all is as it should be; 1 something differs; 2 wrong input.")
@root_option
@json_option
def check(root: Path, as_json: bool) -> int:
    """Check every entry, and whether LEADERBOARD.md is what they give."""
    from kgbench.leaderboard.build import RESULTS as ENTRIES
    from kgbench.leaderboard.build import differences
    from kgbench.leaderboard.validate import validate

    wrong, entries = [], 0
    if (root / ENTRIES).is_dir():
        for entry in validate(root / ENTRIES, strict=True):
            entries += 1
            wrong += [str(finding) for finding in entry.findings if finding.refuses]
    # A damaged entry gives no board to compare with, and what is wrong with it is told already.
    wrong += [] if wrong else differences(root)
    if as_json:
        echo_json({"root": str(root), "entries": entries, "wrong": wrong})
    else:
        click.echo("\n".join(wrong or [f"{entries} entries are in order, and LEADERBOARD.md is what they give"]))
    return 1 if wrong else 0


@command.command()
@root_option
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="On this machine; 0 takes a free one.")
@output_dir
def serve(root: Path, port: int, output_dir: Path) -> int:
    """Show the pages in a browser, with your own runs beside the board."""
    from kgbench.leaderboard.serve import serve as serve_site

    serve_site(root, port, output_dir if output_dir.is_dir() else None, click.echo)
    return 0


@command.command()
@root_option
@json_option
def pack(root: Path, as_json: bool) -> int:
    """Move entries that are folders into packs, one for each method and board.

    The files of each entry stay as they are: `tar xf PACK` unpacks them. Run
    `kgbench leaderboard check` first, for nothing is judged here.
    """
    from kgbench.leaderboard.submit import pack_loose

    packs = pack_loose(root)
    if as_json:
        echo_json({"root": str(root), "packs": [str(path) for path in packs]})
    else:
        click.echo("\n".join(map(str, packs)) or "no entry is a folder")
    return 0
