"""The workflows run nothing that a stranger's pull request brings, and hold no secret that it could
read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from submissions import edit, refused, result, write_entry

FOLDER = Path(__file__).parent.parent / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))


def content(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in content(path)["jobs"].values() for step in job["steps"]]


def test_there_are_workflows() -> None:
    """One for results in pull requests, one for the board, one for the pages that are published."""
    assert {path.name for path in FILES} >= {"results.yml", "leaderboard.yml", "pages.yml"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_workflows_may_only_read(path: Path) -> None:
    """No secrets, no token that writes, and no credentials left in the checkout."""
    text, what = path.read_text("utf-8"), content(path)
    assert what["permissions"] == {"contents": "read"}
    assert "secrets" not in re.sub(r"#.*", "", text)
    for job in what["jobs"].values():
        assert path.name == "pages.yml" or "permissions" not in job
    for step in steps(path):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


def test_only_what_is_merged_is_published() -> None:
    """The one job that may write writes pages alone, of the main branch, and runs no script."""
    what = content(FOLDER / "pages.yml")
    assert what[True] == {"push": {"branches": ["main", "master"]}}
    (writes,) = [job for job in what["jobs"].values() if "permissions" in job]
    assert writes["permissions"] == {"pages": "write", "id-token": "write"}
    assert [set(step) for step in writes["steps"]] == [{"uses"}]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_from_outside_is_put_into_a_script(path: Path) -> None:
    """Texts of a pull request, such as the name of its branch, reach a shell as variables only."""
    for step in steps(path):
        assert "${{" not in step.get("run", "")


def test_results_are_checked_by_the_base_branch() -> None:
    """The workflow and all that is installed and run is the base's; the pull request is data."""
    path = FOLDER / "results.yml"
    assert list(content(path)[True]) == ["pull_request_target"]
    assert all(
        "pull_request_target" not in content(other)[True] for other in FILES if other != path
    )
    (checkout,) = [step for step in steps(path) if "checkout" in step.get("uses", "")]
    assert checkout["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
    names = [step.get("run", "") for step in steps(path)]
    install = next(i for i, run in enumerate(names) if "pip install" in run)
    fetch = next(i for i, run in enumerate(names) if "git fetch" in run)
    assert install < fetch
    assert not any("pip install" in run or "python " in run for run in names[fetch:])
    (check,) = [run for run in names if "kgbench validate" in run]
    assert "--strict --beside leaderboard/results" in check and "$LABELS" in check


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_check_sees_what_would_be_merged(tmp_path: Path) -> None:
    """The workflow's commands on a repository whose pull request adds a forged entry, a link, and
    filters of its own.
    """
    repository, theirs = tmp_path / "repository", tmp_path / "theirs"
    results = repository / "leaderboard" / "results"
    write_entry(results / "a", result())
    git(tmp_path, "init", "-q", "repository")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "base")
    git(repository, "config", "filter.hide.smudge", "echo hidden")
    (checkout,) = [
        run
        for step in steps(FOLDER / "results.yml")
        if "worktree add" in (run := step.get("run", ""))
    ]
    variables = {**os.environ, "RUNNER_TEMP": str(tmp_path)}

    def check(name: str) -> list[str]:
        shutil.rmtree(theirs, ignore_errors=True)
        git(repository, "worktree", "prune")
        script = ["bash", "-e", "-c", checkout]
        subprocess.run(
            script, check=True, cwd=repository, env={**variables, "HEAD": name}, capture_output=True
        )
        return refused(theirs / "leaderboard" / "results", beside=results)

    assert check("main") == []
    git(repository, "switch", "-qc", "forged")
    forged = write_entry(results / "b", result(seed=1))
    edit(forged, lambda record: record.update(verdict="The best."))
    (results / "c").symlink_to("/etc")
    (results / "pathways").mkdir()
    (results / "pathways" / "x.tar.xz").write_bytes(b"no pack")
    (repository / ".gitattributes").write_text(
        "leaderboard/results/** filter=hide\nleaderboard/results/c export-ignore\n"
    )
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "forged")
    git(repository, "switch", "-q", "main")
    found = check("forged")
    assert any("b/record.json: verdict" in text or "b/record.json: id" in text for text in found), (
        found
    )
    assert any("c: kind: it is a file" in text for text in found), found
    assert any("x.tar.xz: pack: it " in text for text in found), found
    assert not (theirs / "leaderboard" / "results" / "c").is_symlink()
