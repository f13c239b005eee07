"""`kgbench submit --open-pr`: to a remote of git, and to a server that answers as the Hub does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants
from submissions import put, result, sent
from test_submit import Place

from kgbench.leaderboard.build import build, make_leaderboard, render_markdown
from kgbench.leaderboard.entries import read_entries
from kgbench.leaderboard.folders import ENTRIES
from kgbench.leaderboard.limits import FACTS
from kgbench.leaderboard.pull_requests import repository
from kgbench.records import LocalizerRef

ALL = LocalizerRef(name="all", version="1")
METHOD = "leaderboard/results/pathways/all"
FILES = {f"{METHOD}/{ENTRIES}", f"{METHOD}/{FACTS}", "leaderboard/LEADERBOARD.md"}
DATA_SET = "ada/results"
TOKEN = "hf_" + "secret" * 5


def git(at: Path, *arguments: str) -> str:
    line = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
    done = subprocess.run(line, cwd=at, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Runs; what is submitted goes to another place than the board of this machine."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@example.org")
    monkeypatch.chdir(tmp_path)
    made = Place(tmp_path)
    made.root = Path("leaderboard")
    return made


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A repository with a board of one entry."""
    work = tmp_path / "work"
    put(work / "leaderboard" / "results", sent(result()))
    build(work / "leaderboard")
    (work / ".gitignore").write_text("site/\n.lock\n")
    git(tmp_path, "init", "-q", "-b", "main", str(work))
    git(work, "add", ".")
    git(work, "commit", "-qm", "board")
    return work


@pytest.fixture
def remote(tmp_path: Path, work: Path) -> Path:
    """A bare repository with it."""
    git(tmp_path, "clone", "-q", "--bare", str(work), "remote.git")
    return tmp_path / "remote.git"


