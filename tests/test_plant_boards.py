"""The board of plants: what is ranked by what, and what means are over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import fake_runs
import numpy as np
import pytest
from submissions import CODE, KEPT, identity

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Line
from kgbench.leaderboard.boards.planted import group_of, planted_board
from kgbench.leaderboard.entries import Entry, Submission
from kgbench.models import catalog
from kgbench.records import (
    NO_INTERVAL_OF_SITES,
    Effect,
    LocalizerRef,
    Planted,
    Record,
    Truth,
)
from kgbench.stats.ranking_quality import expected_precision

PLANTS = catalog.plants()
WHOLE = tuple(name for name in PLANTS if group_of(name).key == "all")


@cache
def template() -> Record:
    rates = {"PRE": 0.0, "SFT": 1.0, **dict.fromkeys(("FE", "LT", "FE+LT", "(FE+LT)^C"), 0.5)}
    return fake_runs.record(fake_runs.rows(n=10, rates=rates), kind="intervention")


def entry(method: str, plant: str, above: float) -> Entry:
    """A run of a method on a shipped plant.

    Args:
        method: Its name, that of the localizer too.
        plant: The plant.
        above: Its average precision above chance, as a share of what is left to 1.
    """
    card, base = catalog.entry(plant), template()
    assert card.plant is not None
    blocks = 16
    chance = expected_precision(blocks, 1)
    half = Estimate(value=0.5, low=0.4, high=0.6, n=40)
    planted = Planted(
        plant=card.plant,
        units="block",
        n_units=blocks,
        n_true=1,
        average_precision=Estimate(
            value=chance + above * (1 - chance), n=blocks, undefined=NO_INTERVAL_OF_SITES
        ),
        chance=chance,
        k=1,
        effect=Effect(sufficiency=half, necessity=half),
        prompts={},
    )
    what = identity(
        plant,
        LocalizerRef(name=method, version="1", parameters={}),
        limit=None,
        configurations=base.identity.configurations,
        truth=Truth(plant=card.plant, decoy=card.decoy),
    )
    record = base.model_copy(
        update={"id": what.digest(), "model": plant, "identity": what, "planted": planted}
    )
    hashes = {"record_hash": "", "facts_hash": ""}
    submission = Submission(record=record.id, name=method, code=CODE, contract=KEPT, **hashes)
    return Entry(Path(method), record, submission, None)


def everywhere(method: str, above: float, seed: int = 0) -> list[Entry]:
    """Runs on all plants, whose figures differ a little."""
    random = np.random.default_rng(seed)
    noise = random.normal(0, 0.03, len(PLANTS)) * (0 < above < 1)
    values = np.clip(above + noise, -0.1, 1)
    return [entry(method, plant, float(own)) for plant, own in zip(PLANTS, values, strict=True)]


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    made: list[Entry] = []
    rates = {"good": 0.9, "middling": 0.5, "random": 0.0, "oracle": 1.0, "none": 0.0}
    for seed, (method, above) in enumerate(rates.items()):
        made += everywhere(method, above, seed)
    return [*made, *everywhere("dynamic_graft", 0.8, 8), *everywhere("graft_scan", 0.8, 8)]


def lines(board: Board, table: int = 0) -> dict[str, Line]:
    """Of a table."""
    return {line.method: line for line in board.tables[table].lines}


def test_what_ranks(entries: list[Entry]) -> None:
    """Average precision ranks; the oracle has 1 and no rank, and what knows nothing is at chance."""
    board = planted_board(entries)
    table, own = board.tables[0], lines(board)
    assert table.ranked_by == "average_precision"
    assert {line.coverage for line in table.lines} == {(len(WHOLE),) * 2}
    assert own["good"].ranks == (1, 1)
    assert own["oracle"].ranks is None
    assert own["oracle"].figures["average_precision"].value == pytest.approx(1)
    assert own["random"].figures["above_chance"].value == pytest.approx(0, abs=1e-6)
    assert own["random"].ranks == own["none"].ranks
    assert own["good"].figures["average_precision"].n == len(WHOLE)
    marks = dict(table.ordered_columns[0].marks)
    chance = own["random"].figures["average_precision"].value
    assert marks["chance, and knowing which weights changed"] == pytest.approx(chance, rel=1e-5)


def test_levels_weigh_the_same(entries: list[Entry]) -> None:
    """The mean over plants is the mean over levels of the means of these, which are shown."""
    board = planted_board(entries)
    levels = {catalog.entry(plant).level for plant in WHOLE}
    for method, line in lines(board, 1).items():
        figures = [figure.value for name, figure in line.figures.items() if name in levels]
        assert len(figures) == len(levels)
        mean = lines(board)[method].figures["average_precision"].value
        assert mean == pytest.approx(np.mean(figures), abs=1e-5)


def test_groups_have_means_and_ranks_of_their_own(entries: list[Entry]) -> None:
    """Facts at some tokens, and a language model that is fetched, are in no other mean."""
    board = planted_board(entries)
    tables = {table.key: table for table in board.tables}
    assert list(tables) == ["all", "levels", "tokens", "smollm2-135m"]
    counts = Counter(group_of(name).key for name in PLANTS)
    assert counts.keys() == tables.keys() - {"levels"}
    for key, n in counts.items():
        assert {line.coverage for line in tables[key].lines} == {(n, n)}
        assert any(line.ranks == (1, 1) for line in tables[key].lines)
    assert [table.brief for table in board.tables] == [True, True, False, False]
    shown = {column.key for column in tables["levels"].columns}
    assert shown >= {"one", "last", "smollm2-135m"}
    lacking = next(name for name in PLANTS if group_of(name).key == "tokens")
    tables = {table.key: table for table in planted_board(without(entries, "good", lacking)).tables}
    for key in counts:
        line = next(line for line in tables[key].lines if line.method == "good")
        assert (line.ranks is None) == (key == "tokens")


def test_methods_are_compared_with_the_prior(entries: list[Entry]) -> None:
    """What a method has above the prior is the difference of the two plant by plant; the prior
    itself has no such figure, and without it no method has one.
    """
    assert "above_prior" not in lines(planted_board(entries))["good"].figures
    prior = everywhere("prior", 0.2, 9)
    for made in map(planted_board, (entries + prior, prior + entries)):
        own = lines(made)
        assert "above_prior" not in own["prior"].figures
        theirs = own["prior"].figures["average_precision"].value
        for method in ("good", "random"):
            ours = own[method].figures["average_precision"].value
            above = own[method].figures["above_prior"]
            assert above.value == pytest.approx(ours - theirs, abs=1e-4)
            assert above.low < above.value < above.high
        said = r"\d of \d methods beat chance and \d of \d beat the prior \(each by its own"
        assert re.search(said, made.lead)


def test_a_scan_has_one_line(entries: list[Entry]) -> None:
    """A method whose map is the scan of another one has no line where that one has; by itself it
    has.
    """
    assert "graft_scan" not in lines(planted_board(entries))
    alone = [e for e in entries if e.method != "dynamic_graft"]
    assert "graft_scan" in lines(planted_board(alone))


def without(entries: Sequence[Entry], method: str, plant: str) -> list[Entry]:
    return [e for e in entries if (e.method, e.record.model) != (method, plant)]


def test_a_mean_needs_all_plants(entries: list[Entry]) -> None:
    """A method that lacks a plant has no mean and no rank, and none on that plant's level."""
    board = planted_board(without(entries, "good", WHOLE[0]))
    assert lines(board)["good"].ranks is None
    assert "average_precision" not in lines(board)["good"].figures
    level = catalog.entry(WHOLE[0]).level
    assert level not in lines(board, 1)["good"].figures
    assert len(lines(board, 1)["good"].figures) > 1
