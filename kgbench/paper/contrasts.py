"""Differences of recoveries between configurations and between prompts.

They are ratios of means as `kgbench.stats.ratios` has them, so that their intervals are those of
the difference, fact by fact.
"""

from __future__ import annotations

import numpy as np

from kgbench.estimate import Estimate
from kgbench.stats.intervals import Parts, ratio
from kgbench.stats.ratios import no_gain, recovery_parts
from kgbench.stats.scores import PromptColumns, Scores, numbers


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
    undefined = _missing(scores, first, second) or no_gain(scores)
    return undefined or ratio(*contrast(scores, first, second, share))


def contrast(scores: Scores, first: str, second: str, share: float = 1.0) -> Parts:
    """Numerator and denominator of recovery(first) - share * recovery(second), of each fact.

    Of hits they are integers where the share is 1.
    """
    pre, sft, left, other = (numbers(scores[graft]) for graft in ("PRE", "SFT", first, second))
    apart = left - other if share == 1 else (left - pre) - share * (other - pre)
    return apart, sft - pre


def between_prompts(
    first: PromptColumns, second: PromptColumns, metric: str, graft: str
) -> Estimate:
    """Difference of a configuration's recovery between two prompts, over the facts that both have.

    m(S) - m(SFT) on the first less that on the second, divided by the mean of m(SFT) - m(PRE) over
    both, m being the mean over facts. Where finetuning added as much on both, it is the difference
    of the recoveries.

    Args:
        first: One prompt's per-fact columns.
        second: The other's.
        metric: The metric of the ratios.
        graft: The configuration S.
    """
    shared = np.intersect1d(first.facts, second.facts)
    if not len(shared):
        return Estimate.missing(f"{first.name} and {second.name} have no fact in common", 0)
    here, there = (prompt.scores(metric, shared) for prompt in (first, second))
    undefined = _missing(here, graft) or _missing(there, graft) or no_gain(here) or no_gain(there)
    if undefined is not None:
        return undefined
    recovered, added = recovery_parts(here, graft)
    other_recovered, other_added = recovery_parts(there, graft)
    nearer = (recovered - added) - (other_recovered - other_added)
    return ratio(nearer, (added + other_added) / 2)


def _missing(scores: Scores, *grafts: str) -> Estimate | None:
    unknown = [graft for graft in grafts if graft not in scores]
    if not unknown:
        return None
    return Estimate.missing(f"{' and '.join(unknown)} not run", len(scores["PRE"]))
