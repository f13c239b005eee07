"""What commands print and refuse is what tests/golden has, which `make golden` writes anew."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_runs
import pytest
from stored_runs import OTHER, folder
from test_rank_pictures import ranked

from kgbench.cli import main
from kgbench.models.catalog import zoo_path
from kgbench.records import RecordStore
from kgbench.runner import Settings, Spec, run_job
from kgbench.stats.summary import rescored, summarize

GOLDEN = Path(__file__).parent / "golden"
TRANSCRIPTS = sorted(GOLDEN.glob("*.txt"))
"""Commands after `$`, each with all that it prints below it: of long lists of names the first, ids
as ID1 and so on, no times, and at the end an exit status that is neither 0 nor that of a refusal.
"""
RATES = {"PRE": 0.02, "SFT": 0.98, "ALL": 0.97, "FE": 0.17, "LT": 0.29, "FE+LT": 0.97}
RATES |= {"(FE+LT)^C": 0.01}


def write_run(
    name: str, rates: Mapping[str, float], n: int = 60, seed: int = 0, **what: Any
) -> None:
    """A run that never happened in the folder runs/NAME, of the prompt qa where it says nothing of prompts."""
    identity = fake_runs.identity(
        **{"prompts": {"qa": "q" * 64}, "configurations": (*rates,), **what}
    )
    rows = fake_runs.rows(n, rates, [*identity.prompts], seed)
    record = rescored(fake_runs.record(rows, what=identity), rows)
    RecordStore("runs").write(record, rows).rename(f"runs/{name}")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of golden/folder, the models `before` and `after`, `odd` of no known type, and runs:
    one, the same `again` under another seed, one that is `worse`, one of a `weak` gain, one of
    `nothing` gained on two prompts, rankings of movies, of `books` and of one prompt that is
    `asked`, and a `real` one.
    """
    workplace = tmp_path_factory.mktemp("golden") / "place"
    shutil.copytree(GOLDEN / "folder", workplace)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace)
        for name, model in (("before", "recipient"), ("after", "sft")):
            Path(name).symlink_to(zoo_path(f"zoo:tiny-gemma/{model}") or "")
        Path("odd").mkdir()
        Path("odd/config.json").write_text('{"model_type": "none"}')
        Path("dir.jsonl").mkdir()
        for taken in ("here.py", "test_there.py"):
            Path(taken).touch()
        write_run("one", RATES)
        write_run("again", RATES, seed=1, seeds=(1,))
        write_run("worse", {**RATES, "FE+LT": 0.6, "LT": 0.5}, seed=3, **OTHER)
        few = {"PRE": 0, "SFT": 11 / 30, "FE": 2 / 30, "LT": 4 / 30, "FE+LT": 8 / 30}
        write_run("weak", {**few, "(FE+LT)^C": 1 / 30}, n=30, limit=30)
        both = {"headline": "h" * 64, "qa": "q" * 64}
        write_run("nothing", {"PRE": 0.5, "SFT": 0.5, "FE": 0.5}, limit=60, prompts=both)
        books = {"name": "tiny_books", "hash": "b" * 64, "n": 9}
        rankings = {"movies": ranked(seeds=(1,)), "books": ranked(dataset=books)}
        rankings["asked"] = ranked(prompts={"qa": "q" * 64})
        for name, run in rankings.items():
            folder(workplace / "runs", run, fake_runs.rows()).rename(f"runs/{name}")
        spec = Spec(model="tiny-gemma", prompts=("qa",), limit=2)
        run_job(spec, Settings(output_dir=Path("runs"), device="cpu")).path.rename("runs/real")
    return workplace


@pytest.fixture
def place(workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, a copy of the workplace."""
    place = shutil.copytree(workplace, tmp_path / "place", symlinks=True)
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return place


def files(folder: Path) -> dict[Path, bytes]:
    """All files below a folder with what they hold."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_golden(path: Path, text: str) -> None:
    """The text is that of a file, which is written anew where the environment says so."""
    if os.environ.get("GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text("utf-8").splitlines()


REFUSAL = re.compile(r"(kgbench: (from|licence).*\n)*kgbench: error: .*\n(  .*\n +\^\n)?")


@pytest.mark.posix
@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_commands(transcript: Path, place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each prints what is written there. A mistake ends with status 2 and one line, below which a
    caret may show the place; then nothing is on stdout and no file is written or changed.
    """
    answers, ids = list[str](), dict[str, str]()

    def id_name(found: re.Match[str]) -> str:
        return ids.setdefault(found[1], f"ID{len(ids) + 1}")

    for line in re.findall(r"^\$ kgbench(.*)$", transcript.read_text("utf-8"), re.MULTILINE):
        before = files(place)
        status = main(shlex.split(line))
        out, err = capfd.readouterr()
        if status == 2:
            assert REFUSAL.fullmatch(err), (line, err)
            assert (out, files(place)) == ("", before), line
        said = re.sub(r"(Known: |one of )([\w.-]+)(, (?!or )[\w.-]+){10,}", r"\1\2, …", out + err)
        said = re.sub(r"\b[\d.]+ s; [\d.]+ ×", "T s; R ×", said)
        said = re.sub(r"^computed in [\d.]+ s$", "computed in T s", said, flags=re.MULTILINE)
        said = re.sub(r", \d{4}-\d\d-\d\dT[\d:+]+", "", said)
        said = re.sub(r"\b(?=[a-f]*\d)([0-9a-f]{8})([0-9a-f]{4})?\b", id_name, said)
        ended = f"[{status}]\n" if status not in (0, 2) else ""
        answers.append(f"$ kgbench{line}\n{said}{ended}")
    assert_golden(transcript, "".join(answers))


def test_sentences() -> None:
    """Of each line of rates, on prompts and a metric, the file has the sentence over the run."""
    file, told = GOLDEN / "sentences.md", []
    for line in re.findall(r"^- (.*)$", file.read_text("utf-8"), re.MULTILINE):
        metric, prompts, *cells = line.split(" | ")
        rates = {graft: float(rate) for graft, rate in (cell.rsplit(" ", 1) for cell in cells)}
        rest = "ALL; LT:o=recipient"
        found = summarize(
            fake_runs.rows(50, rates, prompts.split()),
            metric=metric,
            complements={"LT:o": rest, rest: "LT:o"} if rest in rates else None,
        )
        told.append(f"- {line}\n  {found.verdict}\n")
    assert_golden(file, "".join(told))
