"""Undecided claims of assertions, and the records that they read, for pytest to collect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgbench.records import Record


class UndecidedError(AssertionError):
    """The facts do not decide a claim; raised outside of pytest, where nothing collects claims."""


@dataclass(eq=False)
class CollectedClaims:
    """Undecided claims and records of the assertions of a test so far."""

    undecided: list[str] = field(default_factory=list)
    """Messages."""
    records: dict[str, Record] = field(default_factory=dict)
    """By id."""


_stack: list[CollectedClaims] = []


@contextmanager
def collecting() -> Iterator[CollectedClaims]:
    """Collect undecided claims in the innermost block, instead of raising `UndecidedError`."""
    claims = CollectedClaims()
    _stack.append(claims)
    try:
        yield claims
    finally:
        _stack.remove(claims)


def note_record(record: Record) -> None:
    """Collect a record that an assertion reads."""
    if _stack:
        _stack[-1].records[record.id] = record


def report_undecided(messages: Sequence[str]) -> None:
    """Collect undecided claims.

    Raises:
        UndecidedError: Nothing collects them.
    """
    if messages and not _stack:
        raise UndecidedError("\n".join(messages))
    if messages:
        _stack[-1].undecided.extend(messages)
