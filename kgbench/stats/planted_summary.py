"""Runs on plants: maps against the ground truth, effects of the best sites, and pathways."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kgbench.estimate import Estimate, rounded
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
from kgbench.sites import Graft, Site, SiteScores, parse_graft
from kgbench.sites.configurations import BEST, REST, canonical
from kgbench.stats.ranking_quality import auroc, chance_precision, graded_precision
from kgbench.stats.ratios import necessity, sufficiency
from kgbench.stats.scores import PromptColumns, by_prompt, numbers
from kgbench.stats.verdict import verdict

__all__ = [
    "Ground",
    "against_truth",
    "best_effects",
    "by_place",
    "pathways_of",
    "rejudged",
    "verdict_of",
    "with_clause",
]

Array = NDArray[Any]

Place = tuple[object, ...]
"""A site, or a (layer, component)."""

UNMEASURED = "the plant's card has no graded truth: `kgbench zoo truth PLANT` measures it"


@dataclass(frozen=True)
class Ground:
    """Ground truth of a plant's sites."""

    plant: str
    """Graft expression."""
    decoy: str | None
    """Graft expression of where other facts were planted."""
    sites: Collection[Site]
    """All sites of the pair on the prompts."""
    planted: Collection[Site]
    decoys: Collection[Site]
    changed: Collection[tuple[int | None, str]]
    """(layer, component) whose weights differ between recipient and donor."""
    relevance: Mapping[Any, float] | None = None
    """Relevance of changed places, from the plant's card; None where it was not measured.

    Places in regions that the prompts lack are left out.
    """

    @property
    def graft(self) -> Graft:
        """The plant as a graft."""
        return canonical(parse_graft(self.plant))

    @property
    def everywhere(self) -> bool:
        """Whether facts were planted at all tokens, so that a place is a layer and component."""
        return all(str(term.positions) == "ALL" for term in self.graft.terms)


def against_truth(ground: Ground, scores: SiteScores | None, why_none: str = "") -> dict[str, Any]:
    """Fields of `Planted` from a map of scores, all among places whose weights changed.

    Args:
        ground: The ground truth.
        scores: The map; None where the method does not rank.
        why_none: Why it does not.
    """
    everywhere = ground.everywhere
    moved = _changed(ground, ground.sites)
    true, decoy = _changed(ground, ground.planted), _changed(ground, ground.decoys)
    ranked, separation, chance = by_place(scores or {}, everywhere), None, None
    values, truth = [], []
    for place, score in ranked.items():
        if place in true or place in decoy:
            values.append(score)
            truth.append(place in true)
    if ground.decoy and values:
        separation = auroc(np.array(values), np.array(truth)).rounded()
    precision = Estimate.missing(UNMEASURED)
    if ground.relevance is not None:
        known = [place for place in ground.relevance if place in moved]
        # Rounded, so that what is equal on the card ties.
        relevance = np.array([rounded(ground.relevance[place]) for place in known])
        chance = chance_precision(relevance)
        if scores is not None:
            precision = graded_precision(np.array([ranked[place] for place in known]), relevance)
    if scores is None:
        precision = Estimate.missing(NOT_APPLICABLE + why_none)
    return {
        "plant": ground.plant,
        "decoy": ground.decoy,
        "units": "layer and component" if everywhere else "site",
        "n_units": len(moved),
        "n_true": len(true),
        "k": len(ground.planted),
        "graded_precision": precision.rounded(),
        "chance": None if chance is None else rounded(chance),
        "auroc_decoy": separation,
    }


def _changed(ground: Ground, sites: Collection[Site]) -> set[Place]:
    """Places of sites whose weights changed."""
    everywhere, changed = ground.everywhere, set(ground.changed)
    kept = (site for site in sites if (site.layer, site.component) in changed)
    return {_place(site, everywhere) for site in kept}


def by_place(scores: SiteScores, everywhere: bool) -> dict[Place, float]:
    """Scores by site or, where whole weights were planted, the largest by (layer, component).

    Args:
        scores: The map.
        everywhere: Whether whole weights were planted.
    """
    places: dict[Place, float] = {}
    for site, score in scores.items():
        place = _place(site, everywhere)
        places[place] = max(score, places.get(place, -np.inf))
    return places


