"""`kgbench leaderboard`: tables and pages of the board's results."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.options import CommandGroup, cli_command
from kgbench.cli.output import Output


@click.group(cls=CommandGroup)
def leaderboard_command() -> None:
    """The leaderboard: tables and pages of its results.

    \b
    kgbench leaderboard build            # LEADERBOARD.md and site/ from results/
    kgbench leaderboard build --check    # every entry, and whether LEADERBOARD.md is of results/
    kgbench view --board leaderboard     # look at it, together with your own runs
    """  # noqa: D301 (click reads the character, not its escape)


@cli_command(
    *("root", "as_json"),
    group=leaderboard_command,
    epilog="Exit status: 0 done; 1 with --check, something differs; 2 wrong input.",
)
def build(*, check: bool, root: Path) -> Output:
    """Write LEADERBOARD.md and site/ from the results.

    The same results give the same bytes on every machine. With --check nothing
    is written: what is wrong in any entry, or differs in LEADERBOARD.md, is listed.
    `kgbench view --board leaderboard` shows the pages.

    Args:
        check: Check every entry, and whether LEADERBOARD.md is what they give.
        root: The leaderboard's folder.
    """
    from kgbench.leaderboard.build import build as build_all

    if check:
        return _checked(root)
    files, changed = build_all(root)
    line = (
        f"{files} files, {changed} of them written or deleted; look at "
        f"{root / 'site' / 'index.html'}"
    )
    return Output([line], {"root": str(root), "files": files, "changed": changed})


def _checked(root: Path) -> Output:
    """What is wrong in the entries, or differs in LEADERBOARD.md."""
    from kgbench.leaderboard.build import RESULTS, differences
    from kgbench.leaderboard.validate import validate

    wrong: list[str] = []
    entries = []
    for checked in validate(root / RESULTS, True) if (root / RESULTS).is_dir() else ():
        entries.append(checked.entry)
        wrong += [str(finding) for finding in checked.findings if finding.refuses]
    if not wrong:  # a damaged entry gives no board to compare with
        wrong = differences(root, [entry for entry in entries if entry is not None])
    fine = f"{len(entries)} entries are in order, and LEADERBOARD.md is what they give"
    answer = {"root": str(root), "entries": len(entries), "wrong": wrong}
    return Output(wrong or [fine], answer, int(bool(wrong)))
