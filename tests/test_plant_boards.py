"""Boards of plants: what is ranked by what, and answers that do not look at the plant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import fake_runs
import numpy as np
import pytest
from fake_plants import replica_card, shipped_replicas
from hypothesis import given
from hypothesis import strategies as st
from submissions import CODE, KEPT, identity

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Line
from kgbench.leaderboard.boards.planted import (
    FIXED,
    GRAFTS,
    SAME,
    PlantScores,
    components_board,
    distance,
    fixed_answer,
    plant_cells,
    plant_pathways_board,
    positions_board,
)
from kgbench.leaderboard.build import make_leaderboard, render_markdown
from kgbench.leaderboard.cells import Cell
from kgbench.leaderboard.entries import Entry, Submission
from kgbench.leaderboard.ranks import better
from kgbench.models import catalog
from kgbench.records import (
    NO_INTERVAL_OF_SITES,
    Effect,
    LocalizerRef,
    Planted,
    Record,
    Truth,
)

PROMPTS = ("headline", "qa")

Claims = Mapping[str, float]
"""What a method says of each pathway, on every prompt."""

DONOR: Claims = dict.fromkeys(GRAFTS, 1.0)
DONOR_AT_LT: Claims = {"FE": 0.0, "LT": 1.0, "FE+LT": 1.0}


@cache
def template() -> Record:
    rates = {"PRE": 0.0, "SFT": 1.0, **dict.fromkeys((*GRAFTS, "(FE+LT)^C"), 0.5)}
    return fake_runs.record(fake_runs.rows(n=10, rates=rates), kind="intervention")


def truth_of(plant: str) -> dict[str, Claims]:
    """True recoveries by prompt."""
    truth = catalog.graded_truth(plant)
    assert truth is not None
    return {
        prompt: {graft: e.value or 0.0 for graft, e in own.items()}
        for prompt, own in truth.pathways.items()
    }


def entry(
    method: str, plant: str, found: float, claims: Mapping[str, Claims], localizer: str = ""
) -> Entry:
    """A run of a method on a shipped plant or a replica.

    Args:
        method: Its name on the board.
        plant: The plant.
        found: Its graded average precision above chance, as a share of what is left to 1.
        claims: By prompt, what it says of the pathways.
        localizer: Name of the localizer; by default that of the method.
    """
    known = catalog.published(plant)
    assert known is not None and known.truth is not None and known.plant is not None
    truth = known.truth
    base, chance = template(), truth.chance
    half = Estimate(value=0.5, low=0.4, high=0.6, n=40)
    undefined = Estimate(n=0, undefined="nothing to rank")
    value = (
        undefined
        if chance is None
        else Estimate(value=chance + found * (1 - chance), n=9, undefined=NO_INTERVAL_OF_SITES)
    )
    planted = Planted(
        plant=known.plant,
        units="site" if truth.by_region else "layer and component",
        n_units=len(truth.places),
        n_true=1,
        graded_precision=value,
        chance=chance,
        k=1,
        effect=Effect(sufficiency=half, necessity=half),
        prompts={},
    )
    what = identity(
        plant,
        LocalizerRef(name=localizer or method, version="1", parameters={}),
        limit=None,
        configurations=base.identity.configurations,
        truth=Truth(plant=known.plant, decoy=known.decoy),
    )
    rows = tuple(
        row.model_copy(
            update={"sufficiency": Estimate(value=said, low=said - 1, high=said + 1, n=40)}
        )
        if (said := claims[row.prompt].get(row.graft)) is not None
        else row
        for row in base.rows
    )
    record = base.model_copy(
        update={
            "id": what.digest(),
            "model": plant,
            "identity": what,
            "planted": planted,
            "rows": rows,
        }
    )
    hashes = {"record_hash": "", "facts_hash": ""}
    submission = Submission(record=record.id, name=method, code=CODE, contract=KEPT, **hashes)
    return Entry(Path(method), record, submission, None)


def everywhere(
    method: str,
    found: float,
    claims: Claims | None,
    localizer: str = "",
    plants: Sequence[str] | None = None,
) -> list[Entry]:
    """Runs on all shipped plants, or on some; without claims, it says the truth."""
    some = catalog.plants() if plants is None else plants
    said = {
        plant: truth_of(plant) if claims is None else dict.fromkeys(PROMPTS, claims)
        for plant in some
    }
    return [entry(method, plant, found, said[plant], localizer) for plant in some]


@pytest.fixture(scope="module", autouse=True)
def shipped_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A catalog without replicas."""
    with shipped_replicas(tmp_path_factory.mktemp("catalog"), []):
        yield


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    half = dict.fromkeys(GRAFTS, 0.5)
    return [
        *everywhere("good", 0.9, None),
        *everywhere("random", 0.0, half),
        *everywhere("oracle", 1.0, half),
        *everywhere("donor", 0.0, DONOR),
        *everywhere("donor_at_lt", 0.0, DONOR_AT_LT),
        *everywhere("dynamic_graft", 0.8, None),
        *everywhere("graft_scan", 0.8, half),
    ]


