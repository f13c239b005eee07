"""The synthetic leaderboard: as good as a real one to whatever reads it."""

from __future__ import annotations

from collections import Counter

import pytest
from many_records import write_many

from kgbench.leaderboard.entries import Entry, read_entries
from kgbench.models.catalog import plants
from kgbench.stats import rescored


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    """Those of the first few methods, with few facts."""
    folder = tmp_path_factory.mktemp("results")
    write_many(folder, n=100, facts=30, variants=2)
    return list(read_entries(folder))


def test_every_entry_is_another(entries: list[Entry]) -> None:
    """Each is of its own method, pair and configurations, and has an id of its own."""
    assert len({entry.record.id for entry in entries}) == len(entries) == 100
    assert len(
        {(entry.method, entry.pair, entry.record.identity.configurations) for entry in entries}
    ) == len(entries)


def test_methods_are_on_all_cells(entries: list[Entry]) -> None:
    """A method has two records of every tiny pair, random, which only ranks, has one, and each has
    one of every plant.

    The oracle has to be told the answer, and so is on plants alone.
    """
    cells = Counter(entry.method for entry in entries)
    assert cells["none"] == cells["all"] == 8 + len(plants())
    assert cells["random"] == 4 + len(plants())
    assert cells["oracle"] == len(plants())


def test_figures_follow_from_rows(entries: list[Entry]) -> None:
    """Computed anew from the rows beside it, a record comes out the same."""
    by_kind = {
        (len(entry.record.identity.configurations), entry.pair in plants() and entry.pair): entry
        for entry in entries
    }
    assert len(by_kind) == 2 + len(plants())
    for entry in by_kind.values():
        assert rescored(entry.record, entry.facts()) == entry.record
