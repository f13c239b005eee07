"""Boards made of entries: scores, ranks, coverage, and what one record more or less changes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgbench.errors import DataError, OutputError
from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import (
    Badge,
    Board,
    Column,
    Leaderboard,
    Line,
    Measured,
    Table,
    lead,
    ordered,
    spread_text,
)
from kgbench.leaderboard.boards.shares import Contrast, Shares, contrast, share_tables
from kgbench.leaderboard.build import build, differences, make_leaderboard, outputs, render_markdown
from kgbench.leaderboard.cells import Cell, cell_of
from kgbench.leaderboard.entries import Contract, Entry, read_entries
from kgbench.leaderboard.folders import changed
from kgbench.leaderboard.validate.record import record_findings
from kgbench.records import LocalizerRef, Record
from tests.equal_methods import Scored
from tests.fake_runs import RATES
from tests.submissions import CODE, KEPT, entries_of, identity, put, result, sent

PAIRS = ("tiny-gemma", "tiny-gpt2", "tiny-llama", "tiny-pythia")


def submit(
    root: Path,
    method: str,
    rate: float,
    pairs: tuple[str, ...] = PAIRS,
    limit: int | None = None,
    seed: int = 0,
    contract: Contract | None = KEPT,
) -> None:
    """Entries of one method that brings this share by FE and LT."""
    entries = [
        sent(answered(method, rate, pair, limit, seed), code=CODE, contract=contract)
        for pair in pairs
    ]
    put(root / "results", *entries)


@cache
def answered(
    method: str, rate: float, pair: str, limit: int | None, seed: int
) -> tuple[Record, pa.Table]:
    """A run of a method on a pair."""
    what = identity(
        pair,
        LocalizerRef(name=method, version="1 Own 0123456789abcdef"),
        limit=limit,
        seeds=(seed,),
    )
    rates = {**RATES, "FE+LT": rate, "ALL": max(rate, 0.9)}
    return result(what, rates, model=pair, seed=sum(map(ord, method)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A leaderboard of four methods: two alike, one worse, one on a single pair."""
    place = tmp_path_factory.mktemp("leaderboard")
    for method, rate in (("good", 0.96), ("like_it", 0.95), ("worse", 0.4)):
        submit(place, method, rate)
    submit(place, "partial", 0.97, PAIRS[:1])
    return place


def made(place: Path) -> Leaderboard:
    return make_leaderboard(list(read_entries(place / "results")))


def board(leaderboard: Leaderboard, key: str) -> Board:
    return next(board for board in leaderboard.boards if board.key == key)


def lines(table: Table) -> dict[str, Line]:
    return {line.method: line for line in table.lines}


def by_separation(place: Path) -> Table:
    """The means over all cells, ranked by a figure."""

    def share(entry: Entry, cell: Cell) -> dict[str, Contrast | str]:
        return {"separation": contrast(entry.hits[cell.prompt], {"FE+LT": 1, "(FE+LT)^C": -1})}

    shares = Shares(share, "", ranked_by="separation")
    columns = [Column("separation", "separation", "FE+LT less its complement", "higher")]
    return share_tables(list(read_entries(place / "results")), shares, columns, columns)[0]


def test_ranks_and_coverage(root: Path) -> None:
    """Like methods share their ranks, a worse one counts both; one that lacks cells has neither mean
    nor ranks, and its cells are counted.
    """
    overall = by_separation(root)
    found = lines(overall)
    assert {name: line.ranks for name, line in found.items()} == {
        "good": (1, 2),
        "like_it": (1, 2),
        "worse": (3, 3),
        "partial": None,
    }
    assert (
        found["partial"].coverage == (2, 8)
        and not found["partial"].figures
        and "all 8 cells" in found["partial"].unranked
    )
    assert found["good"].coverage == (8, 8) and found["good"].badge == "self-reported"
    assert [line.method for line in overall.lines][-2:] == ["worse", "partial"]
    assert lead(overall).endswith(
        "self-reported); 2 of 3 methods may be the best (like_it besides): every other one "
        "is significantly worse than one of these."
    )
    assert any(
        "over these 4 pairs" in note and "say nothing of other models" in note
        for note in overall.notes
    )


def test_pathways_are_not_ranked(root: Path) -> None:
    """Where nobody knows the truth the table stands, no method has a rank, and a sentence says why."""
    pathways = board(made(root), "pathways")
    assert (
        "the truth on these pairs is not known" in pathways.lead
        and "copies the donor" in pathways.lead
    )
    for table in pathways.tables:
        assert table.ranked_by is None and table.lines
        assert all(line.ranks is None and line.unranked for line in table.lines)


