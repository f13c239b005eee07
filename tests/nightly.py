"""Cases of a law that `make test` leaves to `make test-nightly`: further families and combinations.

A law that is marked `crossed` is tried daily on as few combinations of its parameters as hold every
value of each, and nightly on all. One that is marked `sampled(n)` is tried daily on n of its cases,
spread over all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from itertools import chain
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


def mark_cases(items: Iterable[pytest.Item]) -> None:
    """Mark what `crossed` and `sampled` laws try nightly only."""
    crossed, sampled = defaultdict(list), defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not item.get_closest_marker("nightly"):
            for laws, mark in ((crossed, "crossed"), (sampled, "sampled")):
                if item.get_closest_marker(mark):
                    laws[item.nodeid.partition("[")[0]].append(item)
    for cases in crossed.values():
        unseen = {value for case in cases for value in _values(case)}
        while unseen:
            best = max(cases, key=lambda case: len(unseen & _values(case)))
            unseen -= _values(best)
            cases.remove(best)
    for cases in sampled.values():
        (most,) = cases[0].get_closest_marker("sampled").args
        for place in reversed(range(0, len(cases), -(-len(cases) // most))):
            del cases[place]
    for case in chain.from_iterable([*crossed.values(), *sampled.values()]):
        case.add_marker(pytest.mark.nightly)


def _values(case: pytest.Function) -> set[tuple[str, str]]:
    """A case's parameters."""
    return {(name, repr(value)) for name, value in case.callspec.params.items()}
