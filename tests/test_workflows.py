"""The workflows run nothing that a stranger's pull request brings, and hold no secret that it could
read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from submissions import put, refused, result, sent

import kgbench
from kgbench.cli import command

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent.parent / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))


ROOT = FOLDER.parent.parent
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PINS = dict(
    line.partition(";")[0].strip().split("==")
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if "==" in line
)


def content(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in content(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_workflows_may_only_read(path: Path) -> None:
    """No secrets, no token that writes, and no credentials left in the checkout."""
    text, what = path.read_text("utf-8"), content(path)
    assert what["permissions"] == {"contents": "read"}
    assert "secrets" not in re.sub(r"#.*", "", text)
    for job in what["jobs"].values():
        assert path.name in ("pages.yml", "release.yml") or "permissions" not in job
    for step in steps(path):
        if "checkout" in step.get("uses", ""):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_pinned(path: Path) -> None:
    """Each is named by a commit, with its version beside it: a tag can be moved. Versions of one
    action are the same everywhere.
    """
    uses = re.findall(r"uses: (.*)$", path.read_text("utf-8"), re.M)
    assert uses
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", use) for use in uses)
    everywhere = re.findall(
        r"uses: (.*)@(.*)$", "".join(file.read_text("utf-8") for file in FILES), re.M
    )
    assert len(set(everywhere)) == len({name for name, _ in everywhere})


PROGRAMS = {
    *("python", "kgbench", "make", "git", "cd", "cp", "mkdir", "echo", "exit", "sed", "grep"),
    *("if", "then", "fi", "while", "do", "done", "jq", "sudo"),
}
"""Programs and words of the shell that workflows begin a line with."""


def words_of(run: str) -> list[list[str]]:
    """The lines of a script, as words, without comments and assignments."""
    lines = re.sub(r"\\\n\s*", " ", run).splitlines()
    found = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return [words for words in found if words and not re.match(r"\w+\+?=", words[0])]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_what_workflows_run_exists(path: Path) -> None:
    """Targets of make are in the Makefile, commands of kgbench exist with their options, files that
    are installed are here, and all else is on the list of programs.
    """
    for step in steps(path):
        for words in words_of(step.get("run", "")):
            program = words[0].strip('"').rpartition("/")[2]
            assert program in PROGRAMS, words
            if program == "make":
                assert all(re.search(rf"^{name}:", MAKEFILE, re.M) for name in words[1:])
            if program == "kgbench":
                found: click.Command = command
                rest = [word.strip('"') for word in words[1:]]
                while isinstance(found, click.Group):
                    inner = found.get_command(click.Context(found), rest.pop(0))
                    assert inner is not None, words
                    found = inner
                options = {option for parameter in found.params for option in parameter.opts}
                assert {word for word in rest if word.startswith("--")} <= options, words
            if "-c" in words and "pip" in words:
                assert (ROOT / words[words.index("-c") + 1]).is_file()


def test_tests_run_on_every_system_and_python() -> None:
    """The matrix is the systems and the versions that the package names, and the commands are those
    of `make test`, without its paths of an environment.
    """
    job = content(FOLDER / "tests.yml")["jobs"]["tests"]
    named = [name.split(" :: ") for name in PROJECT["classifiers"]]
    versions = [words[-1] for words in named if words[:2] == ["Programming Language", "Python"]]
    assert job["strategy"]["matrix"] == {
        "system": ["ubuntu-latest", "macos-latest", "windows-latest"],
        "python": [version for version in versions if "." in version],
    }
    assert {words[-1] for words in named if words[0] == "Operating System"} == {
        *("Linux", "MacOS", "Windows")
    }
    oldest = min(job["strategy"]["matrix"]["python"], key=lambda text: int(text.partition(".")[2]))
    assert PROJECT["requires-python"] == f">={oldest}"
    assert job["defaults"] == {"run": {"shell": "bash"}}
    lines = [words for step in job["steps"] for words in words_of(step.get("run", ""))]
    commands = [" ".join(words[words.index("-m") :]).replace('"', "'") for words in lines]
    install = "-m pip install -c constraints.txt"
    arguments = re.search(r"^PYTEST_ARGS \?= (.*)$", MAKEFILE, re.M)
    assert arguments is not None
    example = re.search(r"^EXAMPLE := (.*)$", MAKEFILE, re.M)
    assert example is not None and "$(PIP) --no-deps -e $(EXAMPLE)" in MAKEFILE
    assert "$(PIP) -e '.[test,dev]'" in MAKEFILE
    assert commands == [
        f"{install} -e '.[test,dev]'",
        f"{install} --no-deps -e {example[1]}",
        f"-m pytest {arguments[1]}",
    ]


def test_a_release_is_a_tag_that_was_built_and_tried() -> None:
    """Only tags release; what is published is what the job before built, by a job that runs no
    script, keeps no password and may do nothing but prove who it is.
    """
    what = content(FOLDER / "release.yml")
    assert what[True] == {"push": {"tags": ["v*"]}}
    build, publish = what["jobs"]["build"], what["jobs"]["publish"]
    assert "permissions" not in build and publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build" and publish["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert publish["environment"] == {"name": "pypi"}
    fetched, published = publish["steps"]
    assert "download-artifact@" in fetched["uses"]
    assert "gh-action-pypi-publish@" in published["uses"]
    assert fetched["with"] == build["steps"][-1]["with"] and set(published) == {"uses"}
    names = [step.get("name", "") for step in build["steps"]]
    assert names.index("Build") < names.index("Try the wheel in an environment of its own")
    assert "hatchling" in PINS


@pytest.mark.parametrize(
    ("tag", "heading", "branch", "told"),
    [
        ("v{}", "## {} (2026-01-02)", "main", ""),
        ("v{}9", "## {} (2026-01-02)", "main", "the tag is v{}9, and kgbench/version.py says {}"),
        ("v{}", "## {} (unreleased)", "main", "CHANGELOG.md has no heading '## {} (YYYY-MM-DD)'"),
        ("v{}", "## {} (2026-01-02)", "side", "the tag is not of the main branch"),
    ],
)
def test_a_tag_is_the_version(
    tag: str, heading: str, branch: str, told: str, tmp_path: Path
) -> None:
    """The workflow's own script passes the version's tag on main, dated in the change log, and says
    what is wrong with others.
    """
    (script,) = [
        step["run"] for step in steps(FOLDER / "release.yml") if "version=" in step.get("run", "")
    ]
    version = kgbench.__version__
    upstream, clone = tmp_path / "upstream", tmp_path / "clone"
    git(tmp_path, "init", "-q", "upstream")
    (upstream / "kgbench").mkdir()
    shutil.copy(ROOT / "kgbench" / "version.py", upstream / "kgbench")
    (upstream / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading.format(version)}\n")
    git(upstream, "add", ".")
    git(upstream, "commit", "-qm", "base")
    git(tmp_path, "clone", "-q", "upstream", "clone")
    if branch == "side":
        git(clone, "commit", "-qm", "side", "--allow-empty")
    environment = {**os.environ, "GITHUB_REF_NAME": tag.format(version)}
    line = ["bash", "-e", "-c", script]
    done = subprocess.run(line, cwd=clone, env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == (f"::error::{told.format(version, version)}" if told else "")
    assert done.returncode == bool(told), done.stderr


def test_hooks_before_a_commit_are_those_of_lint() -> None:
    """`.pre-commit-config.yaml` runs ruff's check and format, of the version that is pinned."""
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert repo["repo"] == "local"
    assert [hook["entry"].partition(" --")[0] for hook in repo["hooks"]] == [
        "ruff check",
        "ruff format",
    ]
    assert all(
        hook["additional_dependencies"] == [f"ruff=={PINS['ruff']}"] for hook in repo["hooks"]
    )


def test_no_system_changes_line_ends() -> None:
    """Git leaves all files as they are: hashes of data sets and templates are of their bytes."""
    lines = (ROOT / ".gitattributes").read_text("utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["* -text"]


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
    assert "--strict --against leaderboard/results" in check and "$LABELS" in check


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
    put(results, sent(result()))
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
    forged = sent(result(seed=1))
    forged.record.update(verdict="The best.")
    put(results, forged)
    (results / "c").symlink_to("/etc")
    (results / "pathways" / "x").mkdir()
    (results / "pathways" / "x" / "entries.jsonl.xz").write_bytes(b"no list")
    (repository / ".gitattributes").write_text(
        "leaderboard/results/** filter=hide\nleaderboard/results/c export-ignore\n"
    )
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "forged")
    git(repository, "switch", "-q", "main")
    found = check("forged")
    changed = f"{forged.name}/record.json: verdict: it is 'The best.'; expected no such field"
    assert changed in found
    assert any("c: kind: it is no such folder" in text for text in found), found
    assert any("x/entries.jsonl.xz: list: it " in text for text in found), found
    assert not (theirs / "leaderboard" / "results" / "c").is_symlink()
