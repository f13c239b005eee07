"""`kgbench show --format`: nothing of a record is lost, and nothing of it means anything to the program
that reads it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import fake_runs
import pytest
from commands import Call
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import OTHER, WORSE, folder, stored

from kgbench.records import Record, load_record
from kgbench.report import FORMULA, csv_text, latex_text, markdown_text
from kgbench.report.export import CSV_COLUMNS, as_csv, figures

RUN = stored()[0]


def renamed(name: str) -> Record:
    """A record of a method with some name, and a figure whose reason is that name too."""
    what = fake_runs.identity(localizer={"name": name, "version": "1"})
    return fake_runs.record(fake_runs.rows(8, prompts=("headline",)), what=what)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_gives_the_record_back() -> None:
    """Every figure of every record stands in a line of its own with interval, n and reason, as the
    record holds it to the last digit.
    """
    records = [RUN, stored(WORSE, seed=3, **OTHER)[0]]
    rows = rows_of(as_csv(records))
    assert tuple(rows[0]) == CSV_COLUMNS
    expected = [(record.id, named) for record in records for named in figures(record)]
    assert len(rows) == len(expected) == 2 * (18 * 16 + 4)
    for row, (id, named) in zip(rows, expected, strict=True):
        assert (row["id"], row["prompt"], row["graft"], row["figure"]) == (
            id,
            named.prompt,
            named.graft,
            named.figure,
        )
        numbers = [float(row[end]) if row[end] else None for end in ("value", "low", "high")]
        estimate = named.estimate
        assert (*numbers, int(row["n"])) == (
            estimate.value,
            estimate.low,
            estimate.high,
            estimate.n,
        )
        assert row["undefined"] == (estimate.undefined or "")
        assert bool(row["undefined"]) == (row["low"] == "")


def test_every_row_of_a_record_has_all_its_figures() -> None:
    """What is exported of a configuration is every figure that its row has."""
    names = {named.figure for named in figures(RUN) if named.graft == "FE"}
    from kgbench.records import FIGURES

    assert names == set(FIGURES)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
def test_csv_is_no_formula(text: str) -> None:
    """No cell begins as a formula does, and a reader that takes off the apostrophe has the text
    again.
    """
    cell = csv_text(text)
    assert not cell.startswith(FORMULA)
    assert cell.removeprefix("'" if text.startswith(FORMULA) else "") == text


@pytest.mark.parametrize("name", ["=1+1", "+SUM(A1)", "-2", '@cmd|"/c calc"!A1', 'a,"b"\nc'])
def test_names_survive_csv(name: str) -> None:
    """A name that looks like a formula is guarded, and numbers below 0 are not."""
    rows = rows_of(as_csv([renamed(name)]))
    assert {row["localizer"] for row in rows} == {csv_text(name)}
    negative = [row["value"] for row in rows if row["figure"] == "logprob"]
    assert all(value.startswith("-") for value in negative)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_markdown_cells_stay_cells(text: str) -> None:
    """No text ends its cell or its line, opens a tag or makes a link."""
    cell = markdown_text(text)
    assert "\n" not in cell and "<" not in cell and not re.search(r"(?<!\\)(\\\\)*[|\[\]`*]", cell)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_latex_is_text(text: str) -> None:
    """Every mark that LaTeX reads as a command stands behind a backslash, and lines do not break."""
    plain = re.sub(
        r"\\(?:text[a-z]+\{\}|ldots\{\}|[&%$#_{}])|\$(?:-|\\times|\\geq|\\leq)\$",
        "",
        latex_text(text),
    )
    assert not set(plain) & set('\\&%$#_{}~^<>|"\n')


def test_command(tmp_path: Path, run: Call) -> None:
    """To stdout or a file; JSON is that of `eval`; of several runs all are there."""
    first, second = folder(tmp_path), folder(tmp_path, *stored(WORSE, **OTHER))
    status, out, _ = run("show", first, "--format", "csv")
    assert status == 0 and out == as_csv([load_record(str(first), tmp_path).record])
    table = tmp_path / "table.tex"
    status, out, err = run("show", first, second, "--format", "latex", "-o", table)
    assert (status, out) == (0, "") and "table.tex" in err
    assert r"\toprule" in table.read_text()
    shown = json.loads(run("show", first, "--json")[1])
    assert json.loads(run("show", first, second, "--json")[1])["runs"][0] == shown
    both = run("show", first, second)[1]
    assert all(run("show", each)[1] in f"{both}" for each in (first, second))
