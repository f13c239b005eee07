"""Where assertions leave what the facts do not decide, and the records that they looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgbench.records import Record

__all__ = ["Findings", "UndecidedError", "collecting", "saw", "tell_undecided"]


class UndecidedError(AssertionError):
    """The facts do not tell whether a claim holds; raised outside of pytest only, where nothing collects such claims."""


@dataclass(eq=False)
class Findings:
    """What the assertions of a test have found so far."""

    undecided: list[str] = field(default_factory=list)
    """Messages."""
    records: dict[str, Record] = field(default_factory=dict)
    """By id."""


_stack: list[Findings] = []


@contextmanager
def collecting() -> Iterator[Findings]:
    """Collect what assertions find from now on, instead of raising `UndecidedError`; the innermost collects."""
    found = Findings()
    _stack.append(found)
    try:
        yield found
    finally:
        _stack.remove(found)


def saw(record: Record) -> None:
    """Tell of a record that an assertion looks at."""
    if _stack:
        _stack[-1].records[record.id] = record


def tell_undecided(messages: Sequence[str]) -> None:
    """Tell of claims that are not decided.

    Raises:
        UndecidedError: Nothing collects them.
    """
    if messages and not _stack:
        raise UndecidedError("\n".join(messages))
    if messages:
        _stack[-1].undecided.extend(messages)
