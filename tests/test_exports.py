"""The board in others' formats, read by what reads these formats."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any
from uuid import UUID

import datasets
import jsonschema
import pytest
import yaml
from test_site import Links

from kgbench.cli import main
from kgbench.leaderboard.build import make_leaderboard
from kgbench.leaderboard.entries import BOARDS, read_entries
from kgbench.leaderboard.exports import FORMATS
from kgbench.resources import read_toml

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board of the project's own entries of two methods."""
    root = tmp_path_factory.mktemp("board")
    for method in ("budget/none", "pathways/none", "pathways/all"):
        shutil.copytree(ROOT / "leaderboard/results" / method, root / "results" / method)
    for method in ("planted/none", "planted/prior"):
        shutil.copytree(ROOT / "leaderboard/results" / method, root / "results" / method)
    return root


@pytest.fixture(scope="module")
def folders(root: Path) -> dict[str, Path]:
    """Its folder in each format."""
    made = {name: root.with_name(f"{root.name}-{name}") for name in FORMATS}
    words = [f"--{name.replace('_', '-')}={folder}" for name, folder in made.items()]
    assert main(["leaderboard", "build", "--root", str(root), *words]) == 0
    assert not (root / "site").exists()
    return made


def test_datasets_loads_each_configuration(root: Path, folders: dict[str, Path]) -> None:
    """By its name, with a row per figure, entry and fact, joined by ids."""
    entries = list(read_entries(root / "results"))
    read: dict[str, Any] = {}
    for name in ("boards", "entries", "facts"):
        read[name] = datasets.load_dataset(str(folders["dataset"]), name, split="train")
    assert set(read["entries"]["id"]) == {entry.result.id for entry in entries}
    assert set(read["facts"]["entry"]) == set(read["entries"]["id"])
    assert read["facts"].num_rows == sum(entry.rows().num_rows for entry in entries)
    assert set(read["boards"]["board"]) >= {"planted@2", "pathways@1", "budget@1"}
    lines = {
        (board.versioned, table.key, line.method, figure): estimate
        for board in make_leaderboard(entries).boards
        for table in board.tables
        for line in table.lines
        for figure, estimate in line.figures.items()
    }
    assert read["boards"].num_rows == len(lines)
    for row in read["boards"]:
        estimate = lines[row["board"], row["table"], row["method"], row["figure"]]
        assert all(row[name] == value for name, value in vars(estimate).items())
        assert row["value"] is not None or row["undefined"]


def test_every_eval_ever_is_in_its_schema(root: Path, folders: dict[str, Path]) -> None:
    """In that of the version named, at the place that its datastore asks for, with every defined
    figure; `make test-formats` asks the package itself.
    """
    packed = (ROOT / "tests" / "every_eval_ever.schema.json.gz").read_bytes()
    schema = json.loads(gzip.decompress(packed))
    assert (
        schema["version"] == read_toml("kgbench.leaderboard", "every_eval_ever")["schema_version"]
    )
    validator = jsonschema.Draft7Validator(schema)
    paths = sorted(folders["every_eval_ever"].rglob("*.json"))
    entries = {entry.result.id: entry for entry in read_entries(root / "results")}
    assert len(paths) == len(entries)
    for path in paths:
        document = json.loads(path.read_text("utf-8"))
        validator.validate(document)
        parts = path.relative_to(folders["every_eval_ever"]).parts
        assert "/".join(parts[2:4]) == document["model_info"]["id"] and parts[:2] == (
            "data",
            "kgbench",
        )
        assert UUID(path.stem).version == 4
        ids = {result["evaluation_result_id"] for result in document["evaluation_results"]}
        assert len(ids) == len(document["evaluation_results"]) > 0
        entry = entries.pop(ids.pop().partition("/")[0])
        assert document["evaluation_id"].startswith(f"{entry.board}/{entry.folder.name}/")
        if entry.planted is not None:
            first = document["evaluation_results"][0]["score_details"]
            assert first["score"] == entry.planted.average_precision.value


def test_every_eval_ever_knows_each_board() -> None:
    """Also those that the entries of these tests have no run of."""
    assert read_toml("kgbench.leaderboard", "every_eval_ever")["figures"].keys() == BOARDS.keys()


def test_a_space_is_whole(root: Path, folders: dict[str, Path]) -> None:
    """A static one by its front matter; every link is relative and leads to a file in it; its
    health has what is there.
    """
    folder = folders["space"]
    _, front, _ = (folder / "README.md").read_text("utf-8").split("---\n")
    about = yaml.safe_load(front)
    assert about["sdk"] == "static" and (folder / about["app_file"]).is_file()
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    for path in filter(lambda path: path.endswith(".html"), there):
        for tag, link in Links((folder / path).read_text("utf-8")).found:
            if tag == "a" and link.startswith("https://"):
                continue  # a paper
            target = normpath(join(dirname(path), link.partition("#")[0] or Path(path).name))
            assert not link.startswith("/") and target in there, (path, link)
    health = json.loads((folder / "health.json").read_text("utf-8"))
    assert health["status"] == "ok" and health["files"] == len(there) - 2
    assert (
        health["entries"]
        == sum(health["boards"].values())
        == len(list(read_entries(root / "results")))
    )
    assert set(health["boards"]) == {"planted@2", "pathways@1", "budget@1"}


def test_only_an_empty_folder_is_written_to(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hidden files aside, as a clone has them; with `--check` nothing is written."""
    board, mine = tmp_path / "board", tmp_path / "space"
    shutil.copytree(root / "results" / "pathways", board / "results" / "pathways")
    (mine / ".git").mkdir(parents=True)
    words = ["leaderboard", "build", "--root", str(board), "--space", str(mine)]
    assert main([*words, "--check"]) == 2
    assert "--space writes a folder" in capsys.readouterr().err
    assert list(mine.iterdir()) == [mine / ".git"]
    assert main(words) == 0 and (mine / "index.html").is_file()
    assert main(words) == 2
    assert f"{mine} holds other files" in capsys.readouterr().err
    assert main([*words, "--serve"]) == 2


def test_entries_from_before_versions_are_read(root: Path) -> None:
    """Records and folders name boards without a version: they are on the present one."""
    entries = list(read_entries(root / "results"))
    texts = [json.dumps(entry.documents) for entry in entries]
    assert not any(f"{board}@" in text for board in BOARDS for text in texts)
    boards = {entry.folder.parts[-3]: entry.board for entry in entries}
    assert boards == {"planted": "planted@2", "pathways": "pathways@1", "budget": "budget@1"}
