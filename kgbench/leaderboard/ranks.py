"""Ranks: dense, with groups of methods that a paired bootstrap cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from kgbench.stats import Figure

__all__ = ["Comparable", "dense_ranks"]

_C = TypeVar("_C", bound="Comparable")


class Comparable(Protocol):
    """What methods are ranked by."""

    @property
    def figure(self) -> Figure:
        """The figure with its interval."""

    def difference(self: _C, other: _C) -> Figure:
        """Its paired difference from another method's."""


def dense_ranks(methods: Mapping[str, _C]) -> dict[str, int]:
    """The rank of each method whose figure is defined; higher is better.

    Down from the best, a method opens a new group where the interval of its difference from the first of the group above holds no 0.
    So it can share a rank with the first of a group and differ from another member of it, and the first is the one to compare with.

    Args:
        methods: By name, what they are ranked by; all on the same cells.
    """
    defined = {name: value for name, own in methods.items() if (value := own.figure.value) is not None}
    ranks: dict[str, int] = {}
    first, rank = "", 0
    for name in sorted(defined, key=lambda name: (-defined[name], name)):
        if not rank or _told_apart(methods[name].difference(methods[first])):
            first, rank = name, rank + 1
        ranks[name] = rank
    return ranks


def _told_apart(difference: Figure) -> bool:
    return difference.low is not None and difference.high is not None and not difference.low <= 0 <= difference.high
