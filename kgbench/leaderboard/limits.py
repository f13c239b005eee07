"""The documents of an entry, and how large what is submitted may be."""

from __future__ import annotations

from collections.abc import Mapping

RECORD, FACTS = "record.json", "facts.parquet"
SUBMISSION, VERIFICATION = "submission.json", "verification.json"

KB, MB = 1000, 1000 * 1000

FILE: Mapping[str, int] = {RECORD: 2 * MB, FACTS: 20 * MB}
"""Bytes of the files of a run, which is no entry yet."""

LINE = FILE[RECORD] + 40 * KB
"""Bytes of an entry's record, submission and verification."""

ENTRIES_OF_METHOD, FACTS_OF_METHOD = 25 * MB, 25 * MB
"""Bytes of the two files of a method folder."""

UNPACKED = 200 * MB
"""Bytes of the list of a method's entries, unpacked."""

UNPACKING = 100 * MB
"""Bytes of memory that unpacking it may take."""

ENTRIES = 2000
"""Entries of a method on a board."""

ROWS = 2_000_000
"""Per-fact rows of a file."""

TABLE = 400 * MB
"""Bytes of a file's per-fact rows in memory."""

READ_MEMORY = 2000 * MB
"""Bytes that the child process may take to decode a Parquet file."""

CPU_SECONDS, WALL_SECONDS = 60, 120
"""Seconds of processor time, and by the clock, to decode a Parquet file."""

TEXT = 4000
"""Characters of a text in a JSON file."""
