"""Planted runs: the map against the plant and its graded truth, effects of its best sites, pathways."""

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
from kgbench.stats.ranking import auroc, chance_precision, graded_precision
from kgbench.stats.ratios import necessity, sufficiency
from kgbench.stats.scores import PromptColumns, by_prompt
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
    """What is known of a plant's sites."""

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
    """Relevance of changed places, as on the plant's card; None where it was not measured. Those in regions that the prompts lack are
    left out."""

    @property
    def graft(self) -> Graft:
        """The plant as a graft."""
        return canonical(parse_graft(self.plant))

    @property
    def everywhere(self) -> bool:
        """Whether facts were planted at all tokens, so that a place is a layer and component."""
        return all(str(term.positions) == "ALL" for term in self.graft.terms)


def against_truth(ground: Ground, scores: SiteScores | None, why_none: str = "") -> dict[str, Any]:
    """The fields of `Planted` that a map of scores gives, by name; all are among places whose weights changed.

    Args:
        ground: What is known of the plant.
        scores: The map; None where the method does not rank.
        why_none: Why it does not.
    """
    everywhere = ground.everywhere
    changed = set(ground.changed)
    moved, true, decoy = (
        {_place(site, everywhere) for site in sites if (site.layer, site.component) in changed}
        for sites in (ground.sites, ground.planted, ground.decoys)
    )
    known = (
        None
        if ground.relevance is None
        else {place: r for place, r in ground.relevance.items() if place in moved}
    )
    found = by_place(scores or {}, everywhere)
    against = (
        [place for place in found if place in true | decoy]
        if ground.decoy and scores is not None
        else []
    )
    planted = np.array([place in true for place in against])
    chance = None if known is None else chance_precision(_values(known))
    return {
        "plant": ground.plant,
        "decoy": ground.decoy,
        "units": "layer and component" if everywhere else "site",
        "n_units": len(moved),
        "n_true": len(true),
        "k": len(ground.planted),
        "graded_precision": _graded(
            found if scores is not None else None, known, why_none
        ).rounded(),
        "chance": None if chance is None else rounded(chance),
        "auroc_decoy": auroc(np.array([found[place] for place in against]), planted).rounded()
        if against
        else None,
    }


def _graded(
    found: Mapping[Place, float] | None, relevance: Mapping[Place, float] | None, why_none: str
) -> Estimate:
    if found is None:
        return Estimate.missing(NOT_APPLICABLE + why_none, 0)
    if relevance is None:
        return Estimate.missing(UNMEASURED, 0)
    return graded_precision(np.array([found[place] for place in relevance]), _values(relevance))


def _values(relevance: Mapping[Place, float]) -> NDArray[np.float64]:
    """Rounded, so that what is equal on the card ties."""
    return np.array([rounded(value) for value in relevance.values()])


def by_place(scores: SiteScores, everywhere: bool) -> dict[Place, float]:
    """Where whole weights were planted, a (layer, component) takes the largest score of its regions.

    Args:
        scores: The map.
        everywhere: Whether whole weights were planted.
    """
    found: dict[Place, float] = {}
    for site, score in scores.items():
        place = _place(site, everywhere)
        found[place] = max(score, found.get(place, -np.inf))
    return found


def _place(site: Site, everywhere: bool) -> Place:
    return (site.layer, site.component) if everywhere else tuple(site)


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
