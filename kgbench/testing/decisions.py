"""Whether a figure is above or below a bound, as far as its interval tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from numbers import Real
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Literal

from kgbench.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from kgbench.records import Estimate

__all__ = ["FEWEST", "OPERATORS", "Decision", "decide"]

FEWEST = 10
"""Fewer facts never decide anything."""

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {"ge": ge, "gt": gt, "le": le, "lt": lt}


@dataclass(frozen=True)
class Decision:
    """What an interval says about a bound."""

    outcome: Literal["holds", "fails", "undecided"]
    estimate: Estimate
    op: str
    """A key of `OPERATORS`."""
    bound: float
    facts_needed: int | None = None
    """Where it is undecided, how many facts would decide it if estimate and spread stayed as they are; None where no number would."""

    @property
    def n(self) -> int:
        """Number of facts."""
        return self.estimate.n


def decide(estimate: Estimate, op: str, bound: float) -> Decision:
    """Whether the whole interval keeps a bound, or none of it does.

    Where the interval only touches the bound, the touching point counts as any other: it keeps `ge` and `le`, and breaks `gt` and `lt`.

    Args:
        estimate: The figure with its interval.
        op: `ge`, `gt`, `le` or `lt`.
        bound: What it is compared with.

    Returns:
        `holds` or `fails`; `undecided` where points of both kinds lie in the interval, where it rests on fewer than ten facts, and where
        the figure is undefined.

    Raises:
        UnknownNameError: There is no such operator.
        InputError: The bound is no finite number.
    """
    if op not in OPERATORS:
        raise UnknownNameError("operator", op, OPERATORS)
    if not _is_number(bound):
        raise InputError(f"a bound is a finite number, not {bound!r}")
    value, low, high = estimate.value, estimate.low, estimate.high
    if value is None or low is None or high is None:
        return Decision("undecided", estimate, op, bound)
    ends = {OPERATORS[op](low, bound), OPERATORS[op](high, bound)}
    if len(ends) == 2 or estimate.n < FEWEST:
        return Decision("undecided", estimate, op, bound, _facts_needed(estimate.n, value, (low, high), bound))
    return Decision("holds" if ends == {True} else "fails", estimate, op, bound)


def _is_number(bound: object) -> bool:
    return not isinstance(bound, bool) and isinstance(bound, Real) and isfinite(bound)


def _facts_needed(n: int, value: float, interval: tuple[float, float], bound: float) -> int | None:
    """How many facts would take the interval to one side of the bound: its width falls as one over the root of their number."""
    distance = abs(value - bound)
    reach = value - interval[0] if value > bound else interval[1] - value
    if distance <= 1e-9 * reach or distance == 0:  # on the bound, but for rounding
        return None
    needed = ceil(n * (reach / distance) ** 2 * (1 - 1e-12))
    return max(FEWEST, needed, n + 1 if reach >= distance else 0)
