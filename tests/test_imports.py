"""A user's own JSONL and CSV files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgbench.data import ImportOptions, load_dataset
from kgbench.data.imports import EMPTY, NO_VALUE, read_fact_table
from kgbench.data.rows import rows_of
from kgbench.errors import DataError, InputError

ROW = '{"subject": "a", "object": "b"}'


def texts(*excluded: str) -> st.SearchStrategy[str]:
    """Values that a file can hold: characters, without blanks outside."""
    characters = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
    return (
        st.text(characters, min_size=1)
        .map(str.strip)
        .filter(lambda text: text and text not in excluded)
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imports")


@given(st.lists(st.tuples(texts(), texts(), texts()), min_size=1))
def test_values_survive_jsonl_and_csv(folder: Path, rows: list[tuple[str, str, str]]) -> None:
    """Braces, quotes, separators, line ends and any script come back as they were."""
    names = ("subject", "object", "note")
    jsonl, table = folder / "own.jsonl", folder / "own.csv"
    jsonl.write_text(
        "\n".join(
            json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows
        ),
        encoding="utf-8",
        newline="",
    )
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    for path in (jsonl, table):
        assert [tuple(row.fields.values()) for row in read_fact_table(path).rows] == rows


def test_header_names_columns_and_templates(tmp_path: Path) -> None:
    """A header renames columns, chooses subject and object, and brings templates."""
    path = tmp_path / "own.jsonl"
    header = {
        "kgbench": 1,
        "name": "capitals",
        "subject": "country",
        "object": "capital",
        "columns": {"country": "land"},
    }
    header["templates"] = {"ask": "The capital {P:of} {country} is"}
    path.write_text(
        json.dumps(header)
        + '\n\n{"id": "c/9", "land": " Peru ", "capital": "Lima", "since": 1535, "area": 2.50e2}\n'
    )
    dataset = load_dataset(str(path))
    assert (dataset.name, dataset.subject, dataset.object, dataset.templates) == (
        "capitals",
        "country",
        "capital",
        header["templates"],
    )
    assert dataset.facts[0].id == "c/9"
    assert dataset.facts[0].fields == {
        "country": "Peru",
        "capital": "Lima",
        "since": "1535",
        "area": "2.50e2",
    }


def test_options_overrule_the_header(tmp_path: Path) -> None:
    """What is given as an option wins over what stands in the file."""
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"kgbench": 1, "subject": "a", "object": "b"}\n{"a": "x", "b": "y", "c": "z"}\n'
    )
    table = read_fact_table(path, ImportOptions(object="city", columns={"city": "c"}))
    assert (table.subject, table.object) == ("a", "city")


def test_defaults_prefer_actors(tmp_path: Path) -> None:
    """first_actor and second_actor are subject and object where they are; else the columns of that
    name.
    """
    path = tmp_path / "own.csv"
    path.write_text("\ufeffsubject,first_actor,second_actor,object\n1,2,3,4\n", encoding="utf-8")
    assert (read_fact_table(path).subject, read_fact_table(path).object) == (
        "first_actor",
        "second_actor",
    )
    path.write_text("object,subject\n1,2\n")
    assert (read_fact_table(path).subject, read_fact_table(path).object) == ("subject", "object")


MALFORMED = r"""
own.jsonl | | is empty; expected one fact per line
own.jsonl | ⏎ ⏎ | is empty
own.jsonl | {"kgbench": 1}⏎ | holds no facts
own.jsonl | ROW⏎{oops}⏎ | line 2: is not JSON: .* at column 2
own.jsonl | ROW⏎⏎[1]⏎ | line 3: expected an object of fields, .* found \['1'\]
own.jsonl | ROW⏎{"subject": "c", "object": ["d"]}⏎ | line 2: field 'object': expected a text or a number, found a list
own.jsonl | ROW⏎{"subject": {}, "object": "d"}⏎ | line 2: field 'subject': expected a text or a number, found a dict
own.jsonl | {"subject": "a", "subject": "b"} | line 1: is not a row of facts: it holds the field 'subject' twice
own.jsonl | {"subject": "\ud800", "object": "b"} | line 1: field 'subject': holds half of a surrogate pair
own.jsonl | MANY[ | line 1: is not a row of facts
own.jsonl | {"kgbench": 2}⏎ROW | line 1: the header's field kgbench: Input should be '1'
own.jsonl | {"kgbench": 1, "subjct": "a"}⏎ROW | header's field subjct: Extra.*; it may hold kgbench, name, subject
own.jsonl | {"kgbench": 1, "name": ""}⏎ROW | line 1: the header's field name: .*expected letters
own.jsonl | {"kgbench": 1, "columns": ["a"]}⏎ROW | line 1: the header's field columns: Input should be a valid dict
own.jsonl | {"kgbench": 1, "columns": {"x": "y"}}⏎ROW | no column 'y' to take 'x' from; there are subject, object
own.jsonl | {"kgbench": 1, "columns": {"object": "subject"}}⏎ROW | there is a column 'object' too
own.jsonl | {"kgbench": 1, "subject": "x"}⏎ROW | no column 'x' to be the subject; there are subject, object
own.jsonl | {"kgbench": 1, "subject": "object"}⏎ROW | subject and object are both the column 'object'
own.jsonl | {"a": "1", "b": "2"}⏎ | which column is the subject\? There are a, b; name them
own.parquet | x | is not PARQUET
own.csv | subject,object⏎ | holds no facts
own.csv | subject,object⏎a⏎ | line 2: no row has all of 'subject', 'object'
own.csv | subject,object⏎a,b,c⏎ | line 2: holds 3 cells, but there are 2 columns \(subject, object\)
own.csv | subject,,object⏎a,b,c⏎ | line 1: expected different column names, none empty
own.csv | subject,subject⏎a,b⏎ | line 1: expected different column names
own.csv | subject,object⏎a,"b⏎ | line 2: is not CSV: unexpected end of data
own.csv | subject;object⏎a;b⏎ | which column is the subject\? There are subject;object; name them by --subject
"""
"""Names of files, what they hold (`⏎` ends a line, ROW is a good one), and what is said of them."""


@pytest.mark.parametrize("case", MALFORMED.strip().splitlines())
def test_a_malformed_file_is_one_clear_line(tmp_path: Path, case: str) -> None:
    """Every fault is told in one line, with the line of the file and the field where there is one."""
    name, text, message = (part.strip(" ") for part in case.split("|"))
    text = text.replace("ROW", ROW).replace("MANY[", "[" * 100_000).replace("⏎", "\n")
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message) as caught:
        read_fact_table(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_column_with_gaps_is_left_out(tmp_path: Path) -> None:
    """A column that is empty in some row is no field of any; where a template needs it, the row is
    left out, and its line kept.
    """
    path = tmp_path / "own.csv"
    path.write_text("id,subject,object,note,year\n7,a,b,,1\n8,c,d,x\n9,e,f,y,3\n")
    table = read_fact_table(path)
    assert table.incomplete == {"note": 2, "year": 3}
    assert [row.fields for row in table.rows] == [
        {"subject": s, "object": o} for s, o in ("ab", "cd", "ef")
    ]
    asked = read_fact_table(path, ImportOptions(templates={"ask": "In {year}, {subject} met"}))
    assert asked.dropped == {NO_VALUE: [3]} and len(asked.rows) == 2
    path = tmp_path / "own.jsonl"
    path.write_text(ROW + '\n{"subject": "c", "year": 1}\n{"subject": "e", "object": "f"}\n')
    table = read_fact_table(path)
    assert table.incomplete == {"year": 1} and table.dropped == {EMPTY: [2]}
    path = tmp_path / "own.csv"
    path.write_text("id,subject,object\n7,a,b\n,c,d\n")
    with pytest.raises(DataError, match="line 3: field 'id' is empty"):
        read_fact_table(path)


@pytest.mark.parametrize("empty", ["", ",", ",,,,", ' , ,""'])
def test_rows_of_empty_cells_are_empty_lines(tmp_path: Path, empty: str) -> None:
    """Spreadsheets write them below the last row; they stand for none, and the others keep their
    lines.
    """
    path = tmp_path / "own.csv"
    path.write_text(f"{empty}\nid,subject,object\n7,a,b\n{empty}\n8,c,d\n{empty}\n{empty}\n")
    assert [(row.line, row.id) for row in read_fact_table(path).rows] == [(3, "7"), (5, "8")]


def test_row_numbers_of_pandas_are_left_out(tmp_path: Path) -> None:
    """Its CSV files begin with a column of them, without a name; the facts are the same without."""
    table = pd.DataFrame({"subject": ["a", "b"], "object": ["c", "d"]})
    table.to_csv(tmp_path / "facts.csv")
    numbered = load_dataset(str(tmp_path / "facts.csv")).content_hash
    table.to_csv(tmp_path / "facts.csv", index=False)
    assert load_dataset(str(tmp_path / "facts.csv")).content_hash == numbered


def test_a_named_index_is_a_column() -> None:
    """As in the CSV file of the frame."""
    table = pd.DataFrame({"subject": ["a", "b"], "object": ["c", "d"]})
    assert list(rows_of(table.set_index("subject"))) == list(rows_of(table))


def test_the_roles_can_be_named_by_column(tmp_path: Path) -> None:
    """A renamed column is the subject or object by either of its names."""
    path = tmp_path / "own.csv"
    path.write_text("actor,costar\na,b\n")
    columns = {"first_actor": "actor", "second_actor": "costar"}
    found = [
        read_fact_table(path, ImportOptions(*roles, columns))
        for roles in (("actor", "costar"), ("first_actor", "second_actor"), (None, None))
    ]
    assert {(table.subject, table.object) for table in found} == {("first_actor", "second_actor")}


def test_other_encodings_are_refused(tmp_path: Path) -> None:
    """A file that is not UTF-8 is told so, with the line."""
    path = tmp_path / "own.csv"
    path.write_bytes(b"subject,object\na,b\nZo\xeb,c\n")
    with pytest.raises(DataError, match="line 3: is not UTF-8"):
        read_fact_table(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """What cannot be opened is one clear line too."""
    (tmp_path / "own.jsonl").mkdir()
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_fact_table(tmp_path / "own.jsonl")


def test_faults_of_templates_are_faults_of_input(tmp_path: Path) -> None:
    """A template in a header that does not parse is told at load."""
    path = tmp_path / "own.jsonl"
    path.write_text('{"kgbench": 1, "templates": {"own": "{subject"}}\n' + ROW)
    with pytest.raises(InputError, match="prompt 'own': cannot read the template"):
        load_dataset(str(path))