def test_a_rank_that_nobody_verified_is_in_brackets(tmp_path: Path) -> None:
    """It does not push a verified one down, and a verified one has its number plain."""
    submit(tmp_path, "claimed", 0.96)
    submit(tmp_path, "checked", 0.7)
    verify(tmp_path / "results", "checked")
    found = lines(by_separation(tmp_path))
    assert {name: line.rank_text for name, line in found.items()} == {
        "claimed": "(1)",
        "checked": "1",
    }
    text = lead(by_separation(tmp_path))
    assert text.startswith("checked leads with") and "claimed" not in text
    assert text.endswith("there is no other method to compare with.")


@given(seed=st.integers(0, 10**6), claims=st.integers(1, 12))
def test_claims_change_no_rank_of_others(root: Path, seed: int, claims: int) -> None:
    """Ranks of a trusted source are those that it has without what only submitters have run, however
    many these are and whatever they claim.
    """
    claim = next(iter(read_entries(root / "results")))
    assert claim.submission is not None
    code = f"kgbench=={claim.result.provenance.kgbench}"
    project = claim.submission.model_copy(update={"code": code, "source": None})
    own = replace(claim, submission=project)
    rng = np.random.default_rng(seed)

    def measured(entry: Entry, value: float) -> Measured:
        standing = Scored(rng.normal(value, 0.4, size=60))
        return Measured([entry], {"x": standing.figure}, standing)

    trusted = {f"own {i}": measured(own, value) for i, value in enumerate((0.3, 0.5, 0.6, 0.7))}
    every = trusted | {f"claim {i}": measured(claim, rng.uniform()) for i in range(claims)}
    alone, among = ({line.method: line for line in ordered(made)} for made in (trusted, every))
    for name in trusted:
        assert among[name].badge == "maintainers" and among[name].ranks == alone[name].ranks


def verify(results: Path, method: str) -> None:
    """Write what a maintainer would, who ran all facts of a method's entries again."""
    theirs = [entry for entry in entries_of(results) if entry.submission["name"] == method]
    for entry in theirs:
        entry.verify(n=entry.record["identity"]["dataset"]["n"])
    put(results, *theirs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("contract", "words"),
    [
        (
            Contract(kgbench="0.1.0", laws=16, broken=("depends_on_the_sites",)),
            "breaks a law of localizers: depends on the sites",
        ),
        (None, "contract not run"),
    ],
)
def test_a_method_that_breaks_a_law_has_no_rank(
    tmp_path: Path, contract: Contract | None, words: str
) -> None:
    """Nor has one on which nobody tried the laws; its line says so, and it changes no other's rank."""
    submit(tmp_path, "honest", 0.7)
    submit(tmp_path, "cheat", 0.99, contract=contract)
    found = lines(by_separation(tmp_path))
    assert (
        found["honest"].ranks == (1, 1)
        and found["cheat"].ranks is None
        and words in found["cheat"].unranked
    )
    assert found["cheat"].figures["separation"].value is not None
    assert found["cheat"].broken == (contract.broken if contract else ())
    text = dict(outputs(tmp_path))
    law = "breaks a law: depends on the sites"
    assert all(
        (law in text[name].decode()) == bool(contract)
        for name in ("LEADERBOARD.md", "site/pathways.html", "site/methods/cheat.html")
    )
    assert ("contract not run" in text["LEADERBOARD.md"].decode()) == (contract is None)


def test_who_says_so_stands_beside_every_figure_that_leads(root: Path) -> None:
    """Sentence and rank name the source, and nothing is called certain that nobody else ran."""
    leaderboard = made(root)
    text = render_markdown(leaderboard)
    assert "certain" not in text
    assert "self-reported" in lead(by_separation(root)) and all(
        line.rank_text[:1] in ("(", "") for line in by_separation(root).lines
    )
    claims = ranked("b", 1), ranked("b2", 1)
    lines = (*claims, ranked("a", 1, "verified"), ranked("c", 2, "maintainers"))
    apart = Table("t", "T", (Column("x", "x", "x"),), lines, ranked_by="x")
    assert lead(apart).startswith(
        "a leads with .50 [.40, .60] (x, n = 9; verified), and is significantly better than every "
        "other method"
    )


def ranked(name: str, rank: int, badge: Badge = "self-reported") -> Line:
    return Line(
        name, {"x": Estimate(value=0.5, low=0.4, high=0.6, n=9)}, (), (1, 1), badge, (rank, rank)
    )


