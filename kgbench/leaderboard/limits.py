"""The files of an entry, and how large what is submitted may be."""

from __future__ import annotations

from collections.abc import Mapping

RECORD, FACTS = "record.json", "facts.parquet"
SUBMISSION, VERIFICATION = "submission.json", "verification.json"

FILES = (RECORD, FACTS, SUBMISSION, VERIFICATION)
"""All files that an entry may hold; the last may be missing."""

KB, MB = 1000, 1000 * 1000

FILE: Mapping[str, int] = {
    RECORD: 2 * MB,
    FACTS: 20 * MB,
    SUBMISSION: 20 * KB,
    VERIFICATION: 20 * KB,
}
"""Bytes of each file; no others belong to an entry."""

ENTRY = 20 * MB
"""Bytes of an entry's files together."""

PACK = 25 * MB
"""Bytes of a pack as it comes."""

UNPACKED = 200 * MB
"""Bytes of all that a pack holds."""

FILES_IN_PACK = 8000

MEMORY = 32 * MB
"""Bytes that unpacking may take in addition to its output; an xz header states its need."""

ROWS = 2_000_000
"""Per-fact rows of an entry."""

TABLE = 400 * MB
"""Bytes of an entry's per-fact rows in memory."""

READ_MEMORY = 2000 * MB
"""Bytes that the child process may take to decode a Parquet file."""

CPU_SECONDS, WALL_SECONDS = 60, 120
"""Seconds of processor time, and by the clock, to decode a Parquet file."""

TEXT = 4000
"""Characters of a text in a JSON file."""