def lines(board: Board) -> dict[str, Line]:
    """Of the mean over plants; of a single plant its own, since one plant has no mean."""
    return {line.method: line for line in board.tables[0 if len(board.tables) > 2 else -1].lines}


def test_two_questions_two_boards(entries: list[Entry]) -> None:
    """Plants at all tokens and position plants have a table and ranks each, by the same figure; the
    oracle has no rank, and 1.
    """
    for made, by_region in ((components_board(entries), False), (positions_board(entries), True)):
        cells, _ = plant_cells(by_region)
        if len(cells) == 1:
            assert lines(made)["oracle"].figures["graded_precision"].value == pytest.approx(1)
            continue
        found, table = lines(made), made.tables[0]
        assert table.ranked_by == "graded_precision" and {
            line.coverage for line in table.lines
        } == {(len(cells),) * 2}
        assert found["good"].may_be_best
        assert found["oracle"].ranks is None and found["oracle"].figures[
            "graded_precision"
        ].value == pytest.approx(1)
        assert found["good"].figures["graded_precision"].n == len(cells)
        assert found["random"].figures["above_chance"].value == pytest.approx(0, abs=1e-6)
        assert found["donor"].ranks == found["donor_at_lt"].ranks == found["random"].ranks
        chance = dict(table.ordered_columns[0].marks)["chance, and knowing which weights changed"]
        assert found["random"].figures["graded_precision"].value == pytest.approx(chance, rel=1e-5)
        assert ("told" in {column.key for column in table.columns}) == by_region
    assert {
        cell for by_region in (False, True) for part in plant_cells(by_region) for cell in part
    } == {Cell(True, plant, "") for plant in catalog.plants()}


def test_methods_are_compared_with_the_prior(entries: list[Entry]) -> None:
    """What a method has above the prior is the difference of the two plant by plant; the prior
    itself has no such figure, and without it no method has one.
    """
    assert "above_prior" not in lines(components_board(entries))["good"].figures
    prior = everywhere("prior", 0.2, dict.fromkeys(GRAFTS, 0.5))
    for made in map(components_board, (entries + prior, prior + entries)):
        found = lines(made)
        assert "above_prior" not in found["prior"].figures
        for method in ("good", "random"):
            theirs = found["prior"].figures["graded_precision"].value
            ours = found[method].figures["graded_precision"].value
            assert ours is not None and theirs is not None
            above = found[method].figures["above_prior"]
            assert above.value == pytest.approx(ours - theirs, abs=1e-4)
            assert above.low is not None and above.high is not None
            assert above.low < above.value < above.high
        assert re.search(
            r"\d of \d methods beat chance and \d of \d beat the prior \(95 % intervals\)",
            made.lead,
        )


def test_a_scan_has_one_line(entries: list[Entry]) -> None:
    """A method whose map is the scan of another one has no line where that one has; by itself it
    has.
    """
    assert "graft_scan" not in lines(components_board(entries))
    alone = [e for e in entries if e.method != "dynamic_graft"]
    assert "graft_scan" in lines(components_board(alone))


