"""Pull requests: a copy of a repository of results, and a commit to a new branch of it.

The repository is one of git, or a data set on the Hugging Face Hub. The copy is gone afterwards.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kgbench.errors import InputError
from kgbench.hub import hub_errors
from kgbench.leaderboard.build import MARKDOWN, make_leaderboard, render_markdown
from kgbench.leaderboard.entries import read_entries
from kgbench.leaderboard.folders import ENTRIES, RESULTS
from kgbench.leaderboard.limits import FACTS
from kgbench.records import write_whole

_DATA_SET = re.compile(
    r"(?:hf://|https://(?:huggingface\.co|hf\.co)/)datasets/([\w.-]+/[\w.-]+?)(?:\.git)?/?"
)
_HOSTED = re.compile(r"(?:https://|ssh://git@|git@)(github\.com|gitlab\.com)[:/](.+?)(?:\.git)?/?")
_PAGES = {
    "github.com": "https://github.com/{}/pull/new/{}",
    "gitlab.com": "https://gitlab.com/{}/-/merge_requests/new?merge_request[source_branch]={}",
}
"""Where a pull request of a branch is opened, by host."""

Propose = Callable[[str, str, Sequence[Path]], str]
"""Commits new entries to a branch: its name, the message and the entries' places to the page of the
pull request, or the branch where no page is known."""

Commit = Callable[[str, str, Sequence[str]], str]
"""The same of files, by their paths in the repository."""


@contextmanager
def repository(target: str | None, root: Path) -> Iterator[tuple[Path, Propose | None]]:
    """A copy of a repository of results.

    Args:
        target: URL or path of a git repository, or `hf://datasets/ORG/NAME`; None of this machine's
            own folder, which is not copied.
        root: The leaderboard's folder in it.

    Yields:
        The leaderboard's folder in the copy, and what commits entries that were added to it.

    Raises:
        InputError: The repository is refused or cannot be reached, or has no results at `root`; git
            or a token is missing.
    """
    if target is None:
        yield root, None
        return
    if root.is_absolute() or ".." in root.parts:
        raise InputError(
            f"--root {str(root)!r} leads out of the repository: give the leaderboard's folder "
            "as seen from its top, or `.`"
        )
    with TemporaryDirectory(prefix="kgbench-") as folder:
        place = Path(folder, "copy")
        if match := _DATA_SET.fullmatch(target):
            commit = _data_set(match[1], place, root)
        elif target.startswith("hf:") or not target:
            raise InputError(
                f"--open-pr {target!r}: expected the URL or path of a git repository, or "
                "hf://datasets/ORG/NAME"
            )
        else:
            commit = _clone(target, place)
        if not (place / root / RESULTS).is_dir():
            raise InputError(
                f"{target} is no leaderboard: expected a folder {(root / RESULTS).as_posix()!r} "
                "in it; give the place in it by --root"
            )

        def propose(branch: str, message: str, entries: Sequence[Path]) -> str:
            files = []
            for method in sorted({entry.parent for entry in entries}):
                files += [method / ENTRIES, method / FACTS]
            summary = place / root / MARKDOWN
            if summary.is_file():  # the board's own check compares it with the results
                board = make_leaderboard(list(read_entries(summary.with_name(RESULTS))))
                write_whole(summary, render_markdown(board).encode())
                files.append(summary)
            return commit(branch, message, [path.relative_to(place).as_posix() for path in files])

        yield place / root, propose


# ---------------------------------------------------------------------------------------------- git


def _clone(target: str, place: Path) -> Commit:
    # Links of the repository become plain files, so that none leads out of the copy.
    plain = ("-c", "core.symlinks=false", "-c", "core.autocrlf=false")
    _git(Path(), "clone", "--quiet", "--depth", "1", *plain, "--", target, str(place))
    return partial(_push, target, place)


def _push(target: str, place: Path, branch: str, message: str, files: Sequence[str]) -> str:
    _git(place, "switch", "--quiet", "-c", branch)
    _git(place, "add", "--", *files)
    _git(place, "commit", "--quiet", "-m", message)
    _git(place, "push", "--quiet", "origin", f"HEAD:refs/heads/{branch}")
    hosted = _HOSTED.fullmatch(target)
    return _PAGES[hosted[1]].format(hosted[2], branch) if hosted else branch


def _git(at: Path, command: str, *arguments: str) -> str:
    """What a command of git prints.

    Raises:
        InputError: It fails, with its reason, or is not installed.
    """
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    line = ["git", command, *arguments]
    try:
        done = subprocess.run(
            line, cwd=at, env=environment, capture_output=True, encoding="utf-8", errors="replace"
        )
    except FileNotFoundError:
        raise InputError("--open-pr of a git repository needs git: install it") from None
    if done.returncode:
        lines = [each.strip() for each in done.stderr.splitlines()]
        reasons = [each for each in lines if each.startswith(("remote:", "!", "fatal:"))]
        reason = "; ".join(reasons or lines[-1:])
        raise InputError(f"git {command} failed, and nothing was submitted: {reason}")
    return done.stdout


# ---------------------------------------------------------------------------------------------- Hub


def _data_set(name: str, place: Path, root: Path) -> Commit:
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    if get_token() is None:
        raise InputError(
            f"no token for {name!r}: `hf auth login` once, or set HF_TOKEN to one that may write"
        )
    api, errors = HfApi(), partial(hub_errors, name, None, "nothing was submitted")
    with errors():
        revision = api.dataset_info(name).sha
        wanted = [(root / each).as_posix() for each in (f"{RESULTS}/*", MARKDOWN)]
        api.snapshot_download(
            name, repo_type="dataset", revision=revision, local_dir=place, allow_patterns=wanted
        )

    def commit(branch: str, message: str, files: Sequence[str]) -> str:
        added = [CommitOperationAdd(file, place / file) for file in files]
        with errors():
            made = api.create_commit(
                *(name, added),
                repo_type="dataset",
                commit_message=message,
                parent_commit=revision,
                create_pr=True,
            )
        return made.pr_url or branch

    return commit
