"""Run a job: find its record, or compute it group by group and write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import torch

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.weights import changed
from kgbench.errors import KgbenchError
from kgbench.estimate import Estimate
from kgbench.localizers import InterventionLocalizer, is_foreign
from kgbench.progress import Progress
from kgbench.readouts import TextReadout
from kgbench.records import (
    Cost,
    Environment,
    Journal,
    Ranking,
    Record,
    RecordStore,
    Result,
    Scoring,
    code_stamp,
    collect_provenance,
    measured_on,
)
from kgbench.runner.costs import room, weights_bytes
from kgbench.runner.earlier_runs import Run, note_identity, reused
from kgbench.runner.job import Job, Pairs, load_job
from kgbench.runner.lookup import Workload, check
from kgbench.runner.measure import (
    GROUP,
    Absent,
    Elsewhere,
    Measurement,
    SiteRanking,
    chunks,
    ready,
    run_group,
)
from kgbench.runner.sources import note_sources
from kgbench.runner.spec import Held, Settings, Spec
from kgbench.runner.third_party_answers import (
    Remote,
    Reply,
    Request,
    answered,
    ask,
    declared,
    replies_in,
    request_of,
)
from kgbench.runner.third_party_process import Method, method_of
from kgbench.runner.third_party_watch import guarded
from kgbench.sites import parse_graft
from kgbench.sites.configurations import canonical
from kgbench.stats import Ground, judged, with_figures, with_planted
from kgbench.stats.scores import DEFAULT_METRIC


def run_job(
    spec: Spec, settings: Settings, progress: Progress | None = None, pairs: Pairs | None = None
) -> Run:
    """Evaluate a localizer, or find that this was done before.

    A localizer that is not kgbench's own runs in a process of its own, which gives treatments or
    scores of sites, and these are measured here (`kgbench.runner.third_party_answers`); not so with
    a pair, facts or a method that the caller holds in memory.

    Args:
        spec: What is evaluated.
        settings: How.
        progress: Progress callback.
        pairs: Where models are loaded, shared by jobs on one pair.

    Raises:
        InputError: The specification is wrong, before anything is computed; or a third-party
            localizer fails, or changes the models.
    """
    work = check(spec)
    if work.held == Held() and is_foreign(work.localizer_name):
        work = replace(work, held=declared(method_of(work)))
    run = compute_job(work, replace(settings, on_record=None), progress, pairs)
    if settings.on_record is not None:
        settings.on_record(run)
    return run


def compute_job(
    work: Workload,
    settings: Settings,
    progress: Progress | None = None,
    pairs: Pairs | None = None,
) -> Run:
    """Evaluate a localizer in this process, whoever wrote it; one that is declared, in another.

    Args:
        work: What is evaluated.
        settings: How.
        progress: Progress callback.
        pairs: Where models are loaded, shared by jobs on one pair.

    Raises:
        InputError: As of `run_job`.
    """
    store = RecordStore(settings.output_dir)
    store.check_writable()
    pairs = pairs or Pairs()
    job = load_job(work, settings, pairs)
    id = job.identity.digest()
    note_identity(work, settings, pairs.state, id)
    localizer = job.identity.localizer
    code = f"{code_stamp()}, {localizer.name} {localizer.version}"

    def known() -> Run | None:
        stored = store.find(id)
        return None if stored is None else reused(work, settings, stored)

    if (run := known()) is not None:
        return run
    journal = store.journal(id, code)

    def recorded() -> bool:
        """Whether another process has finished the run and removed the journal."""
        return not journal.begun and store.find(id) is not None

    if isinstance(job.localizer, Remote):
        method = job.localizer.method
        with job.reading():
            request, device = request_of(job, method), str(job.pair.device)
        free = room(device, settings.device_map, job.pair.dtype)["free"]
        is_narrow = free < 2 * weights_bytes(job.pair)  # no room for the models twice
        if is_narrow:
            del job
        answers = _given(request, method, journal, recorded, progress, pairs if is_narrow else None)
        job = load_job(replace(work, held=declared(method, answers)), settings, pairs)
        if (run := known()) is not None:  # by another process
            journal.discard()
            return run
    measurement = measure_job(job, journal, pairs, progress, recorded)
    if (run := known()) is not None:
        journal.discard()
        return run
    with job.reading():
        record = _record(measurement, journal)
    path = store.write(record, journal.table(), searched=True)
    note_sources(work.sources, work.held, settings, path)
    journal.discard()
    return Run(record, path, reused=False)


def _given(
    request: Request,
    method: Method,
    journal: Journal,
    recorded: Callable[[], bool],
    progress: Progress | None,
    pairs: Pairs | None,
) -> tuple[Reply, ...]:
    """What a third party's localizer gives; parts that an earlier process left are taken up."""
    folder = journal.place("given")
    for _ in journal.divide(("asked",), lambda _: answered(request, folder) or recorded()):
        try:
            return ask(request, method, folder, progress, pairs)
        except KgbenchError:
            if not any(folder.iterdir()):
                journal.discard()
            raise
    return replies_in(folder, method.name)


