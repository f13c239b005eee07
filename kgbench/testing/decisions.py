"""Whether a figure keeps a bound, decided by its interval, and the sentence on it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isclose, isfinite
from numbers import Real
from operator import ge, gt, le, lt
from typing import Literal

from kgbench.errors import InputError, check_choice
from kgbench.estimate import Estimate
from kgbench.numbers import figure_text, number_text, plain_text, reason_text
from kgbench.stats import rate_interval
from kgbench.testing.undecided import report_undecided

FEWEST = 10
"""Fewer facts never decide anything."""

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {"ge": ge, "gt": gt, "le": le, "lt": lt}


@dataclass(frozen=True)
class Decision:
    """Whether a figure keeps a bound."""

    outcome: Literal["holds", "fails", "undecided"]
    estimate: Estimate
    op: str
    """A key of `OPERATORS`."""
    bound: float
    facts_needed: int | None = None
    """Number of facts that would decide an undecided bound, with estimate and spread as they are.

    Exact where `is_rate`, else an upper estimate; None where no number would decide it.
    """

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

    An end of the interval that lies on the bound keeps `ge` and `le`, and breaks `gt` and `lt`.

    Args:
        estimate: The figure with its interval.
        op: `ge`, `gt`, `le` or `lt`.
        bound: What it is compared with.

    Returns:
        `holds` or `fails`; `undecided` where points of both kinds lie in the interval, where it is
        over fewer than ten facts, and where the figure is undefined.

    Raises:
        UnknownNameError: There is no such operator.
        InputError: The bound is no finite number.
    """
    check_choice("operator", op, OPERATORS)
    if not _is_number(bound):
        raise InputError(f"a bound is a finite number, not {bound!r}")
    value, low, high = estimate.value, estimate.low, estimate.high
    if value is None or low is None or high is None:
        return Decision("undecided", estimate, op, bound)
    ends = {OPERATORS[op](low, bound), OPERATORS[op](high, bound)}
    if len(ends) == 2 or estimate.n < FEWEST:
        decision = Decision("undecided", estimate, op, bound)
        if decision.is_rate:
            n = _facts_of_a_rate(round(value * estimate.n) / estimate.n, bound)
        else:
            n = _facts_needed(estimate.n, value, (low, high), bound)
        least = max(FEWEST, estimate.n + 1 if len(ends) == 2 else 0)
        return replace(decision, facts_needed=n and max(n, least))
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
    """Number of facts whose interval is on one side of the bound, if its width falls as 1/√n.

    Near the ends of what a figure can be it falls faster, so that fewer may do.
    """
    distance = abs(value - bound)
    reach = value - interval[0] if value > bound else interval[1] - value
    if distance <= 1e-9 * reach or distance == 0:  # on the bound, but for rounding
        return None
    return max(1, ceil(n * (reach / distance) ** 2 * (1 - 1e-12)))


BROKEN: Mapping[str, str] = {
    "ge": "is below",
    "gt": "is not above",
    "le": "is above",
    "lt": "is not below",
}
"""Relation of a figure to the bound that it breaks."""


def sentence(decision: Decision, what: str, over: str = "") -> str:
    """The decision, or why there is none, on one line.

    Args:
        decision: The decision.
        what: What it is about, such as "headline, FE+LT: sufficiency".
        over: Units of the interval, such as "12 planted sites", where they are not facts; then no
            number of facts would decide.
    """
    bound = f"the bound {plain_text(decision.bound)} ({decision.op})"
    if decision.estimate.undefined is not None:
        lacking = "is undefined"
        if decision.estimate.value is not None:
            lacking = f"{number_text(decision.estimate.value)} has no interval"
        reason = reason_text(decision.estimate.undefined)
        return f"{what} {lacking}, so that {bound} is undecided: {reason}"
    units = over or f"{decision.n} fact{'s' * (decision.n != 1)}"
    figure = f"{what} {_figure(decision.estimate, decision.bound)} over {units}"
    if decision.outcome == "holds":
        return f"{figure} keeps {bound}"
    if decision.outcome == "fails":
        return f"{figure} {BROKEN[decision.op]} {bound}"
    few = f": fewer than {FEWEST} do" if decision.n < FEWEST else " does"
    remedy = "the estimate lies on the bound, so that no number of facts would decide it"
    if over:
        remedy = "it is not over facts, so that more of them do not narrow it"
    elif decision.facts_needed is not None:
        about = "about" if decision.is_rate else "at most about"
        remedy = f"{about} {decision.facts_needed} facts would decide it"
    return f"{figure}{few} not decide {bound}; {remedy}"


def _figure(estimate: Estimate, bound: float) -> str:
    """The estimate with its interval, in enough digits to separate its ends from the bound."""
    numbers = [x for x in (estimate.value, estimate.low, estimate.high) if x is not None]
    if all(x == bound or number_text(x) != number_text(bound) for x in numbers):
        return figure_text(estimate)
    value, low, high = (plain_text(x, 4) for x in numbers)
    return f"{value} [{low}, {high}]"


def conclude(decisions: Sequence[tuple[Decision, str]]) -> None:
    """Fail with the bounds that do not hold, then the undecided ones; or report undecided ones.

    Args:
        decisions: Decisions, each with its sentence.

    Raises:
        AssertionError: Something fails.
        UndecidedError: Something is undecided, and nothing collects it.
    """
    __tracebackhide__ = True
    undecided = [text for decision, text in decisions if decision.outcome == "undecided"]
    if failed := [text for decision, text in decisions if decision.outcome == "fails"]:
        raise AssertionError("\n".join([*failed, *(f"undecided: {text}" for text in undecided)]))
    report_undecided(undecided)