def test_git_gets_the_files_of_the_entry_on_a_branch(
    place: Place, remote: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One commit, of the method's two files and the summary that the entries give; main stays as
    it was, and so does the folder of this machine.
    """
    run = place.run(ALL)
    assert place.submit(run, "--open-pr", str(remote), "--dry-run") == 0
    assert git(remote, "branch", "--format=%(refname:short)") == "main"
    assert place.submit(run, "--open-pr", str(remote), "--json") == 0
    answer = json.loads(capsys.readouterr().out.partition("(--dry-run)\n")[2])
    branch = f"results-all-{run[:8]}"
    assert answer["pull_request"] == branch and not answer["steps"]
    assert git(remote, "diff", "--name-only", "main", branch).splitlines() == sorted(FILES)
    assert git(remote, "log", "--format=%s", f"main..{branch}") == "Leaderboard: results of all"
    git(tmp_path, "clone", "-q", "-b", branch, str(remote), "there")
    entries = list(read_entries(tmp_path / "there/leaderboard/results"))
    assert {entry.method for entry in entries} == {"all", "dynamic_graft"}
    summary = (tmp_path / "there/leaderboard/LEADERBOARD.md").read_text("utf-8")
    assert summary == render_markdown(make_leaderboard(entries))
    assert not Path("leaderboard").exists()


def test_what_is_refused_is_not_pushed(
    place: Place, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An entry that is there, by the remote's own results; a hook's refusal comes with its text."""
    there, new = place.run(), place.run(ALL)
    assert place.submit(there, "--open-pr", str(remote)) == 1
    assert "each result once" in capsys.readouterr().out
    hook = remote / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho closed until May >&2\nexit 1\n")
    hook.chmod(0o755)
    assert place.submit(new, "--open-pr", str(remote)) == 2
    assert "git push failed, and nothing was submitted: remote: closed until May" in (
        capsys.readouterr().err
    )
    assert git(remote, "branch", "--format=%(refname:short)") == "main"


@pytest.mark.parametrize(
    ("target", "root", "why"),
    [
        ("missing", "leaderboard", "fatal: repository 'missing' does not exist"),
        ("work", "elsewhere", "expected a folder 'elsewhere/results' in it"),
        ("work", "../work", "leads out of the repository"),
        ("work", "/tmp", "leads out of the repository"),
        ("hf://ada/results", "leaderboard", "or hf://datasets/ORG/NAME"),
        ("hf://datasets/ada/results", "leaderboard", "no token for 'ada/results'"),
    ],
)
def test_targets_that_are_none(
    place: Place,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    root: str,
    why: str,
) -> None:
    """One line each, and exit status 2."""
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    place.root = Path(root)
    assert place.submit(place.run(ALL), "--open-pr", target) == 2
    assert why in capsys.readouterr().err


def test_links_of_a_repository_lead_nowhere(place: Place, work: Path, tmp_path: Path) -> None:
    """A board that is a link to a folder outside is no folder in the copy."""
    (tmp_path / "outside" / "results").mkdir(parents=True)
    git(work, "rm", "-rq", "leaderboard")
    (work / "board").symlink_to(tmp_path / "outside")
    git(work, "add", "board")
    git(work, "commit", "-qm", "link")
    place.root = Path("board")
    assert place.submit(place.run(ALL), "--open-pr", "work") == 2


class Hub(ThreadingHTTPServer):
    """The Hub's interface, as far as a pull request to a data set needs it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.sha, self.refuses = files, "a" * 40, False
        self.commits: list[tuple[str, str | None, list[dict[str, object]]]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Hub

    def _send(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        resolved = path.removeprefix(f"/datasets/{DATA_SET}/resolve/{self.server.sha}/")
        if resolved in self.server.files:
            content = self.server.files[resolved]
            etag = f'"{sha1(content).hexdigest()}"'
            self._send(content, ETag=etag, X_Repo_Commit=self.server.sha)
        elif path.startswith(f"/api/datasets/{DATA_SET}/tree/"):
            files = self.server.files.items()
            tree = [{"type": "file", "path": n, "size": len(c), "oid": "c" * 40} for n, c in files]
            self._send(json.dumps(tree).encode())
        elif path.startswith(f"/api/datasets/{DATA_SET}"):
            self._send(json.dumps({"id": DATA_SET, "sha": self.server.sha}).encode())
        else:
            self._send(b"{}", 404)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if "/preupload/" in self.path:
            asked = json.loads(content)["files"]
            modes = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in asked]
            self._send(json.dumps({"files": modes}).encode())
        elif self.server.refuses:
            self._send(b"{}", 403, X_Error_Message="you may not write here")
        else:
            lines = list(map(json.loads, content.splitlines()))
            self.server.commits.append((self.path, self.headers["Authorization"], lines))
            page, oid = f"{self.server.address}/datasets/{DATA_SET}", "b" * 40
            made = {"commitUrl": f"{page}/commit/{oid}", "commitOid": oid}
            made["pullRequestUrl"] = f"{page}/discussions/1"
            self._send(json.dumps(made).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(work: Path) -> Iterator[Hub]:
    """A data set with the board, and something else that nobody has to download."""
    board = work / "leaderboard"
    files = {
        path.relative_to(work).as_posix(): path.read_bytes()
        for path in (*board.glob("results/*/*/*"), board / "LEADERBOARD.md")
    }
    with Hub(files) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_hub_gets_a_pull_request(place: Place, hub: Hub, tmp_path: Path) -> None:
    """One commit with `create_pr`, onto the revision that was checked, of the same files; the token
    is sent, and shown nowhere.
    """
    settings = {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
    environment = {**os.environ, **settings, "HF_HOME": str(tmp_path / "home")}
    line = ["submit", place.run(ALL), "--open-pr", f"hf://datasets/{DATA_SET}"]
    line += ["--results", str(place.store.root)]
    done = subprocess.run(
        [sys.executable, "-m", "kgbench", *line], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"pull request  {hub.address}/datasets/{DATA_SET}/discussions/1" in done.stdout
    assert TOKEN not in done.stdout + done.stderr
    ((path, token, (header, *added)),) = hub.commits
    assert path == f"/api/datasets/{DATA_SET}/commit/main?create_pr=1"
    assert token == f"Bearer {TOKEN}"
    assert header["value"]["summary"] == "Leaderboard: results of all"  # type: ignore[index]
    assert header["value"]["parentCommit"] == hub.sha  # type: ignore[index]
    for value in (line["value"] for line in added):
        there = tmp_path / "there" / value["path"]  # type: ignore[index]
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(b64decode(value["content"]))  # type: ignore[index]
    assert {line["value"]["path"] for line in added} == FILES  # type: ignore[index]
    (entry,) = read_entries(tmp_path / "there/leaderboard/results")
    assert entry.method == "all" and entry.rows().num_rows


def test_what_the_hub_refuses(
    place: Place, hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line without the token: a data set that is not there, and a commit that it does not take;
    what its results refuse is not sent.
    """
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    files = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.refuses = True
    assert place.submit(place.run(ALL), "--open-pr", "hf://datasets/ada/other") == 2
    assert "'ada/other'" in capsys.readouterr().err
    assert place.submit(place.run(), "--open-pr", f"hf://datasets/{DATA_SET}") == 1
    assert place.submit(place.run(ALL), "--open-pr", f"hf://datasets/{DATA_SET}") == 2
    error = capsys.readouterr().err
    assert TOKEN not in error
    assert f"'{DATA_SET}'" in error.splitlines()[-1] and "you may not write here" in error
    assert not hub.commits


@pytest.mark.parametrize(
    ("target", "page"),
    [
        ("https://github.com/ada/board.git", "https://github.com/ada/board/pull/new/b"),
        ("git@github.com:ada/board.git", "https://github.com/ada/board/pull/new/b"),
        ("https://example.org/ada/board.git", "b"),
    ],
)
def test_the_page_of_a_known_host(
    place: Place,
    remote: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    page: str,
) -> None:
    """Git takes the address for the remote here; other hosts are answered with the branch."""
    for name, value in {
        "COUNT": "1",
        "KEY_0": f"url.{remote}.insteadOf",
        "VALUE_0": target,
    }.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    entry = sent(result(), "other", "other==1.0")
    with repository(target, Path("leaderboard")) as (board, propose):
        put(board / "results", entry)
        assert propose("b", "message", [board / "results" / entry.place / entry.name]) == page