def measure_job(
    job: Job,
    journal: Journal,
    pairs: Pairs,
    progress: Progress | None = None,
    recorded: Callable[[], bool] = lambda: False,
    facts: Container[str] | None = None,
) -> Measurement:
    """Fit, rank and measure; the rows are left in the journal.

    Args:
        job: The job.
        journal: Journal of the parts, from which a run resumes.
        pairs: Where the models are loaded.
        progress: Progress callback.
        recorded: Whether another process has finished the run.
        facts: Ids of the facts that are measured; by default all. A method learns from all of them.

    Raises:
        InputError: A third-party localizer fails, or changes the models.
    """

    def discard() -> None:
        journal.discard()
        pairs.forget()

    with (
        job.pair.lock,
        job.reading(),
        guarded(job.localizer, job.localizer_name, job.pair, discard),
    ):
        measurement = ready(job, journal, progress)
        _compute(measurement, journal, progress, recorded, facts)
    return measurement


PLAIN_EVERY = 4
"""Of so many groups, the plain forward is timed on one: it would be a third of all computing."""


def _compute(
    measurement: Measurement,
    journal: Journal,
    progress: Progress | None,
    recorded: Callable[[], bool],
    facts: Container[str] | None,
) -> None:
    """Run what the journal does not hold yet, group by group.

    Groups are the same whatever is finished and however many processes share them, so that the
    rows of a run are equal to the bit.
    """
    job = measurement.job
    groups: dict[str, Sequence[Prompt]] = {}
    for prompts in job.prompts.values():
        measured = [p for p in prompts if facts is None or p.fact.id in facts]
        for part in chunks(measured, GROUP):
            groups[f"group-{len(groups)}"] = part

    def left(group: str) -> list[Prompt]:
        done = journal.finished()
        return [p for p in groups[group] if (p.label, p.fact.id) not in done]

    total = sum(map(len, groups.values()))
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


def _judged(record: Record, measurement: Measurement, facts: pa.Table) -> Record:
    """Add the comparison of the ranking with planted truth, in suites that ask for it."""
    job = measurement.job
    if (truth := job.truth) is None:
        return record
    pair, prompts = job.pair, job.all_prompts
    ground = Ground(
        truth.plant,
        truth.decoy,
        sites=all_sites(pair, prompts),
        planted=graft_sites(pair, prompts, canonical(parse_graft(truth.plant))),
        changed=frozenset(pair.slots.sites[slot] for slot in changed(pair)),
    )
    planted = judged(record, facts, ground)  # of the map as it is stored
    return with_planted(record, planted)


def _record(measurement: Measurement, journal: Journal) -> Record:
    """The record of a job whose prompts are all measured."""
    job, pair, facts = measurement.job, measurement.job.pair, journal.table()
    device, ranking = pair.device, measurement.ranking
    result = Result(
        id=job.identity.digest(),
        model=pair.name,
        metric=job.metric or DEFAULT_METRIC,
        identity=job.identity,
        dropped=dict(job.dataset.dropped),
        cost=_cost(journal.cost(), measurement),
        environment=Environment(
            batch_size=job.settings.batch_size,
            device=device.type,
            executor=job.engine.executor,
            attention=pair.recipient.config._attn_implementation,
            threads=torch.get_num_threads(),
        ),
        provenance=collect_provenance(
            torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        ),
        kind=job.localizer.kind,
        floor=job.localizer.floor,
        not_applicable=_reasons(measurement.absent),
        scores=None if ranking is None else ranking.map,
        ranking=None if ranking is None else _ranking(job, ranking),
        notes={
            "origins": dict(pair.origins),
            "executor_reason": job.engine.reason,
            **({"fitted": list(pair.notes.values())} if pair.notes else {}),
        },
    )
    return _judged(with_figures(result, facts, job.metric), measurement, facts)


def _reasons(absent: Absent) -> dict[str, str]:
    """One reason per configuration, with the prompts where reasons differ between them."""
    reasons: dict[str, dict[str, str]] = {}
    for prompt, by_label in absent.items():
        for label, reason in by_label.items():
            reasons.setdefault(label, {})[prompt] = reason
    joined = {}
    for label, by_prompt in reasons.items():
        different = set(by_prompt.values())
        if len(by_prompt) == len(absent) and len(different) == 1:
            joined[label] = different.pop()
        else:
            texts = (f"on {prompt}: {reason}" for prompt, reason in by_prompt.items())
            joined[label] = "; ".join(texts)
    return joined


def _cost(spent: Mapping[str, float], measurement: Measurement) -> Cost:
    """Cost of the whole run; the ratio of each part is to a plain forward of the same prompts."""

    def ratio(seconds: float, plain: float) -> Estimate:
        value = seconds / plain
        return Estimate(value, value, value, 1)

    forwards, seconds, scoring = spent["forwards"], spent["seconds"], None
    method = measurement.method
    if isinstance(method, InterventionLocalizer) and isinstance(method, Elsewhere):
        seconds += method.spent(measurement.job.all_prompts)["seconds"]
    if (ranked := measurement.scoring) is not None:
        forwards, seconds = forwards + ranked["forwards"], seconds + ranked["seconds"]
        scoring = Scoring(
            forwards=int(ranked["forwards"]),
            token_rows=int(ranked["token_rows"]),
            seconds=ranked["seconds"],
            plain_forward_ratio=ratio(ranked["seconds"], ranked["plain_seconds"]),
        )
    return Cost(
        forwards=int(forwards),
        token_rows=int(spent["token_rows"]),
        seconds=seconds,
        plain_forward_ratio=ratio(seconds, spent["plain_seconds"]),
        measured_on=measured_on(
            measurement.job.engine.executor, isinstance(measurement.job.readout, TextReadout)
        ),
        scoring=scoring,
    )


def _ranking(job: Job, ranking: SiteRanking) -> Ranking:
    """How the sites were ranked, with the number of sites grafted within each budget."""
    tops = {label: top for label, top in job.tops.items() if not top.left_out}
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
