"""Facts and data sets: what is loaded, dropped and hashed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packages import install_package

from kgbench.data import Fact, data_card, dataset_names, hash_facts, load_dataset
from kgbench.data.facts import AMBIGUOUS, DUPLICATE
from kgbench.data.imports import EMPTY
from kgbench.errors import DataError


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def pair(subject: str, object_: str, **more: object) -> dict[str, object]:
    return {"subject": subject, "object": object_, **more}


@pytest.mark.parametrize("name", dataset_names())
def test_every_shipped_set_loads_whole_and_has_a_card(name: str) -> None:
    """A shipped set drops nothing, has stable ids under its own name, and a card that begins with
    that name.
    """
    dataset = load_dataset(name)
    assert dataset.name == name
    assert dataset.dropped == {}
    assert all(fact.id.startswith(f"{name}/") for fact in dataset.facts)
    assert data_card(name).startswith(f"# {name}\n")


def test_data_sets_of_an_installed_package(tmp_path: Path) -> None:
    """An entry point of the group `kgbench.datasets` names a package with facts and cards. Its sets
    are loaded by name, without torch, and take the name of none of kgbench's own; a package that
    does not load is named.
    """
    theirs = tmp_path / "their_data"
    theirs.mkdir()
    (theirs / "__init__.py").touch()
    write(theirs / "capitals.jsonl", pair("Chad", "N'Djamena"), pair("Peru", "Lima"))
    (theirs / "capitals.md").write_text("# capitals\n\nTwo countries.\n")
    write(theirs / "tiny_movies.jsonl", pair("Chad", "N'Djamena"))
    install_package(tmp_path, "kgbench.datasets", {"theirs": "their_data"})
    code = """
import sys
from kgbench.data import data_card, dataset_names, load_dataset
from kgbench.errors import InputError
try:
    assert "capitals" in dataset_names() and "tiny_known_actors" in dataset_names()
    assert [fact.id for fact in load_dataset("capitals:first1").facts] == ["capitals/1"]
    assert data_card("capitals").startswith("# capitals")
    assert len(load_dataset("tiny_movies").facts) == 400
except InputError as error:
    print(error)
assert "torch" not in sys.modules
"""

    def said() -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert said() == ""
    (theirs / "__init__.py").write_text("import no_such_module\n")
    assert "the data sets 'theirs' of an installed package do not load" in said()


def test_what_counts_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suffix, a path separator, or being there makes a name a file; a shipped name stays a
    shipped name.
    """
    monkeypatch.chdir(tmp_path)
    for name in ("absent.jsonl", "absent.CSV", "some/where.csv"):
        with pytest.raises(DataError, match="cannot be read: No such file"):
            load_dataset(name)
    (tmp_path / "facts.txt").write_text("x")
    with pytest.raises(
        DataError, match=r"expected a file that ends with \.jsonl, \.csv, .* or \.parquet"
    ):
        load_dataset("facts.txt")
    (tmp_path / "fake_movies_fake_actors").mkdir()
    assert len(load_dataset("fake_movies_fake_actors").facts) == 1000


def test_dropped_rows_are_counted_by_reason(tmp_path: Path) -> None:
    """Repeated rows go once, ambiguous subjects go wholly, and both are counted; ids count all
    rows.
    """
    path = write(
        tmp_path / "own.jsonl",
        pair("a", "b"),
        pair("c", "d"),
        pair("a", "b"),
        pair("c", "e"),
        pair("f", "d"),
        pair("c", "d"),
    )
    dataset = load_dataset(path)
    assert [fact.id for fact in dataset.facts] == ["own/1", "own/5"]
    assert dataset.dropped == {DUPLICATE: 2, AMBIGUOUS: 2}


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    """A file of ambiguous facts only has no facts."""
    with pytest.raises(DataError, match="no facts left"):
        load_dataset(write(tmp_path / "own.jsonl", pair("a", "b"), pair("a", "c")))


