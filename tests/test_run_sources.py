"""The note beside a run on where its models and facts are: local, data alone, and held against the
record.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from commands import Call, caller

import kgbench
from kgbench.analyses import Inputs
from kgbench.analyses.answers import WholeAnswers
from kgbench.analyses.audit import Audit
from kgbench.analyses.heads import Heads
from kgbench.analyses.specificity import Specificity
from kgbench.analyses.tokens import Tokens
from kgbench.data import ImportOptions, load_dataset
from kgbench.errors import DataError, InputError
from kgbench.leaderboard.drafts import drafts
from kgbench.records import SOURCES, RecordStore
from kgbench.records.mirror import MARK, folder_of, mirror_of
from kgbench.records.store import read_record
from kgbench.runner import Run, Settings, Spec, run_job
from kgbench.runner.rerun import job_of
from kgbench.runner.sources import Sources, note_sources, sources_of
from kgbench.runner.spec import Held

CPU = Settings(device="cpu")


ASKED: dict[str, Any] = {
    "tokens": Tokens(facts=2, top=3),
    "answers": WholeAnswers(facts=2),
    "heads": Heads(component="v"),
    "specificity": Specificity(facts=3),
    "audit": Audit(seeds=2),
}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return caller(capsys)


@pytest.fixture
def spec(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    """A job on checkpoints and facts of one's own, by paths of the working directory."""
    for part in ("recipient", "sft"):
        shutil.copytree(folders[part], tmp_path / part)
    rows = []
    for i in range(6):
        answer = "movie one" if i % 2 else "title two"
        rows.append(json.dumps({"who": f"actor {i}", "object": answer}))
    (tmp_path / "facts.jsonl").write_text("\n".join(rows))
    monkeypatch.chdir(tmp_path)
    imports = ImportOptions(subject="who", templates={"ask": "{subject} stars in"})
    pair = {"recipient": "recipient", "donors": {"sft": "sft"}}
    asked = {"grafts": ("LT", "FE+LT"), "limit": 5, "seed": 2, "metric": "logprob"}
    return Spec(**pair, dataset="facts.jsonl", imports=imports, **asked)


@pytest.fixture
def run(spec: Spec, tmp_path: Path) -> Run:
    return run_job(spec, replace(CPU, output_dir=tmp_path / "runs"))


def test_a_run_knows_where_its_parts_are(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """From any working directory it is run again and opened without an option of the pair or the
    facts.
    """
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    status, out, _ = call("rerun", run.path, "--device", "cpu", "-q")
    assert status == 0 and "It agrees: all 5 facts" in out
    assert job_of(run.record, sources_of(run.path), CPU).identity == run.record.identity
    assert kgbench.open_run(run.path).spec.recipient == str(tmp_path / "recipient")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ASKED)
def test_a_question_is_the_same_however_it_is_asked(
    spec: Spec, run: Run, tmp_path: Path, call: Call, name: str
) -> None:
    """Of a run that was just made, of one that is opened, and on the command line from elsewhere:
    the answer that the specification itself gives, with its grafts, limit, seed and metric.
    """
    asked = ASKED[name]
    silent = Inputs((spec,), (), replace(CPU, output_dir=tmp_path), None, lambda line: None)
    direct = asked.answer(silent)
    settings = Settings(device="cpu", output_dir=tmp_path / "asked")
    made = kgbench.Evaluation(run.record, run.path, run.reused, settings, spec)
    opened = kgbench.Evaluation(run.record, run.path, True, settings)
    for each in (made, opened):
        assert each.ask(asked, progress=False).json == direct.json
    given = []
    for field in dataclasses.fields(asked):
        value = getattr(asked, field.name)
        if value != field.default:
            flag = "--limit" if field.name == "facts" else f"--{field.name}"
            given += [flag, value]
    status, out, _ = call(name, run.path, *given, "--device", "cpu", "--json", "-q")
    assert status == 0 and json.loads(out) == json.loads(json.dumps(direct.json))


