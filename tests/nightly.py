"""Cases of a law that `make test` leaves to `make test-nightly`: further families and combinations.

A law that is marked `crossed` is tried daily on as few combinations of its parameters as hold every
value of each, and nightly on all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from typing import Any

import pytest


def nightly(cases: Iterable[Any], daily: Container[Any]) -> list[Any]:
    """Cases for `parametrize`, those that are not daily marked.

    Args:
        cases: Values of a parameter, or tuples of several.
        daily: The cases that every run tries.
    """
    marked = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        marks = () if case in daily else pytest.mark.nightly
        marked.append(pytest.param(*values, marks=marks))
    return marked


def mark_combinations(items: Iterable[pytest.Item]) -> None:
    """Mark what `crossed` laws try nightly only."""
    laws = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("crossed"):
            laws[item.nodeid.partition("[")[0]].append(item)
    for cases in laws.values():
        unseen = {value for case in cases for value in _values(case)}
        while unseen:
            best = max(cases, key=lambda case: len(unseen & _values(case)))
            unseen -= _values(best)
            cases.remove(best)
        for case in cases:
            case.add_marker(pytest.mark.nightly)


def _values(case: pytest.Function) -> set[tuple[str, str]]:
    """A case's parameters."""
    return {(name, repr(value)) for name, value in case.callspec.params.items()}
