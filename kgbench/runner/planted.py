"""A ranking of sites against where the facts were planted."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from kgbench.effects import Ground, against_truth, best_effects, pathways_of, with_clause
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import changed
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.models.plant_truth import Place
from kgbench.records import Planted, Record
from kgbench.runner.job import Job
from kgbench.runner.measure import Measurement
from kgbench.sites import parse_graft
from kgbench.sites.configurations import BEST, canonical

__all__ = ["judged"]

TAUTOLOGY = (
    "the facts were trained through the very graft that this method makes, so that it finds the planted pathway is near tautological; "
    "for other methods it is news"
)


def judged(record: Record, measurement: Measurement, facts: pa.Table) -> Record:
    """The record with how its ranking compares with the truth, where the suite asks for that."""
    job = measurement.job
    if job.truth is None:
        return record
    ground = _ground(job)
    scores = measurement.ranking.mean if measurement.ranking is not None else None
    effect, prompts = best_effects(record, facts)
    planted = Planted(
        **against_truth(ground, scores, record.not_applicable.get(BEST, "")),
        effect=effect,
        prompts={name: prompts[name] for name in job.prompts},
        pathways=None if ground.everywhere else pathways_of(record, ground.graft),
        notes=(TAUTOLOGY,)
        if job.localizer.name == "dynamic_graft" and not ground.everywhere
        else (),
    )
    return with_clause(record.model_copy(update={"planted": planted}))


def _ground(job: Job) -> Ground:
    truth, prompts = job.truth, job.all_prompts
    assert truth is not None
    return Ground(
        truth.plant,
        truth.decoy,
        sites=all_sites(job.pair, prompts),
        planted=graft_sites(job.pair, prompts, canonical(parse_graft(truth.plant))),
        decoys=graft_sites(job.pair, prompts, parse_graft(truth.decoy)) if truth.decoy else (),
        changed=_changed(job.pair),
        relevance=_relevance(job),
    )


def _relevance(job: Job) -> Mapping[Place, float] | None:
    """Of each changed place, as on the plant's card."""
    assert job.spec.model is not None
    truth = catalog.entry(job.spec.model).truth
    return None if truth is None else truth.relevance


def _changed(pair: ModelPair) -> frozenset[tuple[int | None, str]]:
    slots = Slots(pair.family, pair.n_layers)
    return frozenset(slots.sites[slot] for slot in changed(pair))