def _place(site: Site, everywhere: bool) -> Place:
    return (site.layer, site.component) if everywhere else tuple(site)


CARRIES, NOT = 0.9, 0.1
"""Recovery from which a pathway carries the facts, and up to which it does not."""

OTHER = {"FE": "LT", "LT": "FE", "FE+LT": "(FE+LT)^C"}
"""The pathway that carries nothing of facts planted in another one."""


def rejudged(record: Record, facts: pa.Table) -> Record:
    """The record with the figures of its plant that depend on the metric of the ratios."""
    if record.planted is None:
        return record
    effect, effects = best_effects(record, facts)
    prompts = {name: effects[name] for name in record.planted.prompts}
    changed: dict[str, object] = {"effect": effect, "prompts": prompts}
    if record.planted.pathways is not None:
        changed["pathways"] = pathways_of(record, canonical(parse_graft(record.planted.plant)))
    planted = record.planted.model_copy(update=changed)
    return with_clause(record.model_copy(update={"planted": planted}))


def best_effects(record: Record, facts: pa.Table) -> tuple[Effect, dict[str, Effect]]:
    """Effects of the best-ranked sites, pooled over the prompts and on each."""
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
    shared = reduce(np.intersect1d, [prompt.facts for prompt in prompts])
    first, *others = (prompt.scores(metric, shared) for prompt in prompts)
    sums = {graft: numbers(own) for graft, own in first.items()}
    for scores in others:
        sums = {name: own + numbers(scores[name]) for name, own in sums.items() if name in scores}
    return sums


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
    pathways = {}
    for prompt in dict.fromkeys(row.prompt for row in record.rows):
        if (prompt, planted) in rows and (prompt, other) in rows:
            pathways[prompt] = _pathway(rows[prompt, planted], rows[prompt, other])
    return pathways or None


def _pathway(planted: Row, other: Row) -> Pathway:
    mine, theirs = planted.sufficiency, other.sufficiency
    found: bool | None = None
    told: Literal["told", "not told", "undecided", "not applicable"] = "undecided"
    if not (planted.applicable and other.applicable):
        told = "not applicable"
    if mine.value is not None and theirs.value is not None:
        found = mine.value >= CARRIES and theirs.value <= NOT
    if (mine.low or 0.0) >= CARRIES and theirs.high is not None and theirs.high <= NOT:
        told = "told"
    elif (mine.high is not None and mine.high < CARRIES) or (theirs.low or 0.0) > NOT:
        told = "not told"
    return Pathway(
        planted=planted.graft,
        other=other.graft,
        recovery_planted=mine,
        recovery_other=theirs,
        found=found,
        told=told,
    )


def with_clause(record: Record) -> Record:
    """The record with a clause on the truth in its verdict."""
    return record.model_copy(update={"verdict": verdict_of(record)})


def verdict_of(record: Record) -> str:
    """Verdict from a record's figures; the stored one may have an older version's wording."""
    sentence, at = verdict(record.rows, record.metric, record.curve), f" ({record.metric})."
    if record.planted is None:
        return sentence
    return f"{sentence.removesuffix(at)}; {_clause(record.planted)}{at}"


def _clause(planted: Planted) -> str:
    found, decoy = planted.graded_precision, planted.auroc_decoy
    if found.value is None:
        reason = reason_text(found.undefined or "")
        return f"how well the places are found that the facts use is undefined: {reason}"
    kind = "(layer, component)" if planted.units == "layer and component" else "sites"
    clause = (
        f"among the {planted.n_units} {kind} whose weights changed the ranking finds those that "
        f"the facts use with a graded average precision of {figure_text(found)}"
    )
    if planted.chance is not None:
        clause += f", where chance has {number_text(planted.chance)}"
    if decoy and decoy.value is not None:
        clause += f"; it tells planted ones from the decoy's with an AUROC of {figure_text(decoy)}"
    return clause
