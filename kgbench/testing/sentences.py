"""Decisions in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from kgbench.estimate import Estimate
from kgbench.numbers import figure_text, number_text, plain_text, reason_text
from kgbench.testing.decisions import FEWEST, Decision

__all__ = ["sentence"]

BROKEN: Mapping[str, str] = {
    "ge": "is below",
    "gt": "is not above",
    "le": "is above",
    "lt": "is not below",
}
"""Where a figure lies that breaks a bound."""


def sentence(decision: Decision, what: str, over: str = "") -> str:
    """What is decided, or is not and why, on one line.

    Args:
        decision: The decision.
        what: What it is about, such as "headline, FE+LT: sufficiency".
        over: What the interval is over, such as "12 planted sites", where it is not over facts; then it cannot be said how many more facts
            would decide.
    """
    bound = f"the bound {plain_text(decision.bound)} ({decision.op})"
    if decision.estimate.undefined is not None:
        lacking = (
            "is undefined"
            if decision.estimate.value is None
            else f"{number_text(decision.estimate.value)} has no interval"
        )
        return f"{what} {lacking}, so that {bound} is undecided: {reason_text(decision.estimate.undefined)}"
    figure = (
        f"{what} {_figure(decision.estimate, decision.bound)} over {over or _facts(decision.n)}"
    )
    if decision.outcome == "holds":
        return f"{figure} keeps {bound}"
    if decision.outcome == "fails":
        return f"{figure} {BROKEN[decision.op]} {bound}"
    few = (
        f": fewer than {FEWEST} do not decide {bound}"
        if decision.n < FEWEST
        else f" is not told from {bound}"
    )
    return f"{figure}{few}; {_remedy(decision, over)}"


def _facts(n: int) -> str:
    return f"{n} fact{'s' * (n != 1)}"


def _remedy(decision: Decision, over: str) -> str:
    if over:
        return "it is not over facts, so that more of them do not narrow it"
    if decision.facts_needed is None:
        return "the estimate lies on the bound, so that no number of facts can be said to decide it"
    return f"{'about' if decision.is_rate else 'at most about'} {decision.facts_needed} facts would decide it"


def _figure(estimate: Estimate, bound: float) -> str:
    """The estimate with its interval, in as many digits as tell its ends from the bound."""
    numbers = [x for x in (estimate.value, estimate.low, estimate.high) if x is not None]
    if all(x == bound or number_text(x) != number_text(bound) for x in numbers):
        return figure_text(estimate)
    value, low, high = (plain_text(x, 4) for x in numbers)
    return f"{value} [{low}, {high}]"
