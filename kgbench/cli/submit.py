"""`kgbench submit`: put recorded runs on the leaderboard."""

from __future__ import annotations

from typing import Any

from kgbench.cli.options import cli_command
from kgbench.cli.output import Output


@cli_command(
    *("name", "code", "localizer", "paper", "open_pr", "root", "records", "dry_run", "as_json"),
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
    open_pr: str | None,
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
    kgbench submit 0123abcd --open-pr https://github.com/OWNER/RESULTS

    Args:
        runs (RUN...): Recorded runs.
        name (NAME): The method's name on the board.  [default: the localizer's]
        code (URL@COMMIT|PACKAGE==VERSION): Where the method's code is.  [default: its installed
            package]
        localizer (FILE.py:CLASS): The method, where it is not installed: the laws are tried on it.
        paper (URL): A paper about the method.
        open_pr (TARGET): Push to a branch of this repository of results, a git URL, a path or
            hf://datasets/ORG/NAME, instead of copying; --root is in it.
        dry_run: Check and show, but copy nothing.
        **options: Folders of the leaderboard and of records.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.submission import submit

    about: dict[str, Any] = {"name": name, "code": code, "localizer": localizer, "paper": paper}
    submitted = submit(*runs, **about, **options, open_pr=open_pr, dry_run=dry_run)
    return Output([str(submitted)], submitted.to_json(), int(not submitted.accepted))
