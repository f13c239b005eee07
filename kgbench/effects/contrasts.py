"""Paired differences between configurations and between prompts, in shares of what finetuning added.

Each is one ratio of means of per-fact contrasts, so that its interval is that of the difference, fact by fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kgbench.effects.columns import PromptColumns
from kgbench.effects.ratios import no_gain
from kgbench.estimate import Estimate
from kgbench.stats import Parts, ratio

__all__ = ["between_configurations", "between_prompts", "contrast"]

Array = NDArray[Any]
Scores = Mapping[str, Array]


def between_configurations(
    prompt: PromptColumns, metric: str, first: str, second: str, share: float = 1.0
) -> Estimate:
    """recovery(first) - share * recovery(second) on one prompt.

    Args:
        prompt: The prompt's per-fact columns.
        metric: The metric of the ratios.
        first: A configuration.
        second: Another.
        share: How much of the second is taken off.
    """
    scores = prompt.scores(metric)
    if (missing := _missing(scores, (first, second), prompt.n)) is not None:
        return missing
    if (reason := no_gain(scores)) is not None:
        return reason
    return ratio(*contrast(scores, first, second, share))


def contrast(scores: Scores, first: str, second: str, share: float = 1.0) -> Parts:
    """Numerator and denominator of recovery(first) - share * recovery(second), of each fact.

    Of hits they are integers where the share is 1.
    """
    numbers = _numbers(scores)
    pre, one, other = numbers["PRE"], numbers[first], numbers[second]
    return (one - other if share == 1 else (one - pre) - share * (other - pre)), numbers[
        "SFT"
    ] - pre


def between_prompts(
    first: PromptColumns, second: PromptColumns, metric: str, graft: str
) -> Estimate:
    """How much nearer a configuration comes to the donor on one prompt than on another, over the facts that both have.

    m(S) - m(SFT) on the first less that on the second, divided by the mean of m(SFT) - m(PRE) over both, m being the mean over facts. Where
    finetuning added as much on both, it is the difference of the recoveries.

    Args:
        first: One prompt's per-fact columns.
        second: The other's.
        metric: The metric of the ratios.
        graft: The configuration S.
    """
    shared = np.intersect1d(first.facts, second.facts)
    if not len(shared):
        return Estimate.missing(f"{first.name} and {second.name} have no fact in common", 0)
    scores = [
        {name: values[np.isin(p.facts, shared)] for name, values in p.scores(metric).items()}
        for p in (first, second)
    ]
    for some in scores:
        if (missing := _missing(some, (graft,), len(shared))) is not None:
            return missing
    for some in scores:
        if (reason := no_gain(some)) is not None:
            return reason
    here, there = (_numbers(some) for some in scores)
    nearer = (here[graft] - here["SFT"]) - (there[graft] - there["SFT"])
    added = ((here["SFT"] - here["PRE"]) + (there["SFT"] - there["PRE"])) / 2
    return ratio(nearer, added)


def _missing(scores: Scores, grafts: tuple[str, ...], n: int) -> Estimate | None:
    unknown = [graft for graft in grafts if graft not in scores]
    return Estimate.missing(f"{' and '.join(unknown)} not run", n) if unknown else None


def _numbers(scores: Scores) -> dict[str, Array]:
    """Hits as integers, so that they can be subtracted and are still told from other scores."""
    return {
        name: values.astype(np.int64 if values.dtype == bool else np.float64)
        for name, values in scores.items()
    }
