"""Weights that wheels leave out: an installation without them asks for the release's file, and takes
only what it expects of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from zipfile import ZipFile

import forks
import pytest

from kgbench.cli import main
from kgbench.errors import ModelError
from kgbench.models.release import FILE, RELEASE, complete_folder, release_hashes
from kgbench.resources import file_hash
from tests.release_file import ZOO, left_out, write_release_file

NAME = "tiny-gpt2/recipient/model.safetensors"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The release's file."""
    return write_release_file(tmp_path_factory.mktemp("release"))


@pytest.fixture
def ask(wheel: Path, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Exit status and what is printed of `kgbench diff tiny-gpt2`, which has the wheel alone."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST")}
    environment = kept | {"PYTHONPATH": str(wheel), "KGBENCH_HOME": str(tmp_path / "home")}

    def answered(place: object = "") -> tuple[int, str]:
        command = [sys.executable, "-m", "kgbench", "diff", "tiny-gpt2"]
        done = forks.run(
            command,
            cwd=tmp_path,
            env=environment | {RELEASE: str(place)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    return answered


def test_wheels_leave_out_what_is_expected(wheel: Path) -> None:
    """What wheels leave out is what `release.toml` lists, with the hashes of the clone's files."""
    assert release_hashes() == {name: file_hash(ZOO / name) for name in left_out()}
    inside = {
        path.relative_to(wheel / "kgbench/models/zoo") for path in wheel.rglob("*.safetensors")
    }
    clone = {
        path.relative_to(ZOO) for path in ZOO.rglob("*.safetensors") if "-seed" not in str(path)
    }
    assert clone - inside == {*map(Path, left_out())} and inside < clone


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (None, f"{FILE} of the release of kgbench"),
        ("none", "cannot be unpacked"),
        ("no zip", "File is not a zip file"),
        ("other", f"{NAME} has the SHA-256"),
        ("less", f"holds no {NAME}"),
        ("url", "HTTP Error 404"),
    ],
)
def test_other_files_are_refused(
    change: str | None,
    wrong: str,
    file: Path,
    wheel: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line names what is wrong and what to do; nothing is written, inside the home or outside."""
    place: object = "" if change is None else tmp_path / "given.zip"
    if change == "no zip":
        (tmp_path / "given.zip").write_bytes(b"x")
    if change in ("other", "less"):
        with ZipFile(file) as held, ZipFile(tmp_path / "given.zip", "w") as out:
            for name in held.namelist():
                if name != NAME or change == "other":
                    out.writestr(name, b"x" if name == NAME else held.read(name))
            out.writestr("../../escaped", b"x")
    if change == "url":
        handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "nowhere"))
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}/{FILE}"
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(RELEASE, str(place))
    bare = wheel / "kgbench" / "models" / "zoo" / "tiny-gpt2" / "recipient"
    with pytest.raises(ModelError) as refused:
        complete_folder("zoo:tiny-gpt2/recipient", bare)
    if isinstance(refused.value.__cause__, HTTPError):
        refused.value.__cause__.close()
    text = str(refused.value)
    assert wrong in text and FILE in text and "\n" not in text
    assert not [
        path for path in (tmp_path / "home").rglob("*") if path.suffix != ".lock" and path.is_file()
    ]
    assert not list(tmp_path.rglob("escaped"))


def test_it_is_fetched_once(
    file: Path,
    ask: Callable[..., tuple[int, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is asked for in one line, and comes from a server; from then on the weights are here, and
    the answer is the clone's.
    """
    status, text = ask()
    assert status == 2 and FILE in text.splitlines()[-1] and "Traceback" not in text
    handler = partial(SimpleHTTPRequestHandler, directory=str(file.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        first = ask(f"http://127.0.0.1:{server.server_port}/{FILE}")
        server.shutdown()
    assert first[0] == 0 and main(["diff", "tiny-gpt2"]) == 0
    assert ask() == (0, capsys.readouterr().out)
