"""Run a job: find its record, or compute it group by group and write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import torch

from kgbench import __version__
from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import changed
from kgbench.errors import InputError
from kgbench.estimate import Estimate
from kgbench.localizers import is_foreign
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.models.plant_truth import Place
from kgbench.progress import Progress
from kgbench.records import (
    Cost,
    Environment,
    Journal,
    Planted,
    Ranking,
    Record,
    RecordStore,
    Scoring,
    SiteScore,
    code_stamp,
    collect_provenance,
    measured_on,
)
from kgbench.runner.job import Job, Pairs, prepare_job
from kgbench.runner.known import Run, note_identity, reused
from kgbench.runner.measure import GROUP, Measurement, ready, run_group
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party import guarded, isolated
from kgbench.runner.workload import check
from kgbench.sites import parse_graft
from kgbench.sites.configurations import BEST, canonical, parse_top
from kgbench.stats import Ground, against_truth, best_effects, pathways_of, with_clause
from kgbench.stats.summary import Absent, Ran, summary_of

__all__ = [
    "compute_job",
    "judged",
    "make_record",
    "run_job",
]


def run_job(
    spec: Spec, settings: Settings, progress: Progress | None = None, pairs: Pairs | None = None
) -> Run:
    """Evaluate a localizer, or find that this was done before.

    A localizer that is not kgbench's own runs in a process of its own, which loads its own models;
    not so with a pair, facts or a method that the caller holds in memory.

    Args:
        spec: What is evaluated.
        settings: How.
        progress: Progress callback.
        pairs: Where models are loaded, shared by jobs on one pair.

    Raises:
        InputError: The specification is wrong, before anything is computed; or a third-party
            localizer fails, or changes the models.
    """
    run = _run(spec, replace(settings, on_record=None), progress, pairs)
    if settings.on_record is not None:
        settings.on_record(run)
    return run


def _run(spec: Spec, settings: Settings, progress: Progress | None, pairs: Pairs | None) -> Run:
    if spec.held is None and is_foreign(spec.localizer):
        check(spec)
        if pairs is not None:
            pairs.forget()  # there may be no room for the models twice
        return isolated(spec.localizer, compute_job, spec, settings, progress=progress)
    return compute_job(spec, settings, progress, pairs)


def compute_job(
    spec: Spec, settings: Settings, progress: Progress | None = None, pairs: Pairs | None = None
) -> Run:
    """Evaluate a localizer in this process, whoever wrote it.

    Args:
        spec: What is evaluated.
        settings: How.
        progress: Progress callback.
        pairs: Where models are loaded, shared by jobs on one pair.

    Raises:
        InputError: As of `run_job`.
    """
    store = RecordStore(settings.output_dir)
    store.check_writable()
    pairs = pairs or Pairs()
    job = prepare_job(spec, settings, pairs)
    id = job.identity.digest()
    note_identity(job.workload, settings, pairs.state, id)
    if (found := store.find(id)) is not None:
        return reused(job.workload, found)
    localizer = job.identity.localizer
    code = f"{code_stamp(__version__)}, {localizer.name} {localizer.version}"
    journal = store.journal(id, code)

    def recorded() -> bool:
        """Whether another process has finished the run and removed the journal."""
        return not journal.begun and store.find(id) is not None

    with guarded(job, journal, pairs):
        measurement = ready(job, journal, progress)
        _compute(measurement, journal, recorded, progress)
    if changed := job.pair.changed_files():
        journal.discard()
        pairs.forget()
        raise InputError(
            f"{' and '.join(changed)} changed on disk during the run, so that no record is "
            "written; run it again when whole"
        )
    if (found := store.find(id)) is not None:  # by another process
        journal.discard()
        return reused(job.workload, found)
    record = make_record(measurement, journal)
    path = store.write(record, journal.table(), searched=True)
    journal.discard()
    return Run(record, path, reused=False)


PLAIN_EVERY = 4
"""Of so many groups, the plain forward is timed on one: it would be a third of all computing."""


def _compute(
    measurement: Measurement,
    journal: Journal,
    recorded: Callable[[], bool],
    progress: Progress | None,
) -> None:
    """Run what the journal does not hold yet, group by group.

    Groups are the same whatever is finished and however many processes share them, so that the
    rows of a run are equal to the bit.
    """
    job = measurement.job
    groups: dict[str, Sequence[Prompt]] = {}
    for prompts in job.prompts.values():
        for start in range(0, len(prompts), GROUP):
            groups[f"group-{len(groups)}"] = prompts[start : start + GROUP]

    def left(group: str) -> list[Prompt]:
        done = journal.finished()
        return [p for p in groups[group] if (p.name, p.fact.id) not in done]

    total = len(job.all_prompts)
    plain: dict[str, float] = {}
    turns: Counter[str] = Counter()
    for group in journal.divide(tuple(groups), lambda group: not left(group) or recorded()):
        name = groups[group][0].name
        if progress is not None:
            progress(len(journal.finished()), total, name)
        prompts = left(group)
        timed = turns[name] % PLAIN_EVERY == 0
        rows, cost = run_group(measurement, prompts, None if timed else plain[name])
        plain[name] = cost["plain_seconds"] / len(prompts)
        turns[name] += 1
        journal.append(rows, cost)
    if progress is not None:
        progress(total, total, "intervals")


TAUTOLOGY = (
    "the facts were trained through the very graft that this method makes, so that it finds the "
    "planted pathway is near tautological; for other methods it is news"
)


def judged(record: Record, measurement: Measurement, facts: pa.Table) -> Record:
    """Add the comparison of the ranking with planted truth, in suites that ask for it."""
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
    """Relevance of each changed place, from the plant's card."""
    assert job.spec.model is not None
    truth = catalog.entry(job.spec.model).truth
    return None if truth is None else truth.relevance


