"""A ranking against the truth, from per-fact rows: effects of its best sites, and pathways."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgbench.effects.columns import PromptColumns, by_prompt
from kgbench.effects.ratios import necessity, sufficiency
from kgbench.effects.verdict import verdict
from kgbench.estimate import Estimate
from kgbench.numbers import figure_text, number_text, reason_text
from kgbench.records import (
    NOT_APPLICABLE,
    Effect,
    Pathway,
    Planted,
    Record,
    Row,
    facts_table,
)
from kgbench.sites import Graft, parse_graft
from kgbench.sites.configurations import BEST, REST, canonical

__all__ = ["best_effects", "pathways_of", "rejudged", "verdict_of", "with_clause"]

Array = NDArray[Any]

CARRIES, NOT = 0.9, 0.1
"""Recovery from which a pathway is said to carry the facts, and up to which it is said not to."""

OTHER = {"FE": "LT", "LT": "FE", "FE+LT": "(FE+LT)^C"}
"""The pathway that carries nothing of what was planted in another one."""


def rejudged(record: Record, facts: pa.Table) -> Record:
    """The record with what its truth's figures owe to the metric of the ratios made anew."""
    if record.planted is None:
        return record
    effect, prompts = best_effects(record, facts)
    changed: dict[str, object] = {
        "effect": effect,
        "prompts": {name: prompts[name] for name in record.planted.prompts},
    }
    if record.planted.pathways is not None:
        changed["pathways"] = pathways_of(record, canonical(parse_graft(record.planted.plant)))
    return with_clause(
        record.model_copy(update={"planted": record.planted.model_copy(update=changed)})
    )


def best_effects(record: Record, facts: pa.Table) -> tuple[Effect, dict[str, Effect]]:
    """What the best-ranked sites carry, pooled over the prompts and on each."""
    if BEST not in record.not_applicable:
        return effects_of(facts, BEST, REST, record.metric)
    nothing = Estimate.missing(NOT_APPLICABLE + record.not_applicable[BEST])
    absent = Effect(sufficiency=nothing, necessity=nothing)
    return absent, {row.prompt: absent for row in record.rows}


def effects_of(
    facts: pa.Table, graft: str, complement: str, metric: str
) -> tuple[Effect, dict[str, Effect]]:
    """Effects of a configuration and its complement, pooled over all prompts and on each.

    Pooled, the score of a fact is its sum over the prompts, so that means and their ratios are
    those over all (fact, prompt), while intervals are over facts.

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


def pathways_of(record: Record, plant: Graft) -> dict[str, Pathway] | None:
    """By prompt, whether only the planted pathway carries the facts; None without a graft."""
    positions = {str(term.positions) for term in plant.terms}
    planted = next(iter(positions)) if len(positions) == 1 else ""
    other = OTHER.get(planted, "")
    rows = {(row.prompt, row.graft): row for row in record.rows}
    prompts = dict.fromkeys(row.prompt for row in record.rows)
    found = {
        p: _pathway(rows[p, planted], rows[p, other])
        for p in prompts
        if (p, planted) in rows and (p, other) in rows
    }
    return found or None


def _pathway(planted: Row, other: Row) -> Pathway:
    mine, theirs = planted.sufficiency, other.sufficiency
    found: bool | None = None
    told: Literal["told", "not told", "undecided", "not applicable"] = "undecided"
    if not (planted.applicable and other.applicable):
        told = "not applicable"
    if mine.value is not None and theirs.value is not None:
        found = mine.value >= CARRIES and theirs.value <= NOT
    if _surely(mine, theirs):
        told = "told"
    elif (mine.high is not None and mine.high < CARRIES) or (
        theirs.low is not None and theirs.low > NOT
    ):
        told = "not told"
    return Pathway(
        planted=planted.graft,
        other=other.graft,
        recovery_planted=mine,
        recovery_other=theirs,
        found=found,
        told=told,
    )


def _surely(mine: Estimate, theirs: Estimate) -> bool:
    return (
        mine.low is not None
        and theirs.high is not None
        and mine.low >= CARRIES
        and theirs.high <= NOT
    )


def with_clause(record: Record) -> Record:
    """The record with a clause on the truth in its verdict."""
    return record.model_copy(update={"verdict": verdict_of(record)})


def verdict_of(record: Record) -> str:
    """Verdict from a record's figures; the stored one may have an older version's wording."""
    told, at = verdict(record.rows, record.metric, record.curve), f" ({record.metric})."
    return (
        told
        if record.planted is None
        else f"{told.removesuffix(at)}; {_clause(record.planted)}{at}"
    )


def _clause(planted: Planted) -> str:
    found = planted.graded_precision
    if found.value is None:
        return (
            "how well the places are found that the facts use is undefined: "
            f"{reason_text(found.undefined or '')}"
        )
    kind = "(layer, component)" if planted.units == "layer and component" else "sites"
    decoy = planted.auroc_decoy
    against = (
        f"; it tells planted ones from the decoy's with an AUROC of {figure_text(decoy)}"
        if decoy and decoy.value is not None
        else ""
    )
    chance = "" if planted.chance is None else f", where chance has {number_text(planted.chance)}"
    return (
        f"among the {planted.n_units} {kind} whose weights changed the ranking finds those that "
        "the facts use with a graded average "
        f"precision of {figure_text(found)}{chance}{against}"
    )
