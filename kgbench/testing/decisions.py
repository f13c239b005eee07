"""Whether a figure keeps a bound, decided by its interval, and the sentence on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from numbers import Real
from operator import ge, gt, le, lt
from typing import Any, Literal

from kgbench.errors import InputError, check_choice
from kgbench.estimate import Estimate
from kgbench.numbers import count_text, figure_text, number_text, plain_text, reason_text
from kgbench.testing.undecided import report_undecided

FEWEST = 10
"""Fewer facts never decide anything."""

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {"ge": ge, "gt": gt, "le": le, "lt": lt}

BROKEN: Mapping[str, str] = {
    "ge": "is below",
    "gt": "is not above",
    "le": "is above",
    "lt": "is not below",
}
"""Relation of a figure to the bound that it breaks."""


@dataclass(frozen=True)
class Decision:
    """Whether the whole interval of a figure keeps a bound, or none of it does; in words by `str`.

    An end of the interval that lies on the bound keeps `ge` and `le`, and breaks `gt` and `lt`.

    Raises:
        UnknownNameError: There is no such operator.
        InputError: The bound is no finite number.
    """

    estimate: Estimate
    op: str
    """A key of `OPERATORS`."""
    bound: float
    what: str = ""
    """What it is about, such as "headline, FE+LT: sufficiency"."""
    over: str = ""
    """Units of the interval, such as "12 planted sites", where they are not facts; then no number
    of facts would decide."""

    def __post_init__(self) -> None:
        """Check operator and bound."""
        check_choice("operator", self.op, OPERATORS)
        bound: Any = self.bound
        if isinstance(bound, bool) or not isinstance(bound, Real) or not isfinite(bound):
            raise InputError(f"a bound is a finite number, not {bound!r}")

    @property
    def _ends(self) -> set[bool]:
        """Whether the ends of the interval keep the bound; empty where there is none."""
        _, *ends = self.estimate.numbers or (0.0,)
        return {OPERATORS[self.op](end, self.bound) for end in ends}

    @property
    def outcome(self) -> Literal["holds", "fails", "undecided"]:
        """Undecided where points of both kinds lie in the interval or it is over too few facts."""
        if len(self._ends) != 1 or self.estimate.n < FEWEST:
            return "undecided"
        return "holds" if self._ends == {True} else "fails"

    @property
    def facts_needed(self) -> int | None:
        """Number of facts that would decide, with estimate and spread as they are.

        The interval's width falls as 1/√n, and faster near the ends of what a figure can be, where
        fewer may do. None where no number would decide.
        """
        if self.outcome != "undecided" or self.estimate.numbers is None:
            return None
        value, low, high = self.estimate.numbers
        distance = abs(value - self.bound)
        reach = value - low if value > self.bound else high - value
        if distance <= 1e-9 * reach or distance == 0:  # on the bound, but for rounding
            return None
        n = self.estimate.n
        needed = ceil(n * (reach / distance) ** 2 * (1 - 1e-12))
        return max(FEWEST, needed, n + 1 if len(self._ends) == 2 else 0)

    def __str__(self) -> str:
        bound, estimate = f"the bound {plain_text(self.bound)} ({self.op})", self.estimate
        if estimate.undefined is not None:
            lacking = "is undefined"
            if estimate.value is not None:
                lacking = f"{number_text(estimate.value)} has no interval"
            reason = reason_text(estimate.undefined)
            return f"{self.what} {lacking}, so that {bound} is undecided: {reason}"
        numbers, text = estimate.numbers or (), figure_text(estimate)
        # Enough digits to separate the ends from the bound.
        if any(x != self.bound and number_text(x) == number_text(self.bound) for x in numbers):
            text = "{} [{}, {}]".format(*(plain_text(x, 4) for x in numbers))
        units = self.over or count_text(estimate.n, "fact")
        figure = f"{self.what} {text} over {units}"
        if self.outcome == "holds":
            return f"{figure} keeps {bound}"
        if self.outcome == "fails":
            return f"{figure} {BROKEN[self.op]} {bound}"
        few = f": fewer than {FEWEST} do" if estimate.n < FEWEST else " does"
        remedy = "the estimate lies on the bound, so that no number of facts would decide it"
        if self.over:
            remedy = "it is not over facts, so that more of them do not narrow it"
        elif self.facts_needed is not None:
            remedy = f"at most about {self.facts_needed} facts would decide it"
        return f"{figure}{few} not decide {bound}; {remedy}"


def conclude(decisions: Sequence[Decision]) -> None:
    """Fail with the bounds that do not hold, then the undecided ones; or report undecided ones.

    Raises:
        AssertionError: Something fails.
        UndecidedError: Something is undecided, and nothing collects it.
    """
    __tracebackhide__ = True
    undecided = [str(each) for each in decisions if each.outcome == "undecided"]
    if failed := [str(each) for each in decisions if each.outcome == "fails"]:
        raise AssertionError("\n".join([*failed, *(f"undecided: {text}" for text in undecided)]))
    report_undecided(undecided)
