"""Cases of a law that `make test` leaves to `make test-nightly`: the same law on further families."""

from __future__ import annotations

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
