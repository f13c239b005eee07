"""Laws of records: one identity, one record, whole or not at all, found by content."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import forks
import numpy as np
import pyarrow as pa
import pytest
from fake_runs import RATES, identity, record, rows
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kgbench.errors import DataError, InputError, OutputError, UnknownNameError
from kgbench.estimate import Estimate
from kgbench.records import (
    DatasetRef,
    LocalizerRef,
    ReadoutRef,
    Record,
    RecordStore,
    Truth,
    WeightHashes,
    canonical_json,
    facts_table,
    load_record,
)
from kgbench.records.identity import texts_in, texts_of
from kgbench.records.provenance import package_commit
from kgbench.report.export import figures

CHANGES: dict[str, object] = {
    "dataset": DatasetRef(name="tiny_movies", hash="e" * 64, n=150),
    "prompts": {"headline": "h" * 64, "qa": "changed"},
    "weights": WeightHashes(recipient="r" * 64, donors={"sft": "changed"}),
    "tokenizer": "changed",
    "localizer": LocalizerRef(name="dynamic_graft", version="1", parameters={"grafts": ["FE"]}),
    "configurations": tuple(RATES)[:-1],
    "metric_version": "2",
    "dtype": "bfloat16",
    "seeds": (1,),
    "limit": 50,
    "truth": Truth(plant="FE:ffn"),
    "ranking_version": "2",
    "readout": ReadoutRef(name="sequence", version="1"),
}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@pytest.fixture(scope="module")
def facts() -> pa.Table:
    return rows()


@pytest.fixture(scope="module")
def made(facts: pa.Table) -> Record:
    return record(facts)


@given(json_values)
def test_canonical_json(value: object) -> None:
    """It reads back as the value, and writing again gives the same text."""
    text = canonical_json(value)
    assert json.loads(text) == value and canonical_json(json.loads(text)) == text


@given(json_values)
def test_texts_of_a_value(value: object) -> None:
    """Texts are the same with and without their places."""
    assert texts_in(value) == {text for _, text in texts_of(value)}


def test_canonical_json_has_one_form() -> None:
    """Keys are sorted, there is no white space, and NaN is no JSON."""
    assert canonical_json({"b": [1, 2.5], "a": {"é": None}}) == '{"a":{"é":null},"b":[1,2.5]}'
    with pytest.raises(ValueError):
        canonical_json({"x": float("nan")})


@pytest.mark.parametrize("part", CHANGES)
def test_each_part_of_the_identity_counts(part: str) -> None:
    """Changing any part changes the id; the order of keys does not."""
    assert identity(**{part: CHANGES[part]}).digest() != identity().digest()
    assert identity(prompts={"qa": "q" * 64, "headline": "h" * 64}).digest() == identity().digest()
    assert set(CHANGES) == set(type(identity()).model_fields)


@pytest.mark.parametrize(
    "parameter",
    [float("nan"), float("inf"), "/home/someone/model", "hf_" + "a" * 34, "C:\\models\\x"],
)
def test_identity_refuses(parameter: object) -> None:
    """NaN and infinities, absolute paths and credentials are no part of an identity."""
    with pytest.raises(ValidationError):
        identity(localizer={"name": "x", "version": "1", "parameters": {"p": [parameter]}})


def test_unknown_fields_are_refused(made: Record) -> None:
    """A record holds nothing that the schema does not name."""
    with pytest.raises(ValidationError):
        Record.model_validate({**made.model_dump(), "extra": 1})
    with pytest.raises(ValidationError):
        identity(batch_size=4)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "0" * 64},
        {"schema_version": 3},
        {"model": "/home/me/model"},
        {"notes": {"x": float("nan")}},
        {"scores": {"LT": {"/home/me": {"0": 0.5}}}},
        {"scores": {"hf_" + "a" * 34: {"mlp": {"0": 0.5}}}},
    ],
)
def test_record_refuses(made: Record, change: dict[str, object]) -> None:
    """A foreign id, another schema, NaN, and a private text, also in a map, are refused."""
    with pytest.raises(ValidationError):
        Record.model_validate({**made.model_dump(), **change})


def test_record_json_round_trip(made: Record) -> None:
    """What is written reads back equal, and is written the same again."""
    again = Record.model_validate_json(made.to_json())
    assert again == made and again.to_json() == made.to_json()


@pytest.mark.parametrize(
    ("metric", "stored", "shown"),
    [
        ("logprob", Estimate(-0.1, -2, 1, 50), Estimate(-0.1, -2, 0, 50)),
        ("log_rank", Estimate(0.1, -1, 2, 50), Estimate(0.1, 0, 2, 50)),
        ("logit_diff", Estimate(-0.1, -2, 1, 50), Estimate(-0.1, -2, 1, 50)),
    ],
)
def test_no_interval_goes_beyond_the_scores(
    made: Record, metric: str, stored: Estimate, shown: Estimate
) -> None:
    """No probability is above 1 and no rank below 1, whatever a record's interval says."""
    row = made.rows[0].model_copy(update={metric: stored})
    record = made.model_copy(update={"rows": (row,)})
    assert row.estimate(metric) == shown
    assert [f.estimate for f in figures(record) if f.figure == metric] == [shown]
    answered = record.answer("x")["rows"][0]
    assert answered.get(metric, shown.answer()) == shown.answer()


