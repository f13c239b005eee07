"""Recovery, sufficiency, necessity and synergy of one prompt and metric, also between two runs.

`scores` maps each configuration to its per-fact scores [n], over the same facts in the same order;
booleans are hits. With m the mean over facts,

    recovery(S)     = (m(S) - m(PRE)) / (m(SFT) - m(PRE))
    sufficiency(S)  = recovery(S)
    necessity(S)    = 1 - recovery(S^C)
    synergy(FE, LT) = sufficiency(FE+LT) - sufficiency(FE) - sufficiency(LT), below 0: redundant

All are ratios of means, and nothing is clamped. Where m(SFT) - m(PRE) may be 0, they are undefined.
For metrics of which less is better, such as the rank, numerator and denominator change their signs
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from kgbench.estimate import Estimate
from kgbench.sites import PATHWAYS, complement
from kgbench.stats.intervals import (
    Array,
    Parts,
    difference,
    divides,
    mean,
    ratio,
    ratio_difference,
)
from kgbench.stats.scores import PromptColumns, Scores, by_prompt, numbers, support_of

COMPLEMENTS: Mapping[str, str] = {
    "ALL": "PRE",
    "NONE": "ALL",
    **{graft: complement(graft) for graft in PATHWAYS},
}
"""Complement of each pathway configuration; that of everything is the recipient."""


NO_GAIN = "the finetuned model is not significantly better than the base"
"""Begins the reason why the ratios of a prompt are undefined."""


def gain(scores: Scores) -> Estimate:
    """m(SFT) - m(PRE), what finetuning added: the denominator of every recovery."""
    return difference(scores["SFT"], scores["PRE"])


def recovery(scores: Scores, graft: str) -> Estimate:
    """The share of what finetuning added that the configuration brings.

    PRE has 0 and SFT has 1 by definition, without an interval's width.

    Args:
        scores: Per-fact scores [n] of each configuration, `PRE` and `SFT` among them.
        graft: The configuration.
    """
    if graft not in scores:
        return Estimate.missing(f"{graft} was not run", len(scores["PRE"]))
    if (reason := no_gain(scores)) is not None:
        return reason
    if graft in ("PRE", "SFT"):
        exact = float(graft == "SFT")
        return Estimate(exact, exact, exact, len(scores["PRE"]))
    return ratio(*recovery_parts(scores, graft))


def recovery_parts(scores: Scores, graft: str) -> Parts:
    """m(S) - m(PRE) and m(SFT) - m(PRE) of each fact; of hits they are integers."""
    pre, sft, grafted = _numbers(scores, "PRE", "SFT", graft)
    return grafted - pre, sft - pre


sufficiency = recovery
"""The effect of these sites alone."""


def necessity(scores: Scores, graft: str, complements: Mapping[str, str] = COMPLEMENTS) -> Estimate:
    """1 - recovery(S^C): the loss where only these sites lack the finetuned weights.

    Args:
        scores: Per-fact scores [n] of each configuration.
        graft: The configuration S.
        complements: The configuration S^C of each S.
    """
    n = len(scores["PRE"])
    if graft in ("PRE", "SFT"):
        return Estimate.missing(f"{graft} is no graft, and necessity is asked of grafts", n)
    if complements.get(graft) not in scores:
        return Estimate.missing("its complement was not run", n)
    return recovery(scores, complements[graft]).one_minus()


def synergy(scores: Scores) -> Estimate:
    """sufficiency(FE+LT) - sufficiency(FE) - sufficiency(LT), as one ratio.

    Args:
        scores: Per-fact scores [n] of each configuration.
    """
    if missing := [graft for graft in ("FE", "LT", "FE+LT") if graft not in scores]:
        *others, last = missing
        names = f"{', '.join(others)} and {last} were" if others else f"{last} was"
        return Estimate.missing(f"{names} not run", len(scores["PRE"]))
    if (undefined := no_gain(scores)) is not None:
        return undefined
    pre, sft, first, two, union = _numbers(scores, "PRE", "SFT", "FE", "LT", "FE+LT")
    return ratio(union - first - two + pre, sft - pre)


def no_gain(scores: Scores) -> Estimate | None:
    """The undefined estimate where the denominator may be 0, else None."""
    pre, sft = _numbers(scores, "PRE", "SFT")
    if divides(sft - pre):
        return None
    added = gain(scores)
    text = f"undefined: {added.undefined}"
    if added.low is not None:
        text = f"{added.value:.3g} [{added.low:.3g}, {added.high:.3g}], n = {added.n}"
    return Estimate.missing(f"{NO_GAIN} (gain {text})", added.n)


def _numbers(scores: Scores, *grafts: str) -> list[Array]:
    return [numbers(scores[graft]) for graft in grafts]


# -------------------------------------------------------------------------------- budget curve
# Recovery where the best-ranked sites are grafted, as their budget grows.

FIRST, LAST = 0.1, 100.0
"""Per cent: the ends of the area; a budget of 0 is drawn, not integrated."""


def area_weights(budgets: Array) -> Array:
    """What each budget's recovery counts in the area.

    The area is the trapezoid over log10(budget) from .1 to 100 %, divided by the width, 3; it is
    thus a weighted mean of recoveries.

    Args:
        budgets: Per cent, ascending; .1 and 100 are among them.

    Returns:
        Weights [n] that sum to 1; 0 outside of .1 to 100.

    Raises:
        ValueError: If the budgets do not reach from .1 to 100.
    """
    inside = (budgets >= FIRST) & (budgets <= LAST)
    logs = np.log10(budgets[inside])
    if (
        len(logs) < 2
        or np.any(np.diff(logs) <= 0)
        or budgets[inside][0] != FIRST
        or budgets[inside][-1] != LAST
    ):
        raise ValueError(
            f"the area needs ascending budgets from {FIRST} to {LAST} %, not {budgets.tolist()}"
        )
    widths = np.diff(logs) / (logs[-1] - logs[0])
    weights = np.zeros(len(budgets))
    weights[inside] = (np.append(widths, 0) + np.append(0, widths)) / 2
    return weights


def curve_area(scores: Scores, budgets: Mapping[str, float]) -> Estimate:
    """The area under the curve, as one ratio of means.

    Args:
        scores: Per-fact scores [n] of each configuration.
        budgets: Configurations and their budgets in per cent, ascending.
    """
    return no_gain(scores) or ratio(*area_parts(scores, budgets))


def area_parts(scores: Scores, budgets: Mapping[str, float]) -> Parts:
    """Numerator and denominator of the area, of each fact.

    Args:
        scores: Per-fact scores [n] of each configuration.
        budgets: Configurations and their budgets in per cent, ascending.
    """
    pre, sft = (np.asarray(scores[name], float) for name in ("PRE", "SFT"))
    shares = area_weights(np.array(list(budgets.values())))
    gained = np.stack([np.asarray(scores[label], float) - pre for label in budgets])
    # Rounded, so that a fact whose every budget gives what the donor gives ties exactly with it.
    return np.round(shares @ gained, 12), sft - pre


# ------------------------------------------------------------------------------------ two runs
# Paired differences of two runs over the same facts.

ROUNDING = 1e-4
"""Largest difference of two equal runs, in nats; of probabilities, as a share."""


@dataclass(frozen=True)
class PairedPrompt:
    """One prompt in two runs, over the facts that both have."""

    name: str
    first: PromptColumns
    second: PromptColumns
    only: tuple[int, int]
    """Number of facts that only the first run has, and only the second."""

    @property
    def shared(self) -> tuple[str, ...]:
        """Configurations that both runs have, in the order of the first."""
        return tuple(graft for graft in self.first.columns if graft in self.second.columns)

    def scores(self, metric: str) -> tuple[dict[str, Array], dict[str, Array]]:
        """Per-fact scores [n] of each configuration in both runs.

        Those that differ by rounding alone are replaced by their mean.
        """
        first, second = self.first.scores(metric), self.second.scores(metric)
        if metric not in ("prob", "logprob", "logit_diff"):
            return first, second
        for graft in self.shared:
            left, two = first[graft], second[graft]
            scale = np.maximum(left, two) if metric == "prob" else 1.0
            near, middle = np.abs(left - two) <= ROUNDING * scale, (left + two) / 2
            first[graft], second[graft] = np.where(near, middle, left), np.where(near, middle, two)
        return first, second


def paired_prompts(
    first: pa.Table, second: pa.Table, order: Sequence[str]
) -> Iterator[PairedPrompt]:
    """Each prompt that both runs have, over the facts that both have.

    A prompt without such facts is left out.

    Args:
        first: Per-fact rows, sorted.
        second: Per-fact rows, sorted.
        order: Configurations that come first; others follow by name.

    Raises:
        DataError: If PRE or SFT is missing, or configurations of a prompt were not run over the
            same facts.
    """
    others = {prompt.name: prompt for prompt in by_prompt(second, order)}
    for here in by_prompt(first, order):
        there = others.get(here.name, here)
        shared = np.intersect1d(here.facts, there.facts)
        if here.name in others and len(shared):
            only = here.n - len(shared), there.n - len(shared)
            yield PairedPrompt(here.name, here.over(shared), there.over(shared), only)


def mean_differences(prompt: PairedPrompt, metric: str) -> dict[str, Estimate]:
    """m(second) - m(first) of each configuration that both runs have.

    The imagined facts of a difference lie as far from 0 as two scores of the metric can be apart,
    or where these have no bounds, as the means of the configurations are.

    Args:
        prompt: The prompt.
        metric: One of METRICS.
    """
    first, second = prompt.scores(metric)
    low, high = support_of((*first.values(), *second.values()), metric)
    reach, differences = high - low, {}
    for graft in prompt.shared:
        left, other = first[graft], second[graft]
        if left.dtype == bool:
            differences[graft] = difference(other, left)
        else:
            differences[graft] = mean(other - left, (-reach, reach))
    return differences


def recovery_difference(first: Scores, second: Scores, graft: str) -> Estimate:
    """recovery(second) - recovery(first) of a configuration; for PRE and SFT 0 by definition.

    Args:
        first: Per-fact scores [n] of each configuration, `PRE` and `SFT` among them.
        second: Those of another, of the same facts in the same order.
        graft: The configuration.
    """
    if (undefined := _no_gain_in(first, second)) is not None:
        return undefined
    if graft in ("PRE", "SFT"):
        return Estimate(0.0, 0.0, 0.0, len(first["PRE"]))
    return ratio_difference(recovery_parts(first, graft), recovery_parts(second, graft))


def area_difference(first: Scores, second: Scores, budgets: Mapping[str, float]) -> Estimate:
    """area(second) - area(first) under the curve of recovery over budgets that both runs have.

    Args:
        first: Per-fact scores [n] of each configuration.
        second: Those of another, of the same facts in the same order.
        budgets: Configurations and their budgets in per cent, ascending.
    """
    undefined = _no_gain_in(first, second)
    return undefined or ratio_difference(area_parts(first, budgets), area_parts(second, budgets))


def _no_gain_in(first: Scores, second: Scores) -> Estimate | None:
    """The undefined estimate where finetuning added nothing in one of the runs."""
    for which, scores in (("first", first), ("second", second)):
        if (reason := no_gain(scores)) is not None:
            return Estimate.missing(f"in the {which} run {reason.undefined}", reason.n)
    return None