def test_the_arbiter_has_no_rank(entries: list[Entry]) -> None:
    """Whoever makes the very grafts by which the truth is made is 0 from it, under whatever name,
    and is not ranked.
    """
    found = lines(plant_pathways_board(entries))
    if len(plant_cells(by_region=True)[0]) == 1:
        assert {line.unranked for line in found.values()} == {"ranks are over plants"}
        return
    for name in ("dynamic_graft", "good"):
        assert found[name].ranks is None and "arbiter" in found[name].unranked
        assert found[name].figures["distance"].value == pytest.approx(0, abs=SAME)


def test_an_answer_that_looks_at_no_plant_is_not_above_the_fixed_one(entries: list[Entry]) -> None:
    """Neither the donor whatever is asked, nor the donor where LT is named; who is nearer to the
    truth is told to be.
    """
    near = {
        plant: {p: {g: v + 0.02 for g, v in own.items()} for p, own in truth_of(plant).items()}
        for plant in catalog.plants()
    }
    made = plant_pathways_board(
        [*entries, *(entry("near", plant, 0.5, near[plant]) for plant in catalog.plants())]
    )
    found = lines(made)
    if len(plant_cells(by_region=True)[0]) == 1:
        assert not any(line.rank_text for line in found.values()), "one plant puts nobody in order"
        return
    fixed, cells = found[FIXED], found["near"].coverage[1]
    for name in ("donor", "donor_at_lt", "random"):
        assert (
            found[name].ranks >= fixed.ranks
            and found[name]
            .figures[  # type: ignore[operator]
                "distance"
            ]
            .value
            >= fixed.figures["distance"].value
        )
    assert (
        found["near"].figures["distance"].value == pytest.approx(0.02, abs=1e-3)
        and found["near"].figures["distance"].n == cells
    )
    assert made.tables[0].lines[0].method == "near" and not made.lead.startswith(FIXED)
    assert (f"better than a {FIXED}" in made.lead) == fixed.may_be_best
    assert {table.scope["pair"] for table in made.tables[1:]} == {
        p for p in catalog.plants() if catalog.entry(p).truth.by_region
    }  # type: ignore[union-attr]


recoveries = st.fixed_dictionaries({("qa", graft): st.floats(-0.2, 1.2) for graft in GRAFTS})


@given(st.lists(recoveries, min_size=1, max_size=8), recoveries)
def test_no_fixed_answer_is_nearer_than_the_medians(
    truths: list[dict[tuple[str, str], float]], said: dict[tuple[str, str], float]
) -> None:
    """Whatever is said of every plant alike has no smaller mean distance and no better rank; the
    truth itself has 0.
    """
    fixed = fixed_answer({(str(i), str(i)): truth for i, truth in enumerate(truths)})
    own, others = ([distance(answer, truth) for truth in truths] for answer in (said, fixed))
    assert sum(own) >= sum(others) - 1e-9
    scores = {
        name: PlantScores({(str(i), str(i)): -d for i, d in enumerate(ds)}, (-1, 0))
        for name, ds in (("said", own), ("fixed", others))
    }
    above = better(scores)
    assert len(above["said"]) >= len(above["fixed"])
    assert all(distance(truth, truth) == 0 for truth in truths)


def test_a_truth_is_far_from_another(entries: list[Entry]) -> None:
    """The distance is the mean absolute difference over pathways and prompts."""
    assert (
        distance({("a", "FE"): 0.5, ("b", "FE"): 0.0}, {("a", "FE"): 0.0, ("b", "FE"): 1.0}) == 0.75
    )


# ----------------------------------------------------------------------------------------- replicas


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """A catalog with two or three further seeds of each plant: their names."""
    cards = []
    for i, plant in enumerate(catalog.plants()):
        cards += [replica_card(plant, seed) for seed in range(1, 3 + i % 2)]
    with shipped_replicas(tmp_path, cards):
        yield catalog.replicas()


def noisy(method: str, found: float, plants: Sequence[str], seed: int) -> list[Entry]:
    """Runs of a method whose figures differ a little from plant to plant."""
    rng = np.random.default_rng(seed)
    half = dict.fromkeys(PROMPTS, dict.fromkeys(GRAFTS, 0.5))
    return [
        entry(method, plant, float(np.clip(found + 0.02 * rng.normal(), 0, 1)), half)
        for plant in plants
    ]


