"""A ranking of sites against where the facts were planted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np
import pyarrow as pa

from kgbench.effects import RankingFigures, best_effects, pathways_of, rank_figures, with_clause
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import changed
from kgbench.models.pair import ModelPair
from kgbench.records import NOT_APPLICABLE, Estimate, Planted, Record
from kgbench.runner.measure import Measurement
from kgbench.sites import Site, SiteScores, parse_graft
from kgbench.sites.configurations import BEST, canonical
from kgbench.stats import Figure

__all__ = ["judged"]

TAUTOLOGY = (
    "the facts were trained through the very graft that this method makes, so that it finds the planted pathway is near tautological; "
    "for other methods it is news"
)

Unit = tuple[object, ...]
"""A site, or a (layer, component)."""


def judged(record: Record, measurement: Measurement, facts: pa.Table) -> Record:
    """The record with how its ranking compares with the truth, where the suite asks for that."""
    job = measurement.job
    if job.truth is None:
        return record
    plant = canonical(parse_graft(job.truth.plant))
    everywhere = all(str(term.positions) == "ALL" for term in plant.terms)
    planted_sites = graft_sites(job.pair, job.all_prompts, plant)
    true = _units(planted_sites, everywhere)
    decoy = _units(graft_sites(job.pair, job.all_prompts, parse_graft(job.truth.decoy)), everywhere) if job.truth.decoy else None
    units: Literal["site", "layer and component"] = "layer and component" if everywhere else "site"
    sites = _units(all_sites(job.pair, job.all_prompts), everywhere)
    scores = _unit_scores(measurement.ranking.mean, everywhere) if measurement.ranking is not None else None
    share = 1.0 if everywhere or measurement.ranking is None else measurement.ranking.told_apart
    figures = _figures(scores, true, share) if scores is not None else _unranked(record)
    against = {u: s for u, s in (scores or {}).items() if decoy is not None and u in true | decoy}
    effect, prompts = best_effects(record, facts)
    planted = Planted(
        plant=job.truth.plant,
        decoy=job.truth.decoy,
        units=units,
        n_units=len(sites),
        n_true=len(true),
        auroc=_store(figures.auroc),
        average_precision=_store(figures.average_precision),
        recall_at_k=_store(figures.recall_at_k),
        expected={**figures.expected, **_by_change(job.pair, sites, true)},
        auroc_decoy=_store(_figures(against, true).auroc) if against else None,
        k=len(planted_sites),
        effect=effect,
        prompts={name: prompts[name] for name in job.prompts},
        pathways=None if everywhere else pathways_of(record, plant),
        notes=(TAUTOLOGY,) if job.localizer.name == "dynamic_graft" and not everywhere else (),
    )
    return with_clause(record.model_copy(update={"planted": planted}))


def _units(sites: Collection[Site], everywhere: bool) -> set[Unit]:
    return {(site.layer, site.component) if everywhere else tuple(site) for site in sites}


def _unit_scores(scores: SiteScores, everywhere: bool) -> Mapping[Unit, float]:
    """Where weights were planted, a (layer, component) takes the largest score of its regions."""
    found: dict[Unit, float] = {}
    for site, score in scores.items():
        unit: Unit = (site.layer, site.component) if everywhere else tuple(site)
        found[unit] = max(score, found.get(unit, -np.inf))
    return found


def _figures(scores: Mapping[Unit, float], true: Collection[Unit], share: float = 1.0) -> RankingFigures:
    return rank_figures(np.array(list(scores.values())), np.array([unit in true for unit in scores]), share)


def _by_change(pair: ModelPair, units: Collection[Unit], true: Collection[Unit]) -> dict[str, float]:
    """What the AUROC would be if all that was known was which weights changed."""
    slots = Slots(pair.family, pair.n_layers)
    moved = {slots.sites[slot] for slot in changed(pair)}
    found = _figures({unit: float((unit[0], unit[1]) in moved) for unit in units}, true).auroc.value
    return {} if found is None else {"changed": found}


def _unranked(record: Record) -> RankingFigures:
    nothing = Figure.missing(NOT_APPLICABLE + record.not_applicable[BEST], 0)
    return RankingFigures(nothing, nothing, nothing, {})


def _store(figure: Figure) -> Estimate:
    return Estimate(**figure.to_json())
