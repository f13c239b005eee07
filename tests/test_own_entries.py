"""The project's own entries are what this version computes: a random 2 % of them, each time anew."""

from __future__ import annotations

import secrets
from random import Random

import pytest
from entries_again import AGAIN, agreement_table, own_entries, read_lines
from pages import block

from kgbench.leaderboard.entries import Entry
from kgbench.models import catalog
from kgbench.runner import Settings
from kgbench.runner.rerun import Repetition, repeat

SHARE = 0.02
COSTLY = 30.0
"""Seconds beyond which an entry is drawn from by the nightly test alone."""
SEED = secrets.randbelow(10**6)
"""Of the draw, which a failure names."""

OWN = own_entries()
HERE = [entry for entry in OWN if entry.pair.startswith(catalog.shipped())]
"""Those of pairs that come with the package."""


def drawn(entries: list[Entry]) -> list[Entry]:
    """A random share."""
    return Random(SEED).sample(entries, max(1, round(SHARE * len(entries))))


def is_the_same(entry: Entry) -> None:
    """Every row comes out the same within tolerance, and so does the map."""
    settings = Settings(device="cpu")
    again, ids = repeat(entry.record, entry.facts(), Repetition(), settings)
    assert again.agrees, f"{entry.folder.name} (draw {SEED}): {again}"
    assert len(ids) == entry.record.identity.n_facts


def test_every_own_entry_says_where_it_was_computed() -> None:
    """Commit or version, and machine."""
    assert OWN
    for entry in OWN:
        provenance = entry.record.provenance
        assert provenance.kgbench
        assert provenance.platform


def test_a_random_share_of_own_entries() -> None:
    """Computed anew, they agree."""
    for entry in drawn([entry for entry in HERE if entry.record.cost.seconds <= COSTLY]):
        is_the_same(entry)


@pytest.mark.nightly
def test_a_random_share_of_costly_entries() -> None:
    """Likewise, of those that take longer."""
    for entry in drawn([entry for entry in HERE if entry.record.cost.seconds > COSTLY]):
        is_the_same(entry)


def test_entries_computed_twice_are_on_the_board() -> None:
    """Each result is of one own entry, once; the documentation's table counts them."""
    lines = read_lines(AGAIN)
    ids = [line["entry"] for line in lines]
    assert len(set(ids)) == len(ids)
    assert {entry.record.id[:16] for entry in OWN}.issuperset(ids)
    assert block("computed twice") == agreement_table(lines)


def test_the_table_counts_what_differs() -> None:
    """By board, and by whether the machine is another one; nothing that differs is left out."""
    line = {"board": "planted", "agrees": "yes", "rows": "10", "flipped": "0", "largest": "1e-6"}
    here, there = {**line, "machine": "same"}, {**line, "machine": "other"}
    table = agreement_table(
        [here, {**here, "agrees": "no", "flipped": "2", "largest": ".5"}, there]
    )
    assert table.splitlines()[2:] == [
        "| planted | other | 1 | 1 | 10 | 0 | 1e-06 |",
        "| planted | same | 2 | 1 | 20 | 2 | 5e-01 |",
    ]