def test_answer(made: Record) -> None:
    """The object of --json has the fixed keys; each figure is three numbers, or a reason with or
    without a value.
    """
    answer = json.loads(json.dumps(made.answer("results/x"), allow_nan=False))
    assert (
        " ".join(answer)
        == "id model dataset localizer metric path seconds plain_forward_ratio rows synergy "
        "first_tokens verdict"
    )
    row = answer["rows"][0]
    assert (
        " ".join(row)
        == "prompt graft n dropped top1 top5 mrr rank median_rank log_rank prob logprob sufficiency"
        " necessity"
    )
    figures = [f for r in answer["rows"] for f in r.values() if isinstance(f, dict)] + list(
        answer["synergy"].values()
    )
    assert all(
        set(f) in ({"value", "low", "high"}, {"undefined"}, {"value", "undefined"}) for f in figures
    )
    assert answer["plain_forward_ratio"] == 4.6


def test_store_round_trip(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """A record is found by its id, with its rows, and leaves nothing else behind."""
    store = RecordStore(tmp_path / "results")
    assert store.find(made.id) is None
    path = store.write(made, facts)
    assert path == store.path_of(made)
    assert path.name == f"tiny-gemma-tiny_movies-dynamic_graft-{made.id[:12]}"
    found = store.find(made.id)
    assert found is not None
    assert found.record == made
    assert found.path == path
    assert found.facts().equals(facts)
    assert sorted(p.name for p in path.iterdir()) == ["facts.parquet", "record.json", "seal.json"]
    assert list(store.root.iterdir()) == [path] and [s.record.id for s in store.scan()] == [made.id]


def test_names_mean_nothing(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """A renamed record is found; a folder of the right name with another record in it is not taken
    for it. What is named after another record is not searched, so that finding takes no longer in a
    large folder.
    """
    store = RecordStore(tmp_path)
    store.write(made, facts).rename(tmp_path / "renamed")
    assert store.find(made.id).path == tmp_path / "renamed"
    assert store.write(made, facts) == tmp_path / "renamed"
    other = record(facts, what=identity(seeds=(5,)))
    (tmp_path / "renamed").rename(store.path_of(other))
    assert store.find(other.id) is None
    assert store.write(other, facts).name == f"{store.path_of(other).name}-2"
    assert store.find(other.id).record == other and store.find(made.id) is None


def test_bytes_are_deterministic(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """Equal results in another order give equal files."""
    shuffled = facts.take(pa.array(np.random.default_rng(0).permutation(facts.num_rows)))
    one, two = (
        RecordStore(tmp_path / "a").write(made, facts),
        RecordStore(tmp_path / "b").write(made, shuffled),
    )
    assert all(
        (one / name).read_bytes() == (two / name).read_bytes()
        for name in ("record.json", "facts.parquet")
    )


def test_unwritable(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """An output directory that cannot be made is one clear error, before and at the write."""
    (tmp_path / "file").write_text("")
    store = RecordStore(tmp_path / "file" / "results")
    with pytest.raises(OutputError, match="--output-dir"):
        store.check_writable()
    with pytest.raises(OutputError):
        store.write(made, facts)
    RecordStore(tmp_path / "new" / "deep").check_writable()
    assert list((tmp_path / "new" / "deep").iterdir()) == []


def test_leftovers_of_dead_runs(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """An unfinished folder is never taken for a record; an old one is swept by the next write, a
    young one left alone.
    """
    old, young = tmp_path / ".writing-1-dead", tmp_path / ".writing-2-alive"
    for folder in (old, young):
        folder.mkdir()
        (folder / "record.json").write_text("{")
    os.utime(old, (0, 0))
    store = RecordStore(tmp_path)
    assert list(store.scan()) == []
    store.write(made, facts)
    assert not old.exists() and young.exists()


WRITER = """
import sys, warnings
sys.path.insert(0, {tests!r})
from fake_runs import identity, record, rows
from kgbench.records import RecordStore
facts = rows(); base = record(facts); store = RecordStore({root!r})
for seed in range(10_000):
    what = identity(seeds=(seed,))
    made = base.model_copy(update={{"identity": what, "id": what.digest()}})
    store.journal(made.id).append(facts)
    store.write(made, facts)
    print(seed, flush=True)
"""


@pytest.mark.posix
def test_killed_while_writing(tmp_path: Path) -> None:
    """A process that is killed at any moment leaves whole records only, and whole parts of
    unfinished runs.
    """
    code = WRITER.format(tests=str(Path(__file__).parent), root=str(tmp_path))
    with forks.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.readline()
        time.sleep(0.013)
        process.kill()
        process.wait()
    store = RecordStore(tmp_path)
    found = list(store.scan())
    assert len(found) >= 5 and all(s.facts().num_rows for s in found)
    for folder in (tmp_path / ".partial").iterdir():
        journal = store.journal(folder.name)
        assert journal.table().num_rows in (0, len(RATES) * 100)
        journal.discard()


def part(facts: pa.Table, prompt: str, names: range) -> pa.Table:
    wanted = {f"tiny_movies/{i}" for i in names}
    keep = [
        p == prompt and f in wanted
        for p, f in zip(facts["prompt"].to_pylist(), facts["fact"].to_pylist(), strict=True)
    ]
    return facts.filter(pa.array(keep))


def test_journal_resumes(tmp_path: Path, facts: pa.Table) -> None:
    """Chunks of any size add up to the whole table; a pair that came twice is kept once; costs add
    up.
    """
    journal = RecordStore(tmp_path).journal("f" * 64)
    assert journal.finished() == frozenset() and journal.table().num_rows == 0
    journal.append(part(facts, "headline", range(0, 30)), {"forwards": 1, "seconds": 0.5})
    again = RecordStore(tmp_path).journal("f" * 64)
    assert again.finished() == {("headline", f"tiny_movies/{i}") for i in range(30)}
    again.append(part(facts, "headline", range(20, 50)), {"forwards": 2, "seconds": 0.25})
    again.append(part(facts, "qa", range(0, 50)))
    last = RecordStore(tmp_path).journal("f" * 64)
    assert last.table().equals(facts) and last.table().equals(again.table())
    assert last.cost() == {"forwards": 3.0, "seconds": 0.75}
    assert list(RecordStore(tmp_path).scan()) == []
    last.discard()
    assert list(tmp_path.iterdir()) == []
    assert RecordStore(tmp_path).journal("f" * 64).finished() == frozenset()


def test_load_record(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """By folder, by file, by the start of the id or of the folder's name."""
    store = RecordStore(tmp_path)
    path = store.write(made, facts)
    for run in (
        str(path),
        str(path / "record.json"),
        made.id,
        made.id[:7],
        path.name,
        path.name[:20],
    ):
        assert load_record(run, tmp_path).record == made


def test_load_record_refuses(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """Nothing found lists what is there with the nearest; several found asks for more; a folder
    without a record says so.
    """
    store = RecordStore(tmp_path)
    path = store.write(made, facts)
    store.write(record(facts, what=identity(seeds=(5,))), facts)
    with pytest.raises(UnknownNameError, match="Did you mean"):
        load_record(path.name.replace("gemma", "gema"), tmp_path)
    with pytest.raises(InputError, match="could be any of"):
        load_record("tiny-gemma", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"record\.json"):
        load_record(str(tmp_path / "empty"), tmp_path)
    with pytest.raises(UnknownNameError):
        load_record("", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("column", "value"),
    [("prob", float("nan")), ("logprob", float("-inf")), ("logit_diff", None), ("rank", 0)],
)
def test_facts_refuse(facts: pa.Table, column: str, value: float | None) -> None:
    """A score that is no finite number, a missing one and a rank below 1 are errors that say where."""
    columns = facts.to_pydict()
    columns[column][7] = value
    with pytest.raises(DataError, match=column):
        facts_table(columns)


def test_facts_refuse_doubles(facts: pa.Table) -> None:
    """The same prompt, fact, graft and position stand once."""
    with pytest.raises(DataError, match="same prompt"):
        facts_table(pa.concat_tables([facts, facts.slice(0, 1)]))


def test_facts_take_arrays() -> None:
    """Columns come as lists or arrays of any fitting number type."""
    scores = {name: np.zeros(2, np.float32) for name in ("prob", "logprob", "logit_diff")}
    whole = {name: np.array([1, 2], np.int64) for name in ("position", "target", "rank")}
    table = facts_table(
        {"prompt": ["qa"] * 2, "fact": ["b", "a"], "graft": ["PRE"] * 2, **whole, **scores}
    )
    assert table["fact"].to_pylist() == ["a", "b"] and table["rank"].to_pylist() == [2, 1]


def test_an_unknown_run_among_many(tmp_path: Path) -> None:
    """Of hundreds of records the nearest are named, and the rest counted."""
    names = [
        *(f"ablation-tiny-gpt2-{number:012x}" for number in range(300)),
        "graft_scan-tiny-gemma-0123456789ab",
    ]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text("{}")
    with pytest.raises(UnknownNameError) as caught:
        load_record("graft_scam", tmp_path)
    told = str(caught.value)
    assert f"Did you mean {names[-1]!r}?" in told and "and 296 more. A run is" in told
    assert told.count("tiny-gpt2") == 4


def test_package_commit(tmp_path: Path) -> None:
    """Of a tracked package, clean and changed; of a folder that nobody tracks, none."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert package_commit(package) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert package_commit(package) is None
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "-c", "commit.gpgsign=false", "commit", "-qm", "first"], check=True)
    clean = package_commit(package)
    (tmp_path / "elsewhere").write_text("")
    assert clean is not None
    assert len(clean.hash) == 40
    assert not clean.dirty
    assert package_commit(package) == clean
    (package / "__init__.py").write_text("changed = 1\n")
    changed = package_commit(package)
    assert changed is not None and changed.dirty and changed.hash == clean.hash


def test_no_warning_without_damage(tmp_path: Path, made: Record, facts: pa.Table) -> None:
    """Folders that are no records are none of the store's business."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.txt").write_text("")
    store = RecordStore(tmp_path)
    store.write(made, facts)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(store.scan())) == 1
