"""The project's own entries are what this version computes: a random 2 % of them, each time anew."""

from __future__ import annotations

import secrets
from pathlib import Path
from random import Random

import pytest

from kgbench.leaderboard.entries import ENTRIES, Entry, read_entries
from kgbench.models import catalog
from kgbench.runner import Settings
from kgbench.runner.rerun import Repetition, repeat

SHARE = 0.02
COSTLY = 60.0
"""Seconds beyond which an entry is drawn from by the nightly test alone."""
SEED = secrets.randbelow(10**6)
"""Of the draw, which a failure names."""

OWN = [
    entry
    for entry in read_entries(Path(__file__).parent.parent / ENTRIES)
    if entry.badge == "maintainers"
]
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