def test_an_id_stands_for_one_fact(tmp_path: Path) -> None:
    """An id may be repeated only by a row that is repeated whole."""
    repeated = write(tmp_path / "own.jsonl", pair("a", "b", id="x"), pair("a", "b", id="x"))
    assert load_dataset(repeated).dropped == {DUPLICATE: 1}
    clash = write(tmp_path / "own.jsonl", pair("a", "b", id="x"), pair("c", "d", id="x"))
    with pytest.raises(DataError, match=r"line 2: field 'id': 'x' is the id of line 1 already"):
        load_dataset(clash)


def test_hash_depends_on_content_only(tmp_path: Path) -> None:
    """JSONL and CSV, here and there, number or text: the same facts have the same hash."""
    rows = [pair("a", "b", year=1990), pair("c", "d", year=1991)]
    (tmp_path / "deeper").mkdir()
    (tmp_path / "own.csv").write_text("subject,object,year\na,b,1990\nc,d,1991\n")
    here, there = (
        write(tmp_path / "own.jsonl", *rows),
        write(tmp_path / "deeper" / "own.jsonl", {"kgbench": 1, "name": "n"}, *rows),
    )
    hashes = {load_dataset(path).content_hash for path in (here, there, str(tmp_path / "own.csv"))}
    assert len(hashes) == 1


@given(st.text(), st.text(), st.text())
def test_hash_tells_contents_apart(identifier: str, value: str, other: str) -> None:
    """Each of id, field, subject and object changes the hash; the order of fields does not."""
    fact = Fact(identifier, {"a": value, "b": ""})
    base = hash_facts([fact], "a", "b")
    assert base == hash_facts([Fact(identifier, {"b": "", "a": value})], "a", "b")
    assert base != hash_facts([fact], "b", "a")
    assert base != hash_facts([fact, fact], "a", "b")
    assert (base == hash_facts([Fact(other, fact.fields)], "a", "b")) is (other == identifier)
    assert (base == hash_facts([Fact(identifier, {"a": other, "b": ""})], "a", "b")) is (
        other == value
    )


def test_one_fact_is_counted_once(tmp_path: Path) -> None:
    """The same subject and object are one fact, whatever other columns say and however the letters
    are composed.
    """
    rows = [
        ("José", "Lima", "a"),
        ("Jose\u0301", "Lima", "b"),
        ("José\u200b", " Lima", "c"),
        ("Ana  Ruiz", "Oslo", "a"),
        ("Ana Ruiz", "Rome", "a"),
    ]
    rows += [("Bo", "", "a"), ("", "Oslo", "a"), ("Cy", "Rome", "a")]
    file = tmp_path / "own.csv"
    file.write_text("subject,object,note\n" + "\n".join(map(",".join, rows)), "utf-8")
    dataset = load_dataset(str(file))
    assert [fact.fields["subject"] for fact in dataset.facts] == ["José", "Cy"]
    assert dataset.dropped == {DUPLICATE: 2, AMBIGUOUS: 2, EMPTY: 2}


def test_sizes_are_bounded(tmp_path: Path) -> None:
    """A field of millions of characters is refused with its line before any tokenizer sees it."""
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"subject": "a" * 10_000_000, "object": "b"}))
    with pytest.raises(
        DataError,
        match=r"line 1: field 'subject': holds 10,000,000 characters; expected 10,000 at most",
    ):
        load_dataset(str(file))


@pytest.mark.parametrize("name", ["/etc/passwd", "../facts", "a/b", "a\\b", "-x", "x" * 101])
def test_the_name_of_a_data_set_is_no_path(tmp_path: Path, name: str) -> None:
    """A header's name stands in records and in names of folders, so that a path is refused with its
    line.
    """
    file = tmp_path / "facts.jsonl"
    header = {"kgbench": 1, "name": name, "subject": "country", "object": "capital"}
    rows = [header, {"country": "France", "capital": "Paris"}]
    file.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    with pytest.raises(DataError, match=r"line 1: the header's field name: .*expected letters"):
        load_dataset(str(file))
