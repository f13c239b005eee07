"""Entries of the leaderboard: records with what was submitted beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pydantic import ValidationError

from kgbench.errors import DataError
from kgbench.leaderboard.hits import COLUMNS, PromptHits, hits_by_prompt
from kgbench.leaderboard.submission import Contract, Submission, Verification
from kgbench.records import Record, Strict, read_facts, read_record
from kgbench.sites.configurations import parse_top

__all__ = ["FILES", "Entry", "read_entries", "read_entry", "suites_of"]

RECORD, FACTS, SUBMISSION, VERIFICATION = "record.json", "facts.parquet", "submission.json", "verification.json"

FILES = (RECORD, FACTS, SUBMISSION, VERIFICATION)
"""All files that an entry may hold; the last may be missing."""

_M = TypeVar("_M", bound=Strict)


@dataclass(frozen=True, eq=False)
class Entry:
    """A record on the leaderboard."""

    folder: Path
    record: Record
    submission: Submission | None
    """None of a reader's own run, which was never submitted."""
    verification: Verification | None

    @property
    def method(self) -> str:
        """The method's name on the board; a run that was never submitted does not stand in the line of one that was."""
        return self.submission.name if self.submission is not None else f"{self.record.identity.localizer.name} (yours)"

    @property
    def verified(self) -> bool:
        """Whether all facts, or enough that nobody knew beforehand, were run again."""
        return self.verification is not None and self.verification.counts(self.record)

    @property
    def contract(self) -> Contract | None:
        """The laws of localizers as whoever verified found them, otherwise as the submitter says; None where they were not tried."""
        parts = (self.verification, self.submission)
        return next((part.contract for part in parts if part is not None and part.contract is not None), None)

    @property
    def pair(self) -> str:
        """The name of the model pair."""
        return self.record.model

    @cached_property
    def hits(self) -> Mapping[str, PromptHits]:
        """Per-fact hits of each prompt."""
        return hits_by_prompt(read_facts(self.folder / FACTS, COLUMNS))

    def facts(self) -> pa.Table:
        """Its per-fact rows."""
        return read_facts(self.folder / FACTS)


def suites_of(record: Record) -> tuple[str, ...]:
    """Boards that a record has figures for: `planted`, or `pathways`, `budget` or both."""
    if record.planted is not None:
        return ("planted",)
    asked = record.identity.configurations
    pathways = ("pathways",) if "FE+LT" in asked else ()
    return (*pathways, *(("budget",) if any(map(parse_top, asked)) else ()))


def read_entries(results: Path) -> Iterator[Entry]:
    """All entries below a folder, by folder name.

    Raises:
        DataError: If one does not read; it says which.
    """
    for folder in sorted(path.parent for path in results.glob(f"*/{RECORD}")):
        yield read_entry(folder)


def read_entry(folder: Path) -> Entry:
    """One entry.

    Raises:
        DataError: If a part of it does not read, or goes with another record.
    """
    record = read_record(folder).record
    submission, verification = _read(folder / SUBMISSION, Submission), _read(folder / VERIFICATION, Verification)
    for name, part in ((SUBMISSION, submission), (VERIFICATION, verification)):
        if part is not None and part.record != record.id:
            raise DataError(f"{folder / name}: record: it goes with another record than the one beside it")
    return Entry(folder, record, submission, verification)


def _read(path: Path, model: type[_M]) -> _M | None:
    if not path.is_file():
        return None
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        where = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}" if first else str(error)
        raise DataError(f"{path}: {where}") from error
