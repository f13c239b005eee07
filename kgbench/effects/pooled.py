"""Sufficiency and necessity over several prompts at once, over whole facts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgbench.effects.columns import PromptColumns, by_prompt
from kgbench.effects.ratios import necessity, sufficiency
from kgbench.records import Effect, facts_table

__all__ = ["effects_of"]

Array = NDArray[Any]


def effects_of(
    facts: pa.Table, graft: str, complement: str, metric: str
) -> tuple[Effect, dict[str, Effect]]:
    """What a configuration and its complement show: pooled over all prompts, and on each.

    Pooled, the score of a fact is its sum over the prompts, so that means and their ratios are those over all (fact, prompt) alike, while
    intervals are over facts.

    Args:
        facts: Per-fact rows.
        graft: The configuration.
        complement: The configuration of all other sites.
        metric: The metric of the ratios.
    """
    prompts = by_prompt(facts_table(facts), ())
    single = {p.name: _effect(p.scores(metric), graft, complement) for p in prompts}
    return _effect(_summed(prompts, metric), graft, complement), single


def _summed(prompts: Sequence[PromptColumns], metric: str) -> dict[str, Array]:
    """Each fact's scores summed over the prompts, of the facts that all prompts have."""
    shared = reduce(np.intersect1d, [p.facts for p in prompts])
    kept = [(p.scores(metric), np.isin(p.facts, shared)) for p in prompts]
    grafts = [graft for graft in kept[0][0] if all(graft in scores for scores, _ in kept)]
    return {
        graft: reduce(np.add, [_number(scores[graft])[where] for scores, where in kept])
        for graft in grafts
    }


def _number(values: Array) -> Array:
    return values.astype(np.int64 if values.dtype == bool else np.float64)


def _effect(scores: dict[str, Array], graft: str, complement: str) -> Effect:
    return Effect(
        sufficiency=sufficiency(scores, graft),
        necessity=necessity(scores, graft, {graft: complement}),
    )
