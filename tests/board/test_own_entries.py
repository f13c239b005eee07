"""The project's own entries are what this version computes: a random 2 % of them, each time anew."""

from __future__ import annotations

from random import Random

import pytest
from entries_again import (
    AGAIN,
    SEED,
    agreement_table,
    all_own_entries,
    entry_boards,
    is_the_same,
    read_lines,
)
from pages import block

from kgbench.leaderboard.entries import Entry
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


def test_entries_computed_twice_are_on_the_board() -> None:
    """Each result is of one own entry, once; the documentation's table counts them."""
    lines = read_lines(AGAIN)
    ids = [line["entry"] for line in lines]
    assert len(set(ids)) == len(ids)
    assert set(entry_boards()).issuperset(ids)
    assert block("computed twice") == agreement_table(lines, entry_boards())


def test_the_table_counts_what_differs() -> None:
    """By board, and by whether the machine is another one; nothing that differs is left out."""
    line = {"entry": "1a", "agrees": "yes", "rows": "10", "flipped": "0", "largest": "1e-6"}
    here, there = {**line, "machine": "same"}, {**line, "machine": "other"}
    table = agreement_table(
        [here, {**here, "agrees": "no", "flipped": "2", "largest": ".5"}, there], {"1a": "planted"}
    )
    assert table.splitlines()[2:] == [
        "| planted | other | 1 | 1 | 10 | 0 | 1e-06 |",
        "| planted | same | 2 | 1 | 20 | 2 | 5e-01 |",
    ]
