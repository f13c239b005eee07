"""A ranking of sites against where the facts were planted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import numpy as np
import pyarrow as pa

from kgbench.effects import RankingFigures, effects_of, rank_figures
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import changed
from kgbench.models.pair import ModelPair
from kgbench.records import NOT_APPLICABLE, Effect, Estimate, Pathway, Planted, Record, Row
from kgbench.runner.configurations import BEST, REST, canonical
from kgbench.runner.measure import Measurement
from kgbench.sites import Graft, Site, SiteScores, parse_graft
from kgbench.stats import Figure

__all__ = ["judged", "rejudged"]

CARRIES, NOT = 0.9, 0.1
"""Recovery from which a pathway is said to carry the facts, and up to which it is said not to."""

OTHER = {"FE": "LT", "LT": "FE", "FE+LT": "(FE+LT)^C"}
"""The pathway that carries nothing of what was planted in another one."""

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
    effect, prompts = _effects(record, facts)
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
        pathways=None if everywhere else _pathways(record, plant),
        notes=(TAUTOLOGY,) if job.localizer.name == "dynamic_graft" and not everywhere else (),
    )
    return _told(record.model_copy(update={"planted": planted}))


def rejudged(record: Record, facts: pa.Table) -> Record:
    """The record with what its truth's figures owe to the metric of the ratios made anew."""
    if record.planted is None:
        return record
    effect, prompts = _effects(record, facts)
    changed: dict[str, object] = {"effect": effect, "prompts": {name: prompts[name] for name in record.planted.prompts}}
    if record.planted.pathways is not None:
        changed["pathways"] = _pathways(record, canonical(parse_graft(record.planted.plant)))
    return _told(record.model_copy(update={"planted": record.planted.model_copy(update=changed)}))


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


def _effects(record: Record, facts: pa.Table) -> tuple[Effect, dict[str, Effect]]:
    """What the best-ranked sites carry, pooled over the prompts and on each."""
    if BEST not in record.not_applicable:
        return effects_of(facts, BEST, REST, record.metric, seed=record.identity.seeds[0])
    nothing = Estimate(n=0, undefined=NOT_APPLICABLE + record.not_applicable[BEST])
    absent = Effect(sufficiency=nothing, necessity=nothing)
    return absent, {row.prompt: absent for row in record.rows}


def _unranked(record: Record) -> RankingFigures:
    nothing = Figure.missing(NOT_APPLICABLE + record.not_applicable[BEST], 0)
    return RankingFigures(nothing, nothing, nothing, {})


def _pathways(record: Record, plant: Graft) -> dict[str, Pathway] | None:
    """For each prompt, whether the planted pathway carries the facts and the other one does not; None where no graft was run."""
    positions = {str(term.positions) for term in plant.terms}
    planted = next(iter(positions)) if len(positions) == 1 else ""
    other = OTHER.get(planted, "")
    rows = {(row.prompt, row.graft): row for row in record.rows}
    prompts = dict.fromkeys(row.prompt for row in record.rows)
    found = {p: _pathway(rows[p, planted], rows[p, other]) for p in prompts if (p, planted) in rows and (p, other) in rows}
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
    elif (mine.high is not None and mine.high < CARRIES) or (theirs.low is not None and theirs.low > NOT):
        told = "not told"
    return Pathway(planted=planted.graft, other=other.graft, recovery_planted=mine, recovery_other=theirs, found=found, told=told)


def _surely(mine: Estimate, theirs: Estimate) -> bool:
    return mine.low is not None and theirs.high is not None and mine.low >= CARRIES and theirs.high <= NOT


def _told(record: Record) -> Record:
    """The record with a clause on the truth in its verdict."""
    planted, at = record.planted, f" ({record.metric})."
    assert planted is not None
    clause = _clause(planted)
    return record.model_copy(update={"verdict": f"{record.verdict.removesuffix(at)}; {clause}{at}"})


def _clause(planted: Planted) -> str:
    auroc = planted.auroc
    if auroc.value is None or auroc.low is None or auroc.high is None:
        return f"how well the planted sites are found is undefined: {auroc.undefined}"
    interval = f"{auroc.value:.2f} [{auroc.low:.2f}, {auroc.high:.2f}]"
    kind = "(layer, component)" if planted.units == "layer and component" else "sites"
    which = f"the {planted.n_true} planted of {planted.n_units} {kind}"
    knowing = f", knowing only which weights changed {planted.expected['changed']:.2f}" if "changed" in planted.expected else ""
    decoy = planted.auroc_decoy.answer() if planted.auroc_decoy is not None else {}
    against = "; from the decoy's alone with {value:.2f} [{low:.2f}, {high:.2f}]".format(**decoy) if "value" in decoy else ""
    return f"the ranking tells {which} from the others with an AUROC of {interval}, at random 0.50{knowing}{against}"


def _store(figure: Figure) -> Estimate:
    return Estimate(**figure.to_json())
