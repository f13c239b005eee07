"""Whether a figure is above or below a bound, as far as its interval tells."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, isclose, isfinite
from numbers import Real
from operator import ge, gt, le, lt
from typing import TYPE_CHECKING, Literal

from kgbench.errors import InputError, UnknownNameError
from kgbench.stats import rate_interval

if TYPE_CHECKING:
    from kgbench.estimate import Estimate

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
    """Where it is undecided, how many facts would decide it if estimate and spread stayed as they are; None where no number would. Where
    `is_rate` exactly, else at most about so many."""

    @property
    def n(self) -> int:
        """Number of facts."""
        return self.estimate.n

    @property
    def is_rate(self) -> bool:
        """Whether the interval is that of a hit rate."""
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if value is None or low is None or high is None or not 0 <= value <= 1 or self.n < 1:
            return False
        exact = round(value * self.n) / self.n
        # What is stored has six digits.
        pairs = zip((value, low, high), (exact, *rate_interval(exact, self.n)), strict=True)
        return all(isclose(*ends, abs_tol=2e-6) for ends in pairs)


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
        decision = Decision("undecided", estimate, op, bound)
        exact = round(value * estimate.n) / estimate.n if decision.is_rate else value
        n = (
            _facts_of_a_rate(exact, bound)
            if decision.is_rate
            else _facts_needed(estimate.n, value, (low, high), bound)
        )
        return replace(
            decision, facts_needed=n and max(FEWEST, n, estimate.n + 1 if len(ends) == 2 else 0)
        )
    return Decision("holds" if ends == {True} else "fails", estimate, op, bound)


def _is_number(bound: object) -> bool:
    return not isinstance(bound, bool) and isinstance(bound, Real) and isfinite(bound)


def _facts_of_a_rate(rate: float, bound: float) -> int | None:
    """The least number of facts whose interval of the rate leaves out the bound, or ends on it."""
    if isclose(rate, bound, abs_tol=1e-12):
        return None

    def decided(n: int) -> bool:
        low, high = rate_interval(rate, n)
        return not low < bound < high

    enough = 1
    while not decided(enough):
        enough *= 2
    return bisect_left(range(enough), True, lo=enough // 2, key=decided)


def _facts_needed(n: int, value: float, interval: tuple[float, float], bound: float) -> int | None:
    """How many facts would take the interval to one side of the bound, if its width falls as one over the root of their number.

    Near the ends of what a figure can be it falls faster, so that fewer may do.
    """
    distance = abs(value - bound)
    reach = value - interval[0] if value > bound else interval[1] - value
    if distance <= 1e-9 * reach or distance == 0:  # on the bound, but for rounding
        return None
    return max(1, ceil(n * (reach / distance) ** 2 * (1 - 1e-12)))
