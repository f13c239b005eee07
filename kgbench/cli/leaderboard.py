"""`kgbench leaderboard`, `kgbench validate` and `kgbench submit`: the board and its entries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import Folder, cli_command
from kgbench.cli.output import Output
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.leaderboard.validate import Finding


@click.group()
def leaderboard_command() -> None:
    """The leaderboard: tables and pages of its results.

    \b
    kgbench leaderboard build            # LEADERBOARD.md and site/ from results/
    kgbench leaderboard build --serve    # look at it, together with your own runs
    kgbench leaderboard check            # every entry, and whether LEADERBOARD.md is of results/
    """  # noqa: D301 (click reads the character, not its escape)


@cli_command(
    *("root", "records", "as_json"),
    group=leaderboard_command,
    port={"type": click.IntRange(0, 65535)},
)
def build(*, serve: bool, port: int | None, **options: Path) -> Output | None:
    """Write LEADERBOARD.md and site/ from the results.

    The same results give the same bytes on every machine. With --serve nothing
    is written: the pages are shown in a browser, together with your own runs.

    \b
    kgbench leaderboard build
    kgbench leaderboard build --serve --results kgbench-results

    Args:
        serve: Show the pages instead, until Ctrl-C.
        port (N): With --serve, on this machine; 0 takes a free one.  [default: 8765]
        **options: Folders of the leaderboard and of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.build import build as build_all
    from kgbench.leaderboard.build import serve as serve_site

    root, records = options["root"], options["output_dir"]
    if port is not None and not serve:
        raise InputError("--port is for --serve: give both, or none")
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


@cli_command(
    "as_json",
    group=leaderboard_command,
    epilog="Exit status: 0 all is as it should be; 1 something differs; 2 wrong input.",
)
def check(*, root: Folder) -> Output:
    """Check every entry, and whether LEADERBOARD.md is what they give."""
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


# ------------------------------------------------------------------------- entries

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
    beside: Folder | None,
    withdraw: tuple[str, ...],
    schema: str | None,
) -> Output | None:
    """Check results: everything that needs no model.

    PATH is a run's folder, its record.json, a folder of such folders, or a
    method's folder of the leaderboard, alone or with the name of one of its
    entries after it. Figures are made of the per-fact rows, whatever record.json
    says of them; data, prompts and weights are compared with what is shipped. The first line counts
    the entries in order; then a line for each finding, notes last: file, field,
    what is wrong and what was expected. With --strict and --beside, a folder of
    entries is the whole board as it is to be: what is changed or gone is refused.

    \b
    kgbench validate kgbench-results/tiny-gemma-tiny_movies-my_method-0123456789ab
    kgbench validate --strict leaderboard/results
    kgbench validate --strict leaderboard/results/planted/snip

    Args:
        path: What is checked.
        strict: As for the board: known data, models and prompts only, and a submission of each
            record.
        beside: Results on the board already, to compare with.
        withdraw (NAME): An entry, or a method, that is taken from --beside; may be repeated.
        schema: Print the JSON Schema of a file instead.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.leaderboard.validate import validate

    if schema is not None:
        from kgbench.leaderboard.entries import schemas

        click.echo(schemas()[schema])
        return None
    if path is None:
        raise InputError("which results? Give a run's folder, a folder of such, or a method's")
    if withdraw and beside is None:
        raise InputError("--withdraw is for --beside: give the results on the board")
    findings: list[Finding] = []
    checked = accepted = 0
    for entry in validate(path, strict, beside, withdraw):
        checked, accepted = checked + 1, accepted + entry.accepted
        findings += entry.findings
    noun = "entry is" if checked == 1 else "entries are"
    lines = [f"{accepted} of {checked} {noun} in order{'' if strict else ' (not --strict)'}"]
    lines += map(str, sorted(findings, key=lambda finding: not finding.refuses))
    answer = {"path": str(path), "strict": strict, "entries": checked, "accepted": accepted}
    answer["findings"] = [finding.to_json() for finding in findings]
    return Output(lines, answer, int(accepted != checked))


@cli_command(
    *("name", "code", "localizer", "paper", "root", "records", "dry_run", "as_json"),
    name={"flag": "--as"},
    epilog="Exit status: 0 done; 1 a run is refused, and nothing was copied; 2 wrong input.",
)
def submit_command(
    runs: tuple[str, ...],
    *,
    name: str | None,
    code: str | None,
    localizer: str | None,
    paper: str | None,
    dry_run: bool,
    **options: Any,
) -> Output:
    """Check recorded runs, copy them into the leaderboard, and show their rank.

    RUN is a run's folder, or the start of its id or of its folder's name, as in
    `kgbench show`; give all runs of a method at once. Only results are copied:
    the method's code comes as an installed package or a pull request of its own.
    The contract tests of `kgbench check-localizer` are run on it, and the
    outcome is part of the entry: methods that fail or skip them are not ranked.

    \b
    kgbench submit kgbench-results/*-my_method-* --as "my method" --code my-package==1.0
    kgbench submit 0123abcd --code https://github.com/OWNER/REPOSITORY@COMMIT

    Args:
        runs (RUN...): Recorded runs.
        name (NAME): The method's name on the board.  [default: the localizer's]
        code (URL@COMMIT|PACKAGE==VERSION): Where the method's code is.  [default: its installed
            package]
        localizer (FILE.py:CLASS): The method, where it is not installed: the laws are tried on it.
        paper (URL): A paper about the method.
        dry_run: Check and show, but copy nothing.
        **options: Folders of the leaderboard and of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.submission import submit

    about: dict[str, Any] = {"name": name, "code": code, "localizer": localizer, "paper": paper}
    submitted = submit(*runs, **about, **options, dry_run=dry_run)
    return Output([str(submitted)], submitted.to_json(), int(not submitted.accepted))