def test_each_table_says_what_its_own_brackets_hold(root: Path) -> None:
    """Smallest and largest of several pairs are called no interval; figures without brackets have
    none.
    """
    parts = dict(
        zip(
            [
                "head",
                "planted",
                "pathways",
                "budget",
                "organisms",
                "cost",
                "published",
            ],
            sections(root),
            strict=True,
        )
    )
    assert "95 % interval" not in parts["head"]
    assert "Brackets hold 95 % intervals." in parts["pathways"]
    assert "95 % interval" not in parts["cost"] and "without an interval" in parts["cost"]
    (cost,) = (board.tables[0] for board in made(root).boards if board.key == "cost")
    figures = chain.from_iterable(line.figures.values() for line in cost.lines)
    assert spread_text(figures, cost.spread) == "Figures here have no interval"
    (published,) = (b.tables[0] for b in made(root).boards if b.key == "published")
    figures = chain.from_iterable(line.figures.values() for line in published.lines)
    mixed = "Brackets hold 95 % intervals; figures without brackets have none"
    assert spread_text(figures, published.spread) == mixed
    several = spread_text([Estimate(value=1, low=0.5, high=2, n=4)], "range")
    assert several == "Brackets hold the smallest and the largest value, not an interval"
    assert (
        spread_text([Estimate(value=1, low=1, high=1, n=3)], "interval")
        == "Figures here have no interval"
    )
    assert spread_text([Estimate(undefined="why", n=3)], "interval") == ""


def sections(root: Path) -> list[str]:
    return render_markdown(made(root)).split("\n## ")


def test_a_cell_shows_the_record_s_figures(root: Path) -> None:
    """On a single cell, hit rates are the record's own, and sufficiency and necessity agree with
    its.
    """
    leaderboard = made(root)
    table = next(t for t in board(leaderboard, "pathways").tables if t.key == "tiny-gemma-headline")
    line = lines(table)["partial"]
    record = next(entry.record for entry in leaderboard.entries if entry.method == "partial")
    row = next(row for row in record.rows if (row.prompt, row.graft) == ("headline", "FE+LT"))
    assert line.figures["FE+LT"] == row.top5
    assert line.figures["sufficiency"].value == pytest.approx(row.sufficiency.value, rel=1e-5)
    assert line.figures["necessity"].value == pytest.approx(row.necessity.value, rel=1e-5)
    both = line.figures["sufficiency"].value + line.figures["necessity"].value - 1  # type: ignore[operator]
    assert line.figures["separation"].value == pytest.approx(both, rel=1e-4)


def test_a_method_more_changes_no_other_s_figures(root: Path, tmp_path: Path) -> None:
    """Figures and intervals of a method depend on its own records only; of the others nothing but
    the rank may change.
    """
    few, before = tmp_path / "few", made(root)
    for method, rate in (("good", 0.96), ("worse", 0.4)):
        submit(few, method, rate)
    alone = made(few)
    for one, more in zip(alone.boards, before.boards, strict=True):
        for table in one.tables:
            larger = lines(next(t for t in more.tables if t.key == table.key))
            for name, line in lines(table).items():
                few, many = (
                    replace(each, ranks=None, unranked="") for each in (line, larger[name])
                )
                assert few == many


def test_a_record_less_changes_its_own_cells_only(tmp_path: Path) -> None:
    """Without one record its pages are gone, its method's page and the lists change, and nothing
    else does.
    """
    submit(tmp_path, "good", 0.96, PAIRS[:2])
    submit(tmp_path, "worse", 0.4, PAIRS[:2])
    a = dict(outputs(tmp_path))
    run = next(
        e for e in read_entries(tmp_path / "results") if e.method == "worse" and e.pair == PAIRS[1]
    )
    with changed(run.folder.parent) as (documents, rows):
        del documents[run.folder.name], rows[run.folder.name]
    b = dict(outputs(tmp_path))
    gone = {name for name in a if name not in b}
    others = {name for name in b if a[name] != b[name]}
    assert gone == {f"site/runs/{run.result.id[:12]}.html"}
    lists = {
        "LEADERBOARD.md",
        "site/index.html",
        "site/pathways.html",
        "site/cost.html",
    }
    assert others <= {*lists, "site/methods/worse.html"}, others


def test_the_same_entries_give_the_same_bytes(root: Path, tmp_path: Path) -> None:
    """Whatever the order in which entries come, the board is the same."""
    entries = list(read_entries(root / "results"))
    assert render_markdown(make_leaderboard(entries)) == render_markdown(
        make_leaderboard(entries[::-1])
    )


def test_limited_and_further_runs_stand_apart(tmp_path: Path) -> None:
    """A run on some of the facts has a table of its own, and a second seed does not count twice."""
    submit(tmp_path, "good", 0.96)
    submit(tmp_path, "good", 0.5, PAIRS[:1], seed=1)
    submit(tmp_path, "good", 0.9, PAIRS[:1], limit=20)
    pathways = board(made(tmp_path), "pathways")
    assert lines(pathways.tables[0])["good"].coverage == (8, 8)
    assert lines(pathways.tables[0])["good"].figures["sufficiency"].value == pytest.approx(
        0.96, abs=0.03
    )
    apart = [table for table in pathways.tables if "first 20" in table.title]
    assert len(apart) == 2 and all(lines(table)["good"].figures["FE+LT"].n == 20 for table in apart)
    assert any("further run" in note for note in pathways.tables[0].notes)


