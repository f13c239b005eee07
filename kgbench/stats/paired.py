"""Paired differences of two runs over the same facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgbench.estimate import Estimate
from kgbench.stats.intervals import Array, difference, mean, ratio_difference
from kgbench.stats.ratios import area_parts, no_gain, recovery_parts
from kgbench.stats.scores import PromptColumns, Scores, by_prompt, support_of

__all__ = [
    "PairedPrompt",
    "area_difference",
    "mean_differences",
    "paired_prompts",
    "recovery_difference",
]

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
            one, two = first[graft], second[graft]
            scale = np.maximum(one, two) if metric == "prob" else 1.0
            near, middle = np.abs(one - two) <= ROUNDING * scale, (one + two) / 2
            first[graft], second[graft] = np.where(near, middle, one), np.where(near, middle, two)
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
    for name in dict.fromkeys(first["prompt"].to_pylist()):
        parts = [table.filter(pc.equal(table["prompt"], name)) for table in (first, second)]
        ids = [set(part["fact"].to_pylist()) for part in parts]
        common = pa.array(sorted(ids[0] & ids[1]), pa.string())
        kept = [part.filter(pc.is_in(part["fact"], common)) for part in parts]
        for mine, theirs in zip(*(by_prompt(part, order) for part in kept), strict=True):
            yield PairedPrompt(name, mine, theirs, (len(ids[0] - ids[1]), len(ids[1] - ids[0])))


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
        one, other = first[graft], second[graft]
        if one.dtype == bool:
            differences[graft] = difference(other, one)
        else:
            differences[graft] = mean(other - one, (-reach, reach))
    return differences


def recovery_difference(first: Scores, second: Scores, graft: str) -> Estimate:
    """recovery(second) - recovery(first) of a configuration; for PRE and SFT 0 by definition.

    Args:
        first: Per-fact scores [n] of each configuration, `PRE` and `SFT` among them.
        second: Likewise, of the same facts in the same order.
        graft: The configuration.
    """
    if (reason := _no_gain(first, second)) is not None:
        return reason
    if graft in ("PRE", "SFT"):
        return Estimate(0.0, 0.0, 0.0, len(first["PRE"]))
    return ratio_difference(recovery_parts(first, graft), recovery_parts(second, graft))


def area_difference(first: Scores, second: Scores, budgets: Mapping[str, float]) -> Estimate:
    """area(second) - area(first) under the curve of recovery over budgets that both runs have.

    Args:
        first: Per-fact scores [n] of each configuration.
        second: Likewise, of the same facts in the same order.
        budgets: Configurations and their budgets in per cent, ascending.
    """
    undefined = _no_gain(first, second)
    return undefined or ratio_difference(area_parts(first, budgets), area_parts(second, budgets))


def _no_gain(first: Scores, second: Scores) -> Estimate | None:
    """The undefined estimate where finetuning added nothing in one of the runs."""
    for which, scores in (("first", first), ("second", second)):
        if (reason := no_gain(scores)) is not None:
            return Estimate.missing(f"in the {which} run {reason.undefined}", reason.n)
    return None
