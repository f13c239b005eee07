"""The project's own entries are what this version computes: a random 2 % of them, each time anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from entries_again import (
    AGAIN,
    SEED,
    agreement_table,
    all_own_entries,
    entry_boards,
    is_the_same,
    outcome,
    read_lines,
)
from pages import block

from kgbench.leaderboard.boards.planted import ALL_TOKENS, PlantScores, group_of
from kgbench.leaderboard.cells import Plant
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.folders import MethodFolder
from kgbench.leaderboard.limits import RECORD
from kgbench.leaderboard.ranks import better
from kgbench.models import catalog

SHARE = 0.02
COSTLY = 180.0
"""Seconds beyond which an entry is drawn by the nightly test alone."""
HALVES = pytest.mark.parametrize("half", [0, 1])
"""Of the entries: two processes draw from one each."""


def drawn(half: int, costly: bool) -> list[Entry]:
    """A random share of a half, of pairs that come with the package."""
    here = [entry for entry in all_own_entries() if entry.pair.startswith(catalog.shipped())]
    entries = [entry for entry in here[half::2] if (entry.result.cost.seconds > COSTLY) == costly]
    return Random(SEED).sample(entries, min(len(entries), max(1, round(SHARE * len(entries)))))


def test_every_own_entry_says_where_it_was_computed() -> None:
    """Commit or version, and machine."""
    assert all_own_entries()
    for entry in all_own_entries():
        provenance = entry.result.provenance
        assert provenance.kgbench
        assert provenance.platform


@HALVES
def test_a_random_share_of_own_entries(half: int) -> None:
    """Computed anew, they agree."""
    for entry in drawn(half, costly=False):
        is_the_same(entry)


@pytest.mark.nightly
@HALVES
def test_a_random_share_of_costly_entries(half: int) -> None:
    """Likewise, of those that take longer."""
    for entry in drawn(half, costly=True):
        is_the_same(entry)


def test_what_the_oracle_is_better_than() -> None:
    """It finds every block of every plant, and is significantly better than all others but two,
    which the page of plants names.
    """
    scores = defaultdict[str, dict[Plant, float]](dict)
    for entry in all_own_entries():
        if entry.suite == "planted" and group_of(entry.pair) is ALL_TOKENS:
            value = entry.planted.average_precision.value if entry.planted else None
            assert value is not None
            plant = (str(catalog.entry(entry.pair).level), entry.pair)
            scores[entry.method][plant] = value
    assert set(scores["oracle"].values()) == {1.0}
    above = better({method: PlantScores(values) for method, values in scores.items()})
    others = {method for method in above if "oracle" not in above[method]} - {"oracle"}
    assert others == {"attribution_patch", "path_patch"}


def test_entries_computed_twice_are_on_the_board() -> None:
    """Each line is of one own entry as it is now, once; the documentation's table counts them."""
    lines = read_lines(AGAIN)
    outcomes = [line["outcome"] for line in lines]
    assert len(set(outcomes)) == len(outcomes)
    assert set(entry_boards()).issuperset(outcomes)
    assert block("computed twice") == agreement_table(lines, entry_boards())


def test_an_entry_that_is_replaced_is_to_be_computed_again() -> None:
    """Its outcome is another one where a row or a score is, and the same one where none is."""
    entry = next(entry for entry in all_own_entries() if entry.result.scores)
    name, documents, rows = entry.folder.name, entry.documents, entry.rows()
    record = documents[RECORD]
    place = rows.schema.get_field_index("logprob")
    lower = rows.set_column(place, rows.schema.field(place), pc.subtract(rows["logprob"], 1e-6))

    def changed(record: Mapping[str, Any], rows: pa.Table) -> str:
        home = MethodFolder(
            entry.folder.parent, {name: {**documents, RECORD: record}}, {name: rows}
        )
        return outcome(replace(entry, home=home))

    assert changed(record, rows) == outcome(entry)
    assert changed(record, lower) != outcome(entry)
    assert changed({**record, "scores": {"LT": {"emb": {"": 1.5}}}}, rows) != outcome(entry)


def test_the_table_counts_what_differs() -> None:
    """By board, and by whether the machine is another one; nothing that differs is left out."""
    line = {"outcome": "1a", "agrees": "yes", "rows": "10", "flipped": "0", "largest": "1e-6"}
    here, there = {**line, "machine": "same"}, {**line, "machine": "other"}
    table = agreement_table(
        [here, {**here, "agrees": "no", "flipped": "2", "largest": ".5"}, there], {"1a": "planted"}
    )
    assert table.splitlines()[2:] == [
        "| planted | other | 1 | 1 | 10 | 0 | 1e-06 |",
        "| planted | same | 2 | 1 | 20 | 2 | 5e-01 |",
    ]
