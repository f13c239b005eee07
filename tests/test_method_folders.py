"""The entries of a method on a board are two files that other tools read, written whole or not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from commands import Call
from fake_runs import RATES
from submissions import CODE, OTHERS, Sent, identity, put, refused, result, sent

from kgbench.errors import DataError, InputError
from kgbench.leaderboard import folders, limits
from kgbench.leaderboard.entries import find_entry, read_entries
from kgbench.leaderboard.folders import (
    ENTRIES,
    changed,
    document_hash,
    inside_folder,
    read_folder,
    rows_hash,
)
from kgbench.leaderboard.limits import FACTS
from kgbench.leaderboard.validate import validate

PLACE = "pathways/my-method"
SHIPPED = Path(__file__).parents[1] / "leaderboard" / "results"


def of(pair: str, rate: float) -> Sent:
    made = result(identity(pair, OTHERS), {**RATES, "FE+LT": rate}, model=pair)
    return sent(made, "my method", CODE)


@pytest.fixture(scope="module")
def two() -> tuple[Sent, Sent]:
    return of("tiny-gemma", 0.9), of("tiny-llama", 0.8)


@pytest.fixture
def results(tmp_path: Path, two: tuple[Sent, Sent]) -> Path:
    return put(tmp_path / "board" / "results", *two, sent(result()))


def test_pandas_reads_a_method(results: Path, two: tuple[Sent, Sent]) -> None:
    """Rows of all entries in one table with their names, and a line for each entry."""
    rows = pd.read_parquet(results / PLACE / FACTS)
    assert set(rows["entry"]) == {entry.name for entry in two}
    own = rows[rows["entry"] == two[0].name].drop(columns="entry").reset_index(drop=True)
    assert own.equals(two[0].rows.to_pandas())
    entries = pd.read_json(results / PLACE / ENTRIES, lines=True).set_index("entry")
    assert entries.loc[two[0].name, "record"]["id"] == two[0].record["id"]


def test_pandas_reads_the_shipped_entries() -> None:
    """So it does of the board that is shipped."""
    rows = pd.read_parquet(SHIPPED / "planted" / "snip" / FACTS)
    entries = pd.read_json(SHIPPED / "planted" / "snip" / ENTRIES, lines=True)
    assert set(rows["entry"]) == set(entries["entry"])
    for _, name, record in entries[["entry", "record"]].itertuples():
        asked = record["identity"]["configurations"]
        assert set(rows[rows["entry"] == name]["graft"]) == set(asked)
    assert (
        not pq.ParquetFile(SHIPPED / "planted" / "snip" / FACTS)
        .metadata.row_group(0)
        .column(0)
        .is_stats_set
    )


def test_an_entry_has_the_figures_of_its_run(tmp_path: Path) -> None:
    """None is stored, and all are made of the rows as they were."""
    made = result()
    (entry,) = read_entries(put(tmp_path / "board" / "results", sent(made)))
    assert not {"rows", "synergy", "verdict"} & entry.documents["record.json"].keys()
    assert entry.record == made[0]


def test_entries_come_back_as_they_were_written(results: Path, two: tuple[Sent, Sent]) -> None:
    """Equal entries give equal bytes, whatever the order in which they come."""
    found = {entry.folder.name: entry for entry in read_entries(results)}
    for entry in two:
        assert found[entry.name].documents == entry.documents
        assert found[entry.name].rows().equals(entry.rows)
        assert found[entry.name].facts()["prob"].to_numpy() == pytest.approx(
            np.exp(entry.rows["logprob"].to_numpy())
        )
    again = put(results.parent.parent / "again" / "results", *reversed(two))
    for file in (ENTRIES, FACTS):
        assert (again / PLACE / file).read_bytes() == (results / PLACE / file).read_bytes()


def test_hashes_are_of_what_is_stored(two: tuple[Sent, Sent]) -> None:
    """Neither the order of keys nor chunks or the encoding of texts change them; values do."""
    first, second = two
    rows = first.rows
    coded = rows.set_column(0, "prompt", rows["prompt"].dictionary_encode().cast("string"))
    assert rows_hash(rows) == rows_hash(coded) == rows_hash(rows.slice(0))
    assert len({rows_hash(table) for table in (rows, second.rows, rows.slice(1))}) == 3
    assert document_hash({"a": 1, "b": 2}) == document_hash({"b": 2, "a": 1})
    assert document_hash(first.record) != document_hash(second.record)


def test_entries_are_added_taken_away_and_never_lost(
    results: Path, two: tuple[Sent, Sent], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever writing ends, every entry that is listed has its rows."""
    third = of("tiny-gpt2", 0.7)
    write, left = folders.write_whole, 0

    def ends(path: Path, content: bytes) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        write(path, content)

    monkeypatch.setattr(folders, "write_whole", ends)
    for count in range(4):
        left = count
        try:
            with changed(results / PLACE) as (documents, rows):
                documents.pop(two[0].name, None)
                rows.pop(two[0].name, None)
                documents[third.name], rows[third.name] = third.documents, third.rows
        except KeyboardInterrupt:
            assert count < 3
        folder = read_folder(results / PLACE)
        assert set(folder.documents) in (
            {two[0].name, two[1].name},
            {third.name, two[1].name},
        )
        assert all(folder.rows(name).num_rows == 540 for name in folder.documents)
    assert third.name in folder.documents and refused(results) == []
    left = 9
    with changed(results / PLACE) as (documents, rows):
        documents.clear()
        rows.clear()
    assert not (results / PLACE).exists()


