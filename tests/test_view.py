"""`kgbench view`: a reader's own runs, as pages that are drawn when they are asked for."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import stored_runs

from kgbench.cli import main
from kgbench.leaderboard.build import own_entries
from kgbench.viewer import Viewer

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two runs of one method, one with a hostile name."""
    stored_runs.folder(tmp_path / "runs")
    other = stored_runs.stored(stored_runs.WORSE, seed=1, **stored_runs.OTHER)
    stored_runs.folder(tmp_path / "runs", other[0].model_copy(update={"model": HOSTILE}), other[1])
    return tmp_path / "runs"


def test_runs_have_pages(runs: Path) -> None:
    """Each run has figures and single facts; two are compared; texts of records are escaped."""
    viewer = Viewer(lambda: own_entries(runs))
    names = [run.result.id[:12] for run in own_entries(runs)]
    pages = [*(f"{folder}/{name}.html" for folder in ("runs", "facts") for name in names)]
    pages += ["index.html", f"compare/{'-'.join(names)}.html", "read.html", "assets/search.js"]
    for page in pages:
        text = (viewer.page(page) or b"").decode()
        assert text and HOSTILE not in text, page
    index = (viewer.page("index.html") or b"").decode()
    assert all(f"runs/{name}.html" in index for name in names)
    assert b"tiny_movies/59" in (viewer.page(f"facts/{names[0]}.html") or b"")
    for path in (
        "runs/x.html",
        f"facts/{'-'.join(names)}.html",
        f"compare/{names[0]}.html",
        "../x",
    ):
        assert viewer.page(path) is None, path


def test_the_list_is_read_again(runs: Path) -> None:
    """A run that ends while the viewer is open is in the list when that is loaded again."""
    viewer = Viewer(lambda: own_entries(runs))
    new = own_entries(Path(stored_runs.folder(runs, *stored_runs.stored(n=40, limit=40))).parent)
    index = viewer.page("index.html") or b""
    assert len(new) == 3 and all(run.result.id[:12].encode() in index for run in new)


def test_what_does_not_read_is_a_page(runs: Path) -> None:
    """Facts that do not read are named on the page that would show them."""
    run = own_entries(runs)[0]
    (run.folder / "facts.parquet").write_bytes(b"x")
    page = Viewer(lambda: [run]).page(f"facts/{run.result.id[:12]}.html") or b""
    assert b"not a readable Parquet file" in page


def test_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a run there is nothing to show; a board that is none is named."""
    assert main(["view", "--results", str(tmp_path), "--no-browser"]) == 2
    assert f"no run in {tmp_path}: `kgbench eval` makes one" in capsys.readouterr().err
    assert main(["view", "--board", str(tmp_path), "--no-browser"]) == 2
    assert f"{tmp_path} is no leaderboard" in capsys.readouterr().err


@pytest.mark.posix
@pytest.mark.parametrize("board", [False, True])
def test_ctrl_c_ends_it(runs: Path, board: bool) -> None:
    """The address is printed once it answers; Ctrl-C ends it with status 0 and no further word."""
    (runs.parent / "board" / "results").mkdir(parents=True)
    # A parent that ignores SIGINT hands that on; the program that is run here takes Python's own
    # handler.
    start = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from"
        " kgbench.cli import main; sys.exit(main())"
    )
    words = ["view", "--results", "runs", "--no-browser", *(["--board", "board"] * board)]
    process = subprocess.Popen(
        [sys.executable, "-c", start, *words],
        cwd=runs.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    *_, address = [process.stdout.readline() for _ in range(1 + board)]
    assert address.startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