def test_tables_are_by_level(replicas: tuple[str, ...]) -> None:
    """The first table is over all seeds, where levels weigh the same; the second over the shipped
    plants; then each level has one over its seeds.
    """
    plants = (*catalog.plants(), *replicas)
    entries = [*noisy("good", 0.8, plants, 0), *noisy("bad", 0.1, plants, 1)]
    for made, by_region in ((components_board(entries), False), (positions_board(entries), True)):
        cells, _ = plant_cells(by_region)
        levels = dict.fromkeys(cell.level for cell in cells)
        whole, shipped, *singles = made.tables
        assert {line.coverage for line in whole.lines} == {(len(cells),) * 2}
        assert {line.coverage for line in shipped.lines} == {(len(levels),) * 2}
        assert [table.key for table in singles] == sorted(levels)
        found = {line.method: line for line in whole.lines}
        assert (found["good"].ranks, found["bad"].ranks) == ((1, 1), (2, 2))
        assert found["good"].figures["graded_precision"].n == len(cells)
        means = []
        for table in singles:
            own = {line.method: line for line in table.lines}["good"]
            seeds = sum(cell.level == table.key for cell in cells)
            assert own.coverage == (seeds, seeds) and len(own.runs) == seeds
            means.append(own.figures["graded_precision"].value)
        mean = found["good"].figures["graded_precision"].value
        assert mean == pytest.approx(np.mean(means), abs=1e-5)
        assert any("training seeds are sampled" in note for note in whole.notes)


def test_a_submission_needs_the_shipped_plants_alone(replicas: tuple[str, ...]) -> None:
    """Run on these it has its rank in their table, beside methods that were run on all, whose
    figures there are of the same plants; in the first table it has none.
    """
    plants = (*catalog.plants(), *replicas)
    entries = [*noisy("all of them", 0.8, plants, 0), *noisy("shipped", 0.9, catalog.plants(), 1)]
    for made in (components_board(entries), positions_board(entries)):
        whole, shipped, *singles = (
            {line.method: line for line in table.lines} for table in made.tables
        )
        assert whole["shipped"].ranks is None and whole["all of them"].ranks == (1, 1)
        assert shipped["shipped"].may_be_best and shipped["all of them"].ranks
        assert shipped["all of them"].figures["graded_precision"].n == len(singles)
        for lines in singles:
            assert lines["shipped"].ranks is None and lines["shipped"].coverage[0] == 1
            assert lines["shipped"].figures["graded_precision"].low is None
    text = render_markdown(make_leaderboard(entries))
    for made in (components_board(entries), positions_board(entries)):
        assert f"{made.tables[1].title}:" in text


def test_the_fixed_answer_is_over_seeds(replicas: tuple[str, ...]) -> None:
    """Pathways too have a table over all seeds, one over the shipped plants and one of each level;
    no answer that looks at no plant is above the fixed one.
    """
    plants = (*catalog.plants(), *replicas)
    half = dict.fromkeys(GRAFTS, 0.5)
    entries = [
        *everywhere("donor", 0.0, DONOR, plants=plants),
        *everywhere("random", 0.0, half, plants=plants),
        *everywhere("shipped", 0.0, DONOR_AT_LT),
    ]
    made = plant_pathways_board(entries)
    cells = [cell for some in plant_cells(by_region=True) for cell in some]
    whole, shipped, *singles = made.tables
    for table in (whole, shipped):
        found = {line.method: line.figures.get("distance") for line in table.lines}
        fixed = found[FIXED]
        assert fixed is not None and fixed.value is not None
        assert all(own is None or (own.value or 0) >= fixed.value - 1e-6 for own in found.values())
    assert {line.method: line.coverage for line in whole.lines}["donor"] == (len(cells),) * 2
    assert [table.key for table in singles] == sorted({cell.level for cell in cells})


def test_levels_weigh_the_same_in_the_fixed_answer() -> None:
    """However many seeds one has."""
    one, other = {("qa", "FE"): 0.0}, {("qa", "FE"): 1.0}
    seeds = {("a", f"a-seed{seed}"): one for seed in range(5)}
    for more in ({("b", "b"): other}, {("b", "b"): other, ("b", "b-seed1"): other}):
        assert fixed_answer({**seeds, **more}) == {("qa", "FE"): 0.5}