def test_a_folder_that_would_be_too_large_is_not_written(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the check would refuse is not put on the board."""
    before = (results / PLACE / FACTS).read_bytes()
    monkeypatch.setattr(limits, "FACTS_OF_METHOD", len(before) + 10)
    with pytest.raises(InputError, match=f"{FACTS} would have more than"):
        put(results, of("tiny-gpt2", 0.7))
    assert (results / PLACE / FACTS).read_bytes() == before


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (ENTRIES, b"no xz file at all", "does not unpack"),
        (FACTS, b"no Parquet", "no readable per-fact rows"),
        (FACTS, None, "no readable per-fact rows"),
    ],
)
def test_a_damaged_folder_is_named(
    results: Path, file: str, content: bytes | None, words: str
) -> None:
    """What cannot be read is an error that names the file."""
    if content is None:
        (results / PLACE / file).unlink()
    else:
        (results / PLACE / file).write_bytes(content)
    with pytest.raises(DataError, match=f"my-method/{file}: .*{words}"):
        for entry in read_entries(results):
            entry.facts()


def test_one_entry_of_a_method(
    results: Path, two: tuple[Sent, Sent], run: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry is named by the start of its id or name, or by the path of its method folder and its
    name.
    """
    monkeypatch.chdir(results.parent)
    (results.parent / "leaderboard").mkdir()
    (results.parent / "leaderboard" / "results").symlink_to(results)
    name, id = two[1].name, two[1].record["id"]
    path = results / PLACE / name
    entry = find_entry(name, results)
    assert entry.folder == path and entry.method_folder == results / PLACE
    for one in (name, id[:8], id, path, f"{path}/record.json"):
        status, out, _ = run("show", one, "--json")
        assert status == 0 and json.loads(out)["id"] == id
    assert json.loads(run("validate", "--strict", path, "--json")[1])["accepted"] == 1
    assert run("show", results / "pathways" / "dynamic_graft")[0] == 0
    status, _, err = run("show", results / PLACE)
    assert status == 2 and "holds 2 entries: give one as" in err
    for command in ("show", "validate"):
        status, _, err = run(command, results / PLACE / "no-such")
        assert status == 2 and "no-such" in err and err.count("\n") == 1


def test_paths_into_method_folders(results: Path) -> None:
    """Only what is a method folder is taken for one; a leaderboard stands for its results."""
    assert inside_folder(results / PLACE) == (results / PLACE, "")
    assert inside_folder(results / PLACE / "entry") == (results / PLACE, "entry")
    assert inside_folder(results / "pathways") is None
    assert inside_folder(results / PLACE / "facts.parquet") is None
    (results.parent / "README.md").write_text("how to submit")
    for path, count in ((results.parent, 3), (results, 3), (results / "pathways", 3)):
        entries = list(validate(path, strict=True))
        assert len(entries) == count and all(entry.accepted for entry in entries)
