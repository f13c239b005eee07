"""`kgbench leaderboard`: tables and pages of the board's results."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.options import cli_command
from kgbench.cli.output import Output
from kgbench.errors import InputError


@click.group()
def leaderboard_command() -> None:
    """The leaderboard: tables and pages of its results.

    \b
    kgbench leaderboard build            # LEADERBOARD.md and site/ from results/
    kgbench leaderboard build --serve    # look at it, together with your own runs
    kgbench leaderboard build --check    # every entry, and whether LEADERBOARD.md is of results/
    """  # noqa: D301 (click reads the character, not its escape)


@cli_command(
    *("root", "records", "as_json"),
    group=leaderboard_command,
    epilog="Exit status: 0 done; 1 with --check, something differs; 2 wrong input.",
    port={"type": click.IntRange(0, 65535)},
)
def build(*, check: bool, serve: bool, port: int | None, **options: Path) -> Output | None:
    """Write LEADERBOARD.md and site/ from the results.

    The same results give the same bytes on every machine. With --serve nothing
    is written: the pages are shown in a browser, together with your own runs.
    With --check nothing is written either: what is wrong in any entry, or differs
    in LEADERBOARD.md, is listed.

    \b
    kgbench leaderboard build
    kgbench leaderboard build --serve --results kgbench-results

    Args:
        check: Check every entry, and whether LEADERBOARD.md is what they give.
        serve: Show the pages instead, until Ctrl-C.
        port (N): With --serve, on this machine; 0 takes a free one.  [default: 8765]
        **options: Folders of the leaderboard and of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.build import build as build_all
    from kgbench.leaderboard.build import serve as serve_site

    root, records = options["root"], options["output_dir"]
    if port is not None and not serve:
        raise InputError("--port is for --serve: give both, or none")
    if check and serve:
        raise InputError("--check and --serve both leave the files as they are: give one of them")
    if check:
        return _checked(root)
    if serve:
        local = records if records.is_dir() else None
        serve_site(root, 8765 if port is None else port, local, click.echo)
        return None
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
