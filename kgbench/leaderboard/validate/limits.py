"""How large what is submitted may be."""

from __future__ import annotations

from collections.abc import Mapping

from kgbench.leaderboard.entries import FACTS, RECORD, SUBMISSION, VERIFICATION

__all__ = ["ARCHIVE", "ENTRY", "FILE", "FILES_IN_ARCHIVE", "ROWS", "TEXT", "UNPACKED"]

KB, MB = 1000, 1000 * 1000

FILE: Mapping[str, int] = {RECORD: 2 * MB, FACTS: 20 * MB, SUBMISSION: 20 * KB, VERIFICATION: 20 * KB}
"""Bytes of each file; no others belong to an entry."""

ENTRY = 20 * MB
"""Bytes of an entry's files together."""

ARCHIVE = 25 * MB
"""Bytes of an archive as it comes."""

UNPACKED = 200 * MB
"""Bytes of all that an archive holds."""

FILES_IN_ARCHIVE = 8000

ROWS = 2_000_000
"""Per-fact rows of an entry."""

TEXT = 4000
"""Characters of a text in a JSON file."""
