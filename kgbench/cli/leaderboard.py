"""`kgbench leaderboard`: tables and pages of the board's results."""

from __future__ import annotations

from pathlib import Path

import click

from kgbench.cli.options import CommandGroup, Folder, cli_command, refuse_given
from kgbench.cli.output import Output
from kgbench.numbers import count_text


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
def build(
    *,
    check: bool,
    root: Path,
    dataset: Folder | None,
    every_eval_ever: Folder | None,
    space: Folder | None,
) -> Output:
    """Write LEADERBOARD.md and site/ from the results.

    The same results give the same bytes on every machine. With --check nothing
    is written: what is wrong in any entry, or differs in LEADERBOARD.md, is
    listed. With a folder for --dataset, --every-eval-ever or --space only that is
    written. `kgbench view --board leaderboard` shows the pages.

    \b
    kgbench leaderboard build
    kgbench leaderboard build --space my-space

    Args:
        check: Check every entry, and whether LEADERBOARD.md is what they give.
        root: The leaderboard's folder.
        dataset (DIR): Boards, entries and facts as Parquet, for `datasets.load_dataset`.
        every_eval_ever (DIR): A file per entry in the format of Every Eval Ever.
        space (DIR): The pages as a static Space of the Hugging Face Hub.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.build import build as build_all
    from kgbench.leaderboard.build import make_leaderboard, results_folder, write_folder
    from kgbench.leaderboard.entries import read_entries
    from kgbench.leaderboard.exports import FORMATS

    asked = {"dataset": dataset, "every_eval_ever": every_eval_ever, "space": space}
    folders = {name: folder for name, folder in asked.items() if folder is not None}
    if check:
        why = "writes a folder, and --check writes nothing: leave out one of the two"
        refuse_given(("check", "root", "as_json"), why)
        return _checked(root)
    if not folders:
        files, changed = build_all(root)
        site = root / "site" / "index.html"
        line = f"{files} files, {changed} of them written or deleted; look at {site}"
        return Output([line], {"root": str(root), "files": files, "changed": changed})
    board = make_leaderboard(list(read_entries(results_folder(root))))
    lines, written = [], {}
    for name, folder in folders.items():
        made = dict(FORMATS[name](board))
        write_folder(folder, made)
        lines.append(f"{count_text(len(made), 'file')} in {folder}")
        written[str(folder)] = len(made)
    return Output(lines, {"root": str(root), "written": written})


def _checked(root: Path) -> Output:
    """What is wrong in the entries, or differs in LEADERBOARD.md."""
    from kgbench.leaderboard.build import differences, results_folder
    from kgbench.leaderboard.validate import validate

    wrong: list[str] = []
    entries = []
    for checked in validate(results_folder(root), strict=True):
        if checked.entry is not None:
            entries.append(checked.entry)
        wrong += [str(finding) for finding in checked.findings if finding.refuses]
    # A damaged entry gives no board to compare with.
    wrong = wrong or differences(root, entries)
    fine = f"{len(entries)} entries are in order, and LEADERBOARD.md is what they give"
    answer = {"root": str(root), "entries": len(entries), "wrong": wrong}
    return Output(wrong or [fine], answer, int(bool(wrong)))