def test_the_note_follows_the_parts(
    run: Run, spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Parts that have moved are named; the same evaluation from the new place notes that."""
    (tmp_path / "new").mkdir()
    for part in ("recipient", "sft", "facts.jsonl"):
        (tmp_path / part).rename(tmp_path / "new" / part)
    status, out, err = call("rerun", run.path, "--device", "cpu")
    assert (status, out) == (2, "") and f"{tmp_path / 'recipient'}" in err
    assert "give --recipient PATH to `kgbench rerun`" in err and err.count("\n") == 1
    moved = ("--recipient", "new/recipient", "--donor", "new/sft", "--dataset", "new/facts.jsonl")
    assert call("rerun", run.path, "--device", "cpu", *moved)[0] == 0
    monkeypatch.chdir(tmp_path / "new")
    assert run_job(spec, replace(CPU, output_dir=tmp_path / "runs")).reused
    assert sources_of(run.path).dataset == str(tmp_path / "new" / "facts.jsonl")
    assert call("rerun", run.path, "--device", "cpu")[0] == 0


def test_what_the_record_says_is_not_noted(tmp_path: Path) -> None:
    """Names of the catalog and shipped facts need no note; models and facts in memory have none."""
    named = Sources(model="tiny-gemma", dataset="tiny_movies:first60", donors={})
    note_sources(named, Held(), CPU, tmp_path)
    in_memory = Held(dataset=load_dataset("tiny_movies"))
    note_sources(named.model_copy(update={"recipient": "r"}), in_memory, CPU, tmp_path)
    assert not list(tmp_path.iterdir())
    note_sources(named.model_copy(update={"chat_template": True}), Held(), CPU, tmp_path)
    assert sources_of(tmp_path).chat_template
    note_sources(named, Held(), CPU, tmp_path)  # a note that is there is never left as it was
    assert sources_of(tmp_path) == Sources(model="tiny-gemma", dataset="tiny_movies:first60")


def test_no_copy_of_a_run_has_the_note(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Neither a saved nor a published copy, nor an entry; validation passes it over, and the record
    holds nothing of it.
    """
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "home"))
    note, before = run.path / SOURCES, {path.name: path.read_bytes() for path in run.path.iterdir()}
    assert note.is_file()
    assert str(tmp_path) not in before["record.json"].decode()
    saved = kgbench.open_run(run.path).save(tmp_path / "saved")
    mirror = RecordStore(folder_of(f"memory://{tmp_path.name}/study"))
    (mirror.root / run.path.name).mkdir()
    for name, content in before.items():
        (mirror.root / run.path.name / name).write_bytes(content)
    assert mirror.find(run.record.id) is not None
    paths = fsspec.filesystem("memory").find(f"/{tmp_path.name}/study")
    published = [path.rpartition("/")[2] for path in paths]
    assert {*before} - {path.name for path in saved.iterdir()} == {SOURCES}
    assert "record.json" in published and SOURCES not in published
    (entry,) = drafts([read_record(run.path)], {}, "Mine", "mine==1.0")
    assert str(tmp_path) not in json.dumps(entry.documents)
    assert json.loads(call("validate", run.path, "--json")[1])["accepted"] == 1


def test_a_mark_of_a_copy_is_believed_in_the_cache_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """A folder from a stranger that calls itself the copy of a URL is a folder like any other:
    nothing is read there or written.
    """
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "home"))
    url = f"memory://{tmp_path.name}/theirs"
    ours = folder_of(url)
    theirs = tmp_path / "theirs"
    (theirs / run.path.name).mkdir(parents=True)
    for path in run.path.iterdir():
        (theirs / run.path.name / path.name).write_bytes(path.read_bytes())
    (theirs / MARK).write_bytes((ours / MARK).read_bytes())
    assert mirror_of(theirs) is None and mirror_of(ours) is not None
    beside = ours.with_name("0" * 16)
    beside.mkdir()
    (beside / MARK).write_bytes((ours / MARK).read_bytes())
    assert mirror_of(beside) is None, "the name of a copy is the hash of its URL"
    assert call("show", run.record.id[:8], "--output-dir", theirs)[0] == 0
    assert RecordStore(theirs).find(run.record.id) is not None
    assert not fsspec.filesystem("memory").exists(f"/{tmp_path.name}/theirs")


CODE = """
from pathlib import Path
Path({mark!r}).touch()
from kgbench.localizers.dynamic_graft import DynamicGraft
class Mine(DynamicGraft):
    name = "mine"
"""


def test_a_note_from_a_stranger_runs_no_code(run: Run, tmp_path: Path, call: Call) -> None:
    """Whatever a note holds, a command that looks at a run does not read it; one that runs models
    takes models and facts from it alone, and only those of the record.
    """
    mark, code = tmp_path / "ran", tmp_path / "mine.py"
    code.write_text(CODE.format(mark=str(mark)))
    note = run.path / SOURCES
    good = json.loads(note.read_text())
    hostile: dict[str, tuple[object, str]] = {
        "a localizer": ({**good, "localizer": f"{code}:Mine"}, "localizer: Extra inputs"),
        "code as facts": ({**good, "dataset": str(code)}, "expected a file that ends with"),
        "code as a model": ({**good, "model": f"{code}:Mine"}, ""),
        "other weights": ({**good, "donors": {"sft": good["recipient"]}}, "weights.donors.sft"),
        "no object": ([good], "note: "),
    }
    for content, message in hostile.values():
        note.write_text(json.dumps(content))
        assert call("show", run.path)[0] == call("show", run.path, "--format", "csv")[0] == 0
        status, out, err = call("rerun", run.path, "--device", "cpu")
        assert (status, out) == (2, "") and message in err and err.count("\n") == 1, err
    note.write_bytes(b"[" * (2 << 20))
    with pytest.raises(DataError, match="delete it"):
        sources_of(run.path)
    assert not mark.exists()


def test_changed_facts_are_refused(run: Run, tmp_path: Path) -> None:
    """Paths are held against the hashes of the record: other facts at the same place are named."""
    facts = tmp_path / "facts.jsonl"
    facts.write_text(facts.read_text().replace("title two", "title three"))
    with pytest.raises(InputError, match=r"dataset.hash: .* \(other facts"):
        job_of(run.record, sources_of(run.path), CPU)