@pytest.mark.parametrize(
    ("configuration", "limit", "mark"),
    [
        ("FE", None, ""),
        ("FE", 100, " (first 100)"),
        ("top 1%", 100, ""),
        ("top 1%", None, " (all facts)"),
        ("top 1%", 99, " (first 99)"),
    ],
)
def test_each_board_asks_for_its_facts(
    tmp_path: Path, configuration: str, limit: int | None, mark: str
) -> None:
    """Budgets are of the first hundred facts of a pair, other boards of all; a run of others has a
    cell of its own, and its check says what to run.
    """
    submit(tmp_path, "good", 0.96, PAIRS[:1], limit=limit)
    (entry,) = read_entries(tmp_path / "results")
    asked = entry.record.identity.configurations
    what = entry.record.identity.model_copy(update={"configurations": (*asked, configuration)})
    record = entry.record.model_copy(update={"identity": what})
    cell = cell_of(replace(entry, result=record), "qa")
    assert (cell.core, cell.pair) == (not mark, f"tiny-gemma{mark}")
    findings = record_findings(replace(entry, result=record), strict=True)
    notes = [each for each in findings if each.field == "identity.limit"]
    assert [finding.refuses for finding in notes] == [False] * bool(mark)
    if mark and configuration != "FE":
        assert "expected the first 100 facts (--limit 100)" in str(notes[0])


def test_build_and_differences(root: Path, tmp_path: Path) -> None:
    """What is built does not differ; a flipped byte in the Markdown is named; building again mends
    it, and pages too many and too few.
    """
    submit(tmp_path, "good", 0.96, PAIRS[:1])
    files, changed = build(tmp_path)
    assert files == changed and not differences(tmp_path) and build(tmp_path) == (files, 0)
    text = (tmp_path / "LEADERBOARD.md").read_bytes()
    (tmp_path / "LEADERBOARD.md").write_bytes(text[:300] + bytes([text[300] ^ 1]) + text[301:])
    (tmp_path / "site" / "index.html").unlink()
    (tmp_path / "site" / "runs" / "stale.html").write_text("old")
    (told,) = differences(tmp_path)
    assert "LEADERBOARD.md" in told and "line 5" in told
    assert build(tmp_path) == (files, 3) and not differences(tmp_path)
    (tmp_path / "LEADERBOARD.md").unlink()
    shutil.rmtree(tmp_path / "site")
    (told,) = differences(tmp_path)
    assert "LEADERBOARD.md: it is missing" in told and build(tmp_path) == (files, files)


def test_an_error_leaves_the_board_as_it_was(tmp_path: Path) -> None:
    """Where an entry is damaged, neither the summary nor a page is written, and nothing half-made
    stays.
    """
    submit(tmp_path, "good", 0.96, PAIRS[:1])
    build(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    submit(tmp_path, "worse", 0.4, PAIRS[:1])
    facts = next((tmp_path / "results").glob("*/worse")) / "facts.parquet"
    facts.write_bytes(b"damaged")
    with pytest.raises(DataError):
        build(tmp_path)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    assert {path.parent.name for path in after.keys() - before.keys()} == {facts.parent.name}


@pytest.mark.parametrize("name", ["site/methods", "site", "LEADERBOARD.md"])
def test_no_link_is_followed(tmp_path: Path, name: str) -> None:
    """Where a link lies in the place of a page or folder, nothing outside is written or deleted,
    and it is named.
    """
    root, outside = tmp_path / "board", tmp_path / "outside"
    outside.mkdir()
    submit(root, "good", 0.96, PAIRS[:1])
    (outside / "good.html").write_text("mine")
    (root / "site").mkdir()
    if name == "site":
        (root / "site").rmdir()
    (root / name).symlink_to(outside)
    with pytest.raises(OutputError, match="is a link") as told:
        build(root)
    assert name in str(told.value) and "\n" not in str(told.value)
    assert [path.name for path in outside.iterdir()] == ["good.html"]
    assert (outside / "good.html").read_text() == "mine" and (root / name).is_symlink()
    assert any("it is a link" in line for line in differences(root)) == (name == "LEADERBOARD.md")


def test_an_empty_board(tmp_path: Path) -> None:
    """Without entries there are the published figures, and the rest says that there are none."""
    (tmp_path / "results").mkdir()
    text = dict(outputs(tmp_path))["LEADERBOARD.md"].decode()
    assert text.count("No entries yet.") == 4 and "Nothing here was reproduced" in text