def _changed(pair: ModelPair) -> frozenset[tuple[int | None, str]]:
    slots = Slots(pair.family, pair.n_layers)
    return frozenset(slots.sites[slot] for slot in changed(pair))


def make_record(measurement: Measurement, journal: Journal) -> Record:
    """Make the record of a job whose prompts are all measured."""
    job, facts = measurement.job, journal.table()
    run = Ran(
        job.identity, job.localizer.floor, sum(job.dataset.dropped.values()), measurement.absent
    )
    summary = summary_of(run, facts, job.spec.metric)
    record = Record(
        id=job.identity.digest(),
        model=job.pair.name,
        metric=summary.metric,
        verdict=summary.verdict,
        identity=job.identity,
        rows=summary.rows,
        synergy=summary.synergy,
        dropped=dict(job.dataset.dropped),
        baselines=summary.baselines,
        cost=_cost(journal.cost(), measurement),
        environment=_environment(job),
        provenance=collect_provenance(__version__, _device_name(job.pair.device)),
        kind=job.localizer.kind,
        floor=job.localizer.floor,
        not_applicable=_reasons(measurement.absent),
        scores=_map(measurement),
        ranking=_ranking(measurement),
        curve=summary.curve,
        notes={"origins": dict(job.pair.origins), "executor_reason": job.engine.reason},
    )
    return judged(record, measurement, facts)


def _reasons(absent: Absent) -> dict[str, str]:
    """One reason per configuration, with the prompts where reasons differ between them."""
    reasons: dict[str, dict[str, str]] = {}
    for prompt, own in absent.items():
        for label, reason in own.items():
            reasons.setdefault(label, {})[prompt] = reason
    return {label: _joined(by_prompt, len(absent)) for label, by_prompt in reasons.items()}


def _joined(by_prompt: Mapping[str, str], prompts: int) -> str:
    if len(by_prompt) == prompts and len(set(by_prompt.values())) == 1:
        return next(iter(by_prompt.values()))
    return "; ".join(f"on {prompt}: {reason}" for prompt, reason in by_prompt.items())


def _cost(cost: Mapping[str, float], measurement: Measurement) -> Cost:
    scoring = measurement.scoring
    ranked = scoring or {"forwards": 0, "token_rows": 0, "seconds": 0.0}
    return Cost(
        forwards=int(cost["forwards"] + ranked["forwards"]),
        token_rows=int(cost["token_rows"]),
        seconds=cost["seconds"] + ranked["seconds"],
        plain_forward_ratio=_ratio(cost["seconds"] + ranked["seconds"], cost["plain_seconds"]),
        measured_on=measured_on(measurement.job.engine.executor),
        scoring=None if scoring is None else _scoring(scoring),
    )


def _scoring(cost: Mapping[str, float]) -> Scoring:
    return Scoring(
        forwards=int(cost["forwards"]),
        token_rows=int(cost["token_rows"]),
        seconds=cost["seconds"],
        plain_forward_ratio=_ratio(cost["seconds"], cost["plain_seconds"]),
    )


def _ratio(seconds: float, plain: float) -> Estimate:
    ratio = seconds / plain
    return Estimate(ratio, ratio, ratio, 1)


def _environment(job: Job) -> Environment:
    return Environment(
        batch_size=job.settings.batch_size,
        device=job.pair.device.type,
        executor=job.engine.executor,
        attention=job.pair.recipient.config._attn_implementation,
        threads=torch.get_num_threads(),
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _map(measurement: Measurement) -> tuple[SiteScore, ...] | None:
    if (ranking := measurement.ranking) is None:
        return None
    return tuple(SiteScore(**site._asdict(), score=score) for site, score in ranking.mean.items())


def _ranking(measurement: Measurement) -> Ranking | None:
    job, ranking = measurement.job, measurement.ranking
    if ranking is None:
        return None
    tops = {
        label: top
        for label in job.configurations
        if (top := parse_top(label)) is not None and not top.left_out
    }
    sites = {}
    for name in job.prompts:
        sites[name] = {label: ranking.n_sites(top, name) for label, top in tops.items()}
    first, second = job.halves
    return Ranking(
        facts=(len(first), len(second)),
        agreement=ranking.agreement.rounded(),
        sites=sites,
        scan=job.scans,
    )
