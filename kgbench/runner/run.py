"""Run a job: find its record, or compute it group by group and write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import torch

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.engine.state import changes as state_changes
from kgbench.engine.state import process_state, state_of
from kgbench.engine.weights import changed
from kgbench.errors import InputError
from kgbench.estimate import Estimate
from kgbench.localizers import is_foreign
from kgbench.models.pair import ModelPair
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
    code_stamp,
    collect_provenance,
    measured_on,
)
from kgbench.runner.job import Job, Pairs, prepare_job
from kgbench.runner.known import Run, note_identity, reused
from kgbench.runner.measure import GROUP, Measurement, SiteRanking, chunks, ready, run_group
from kgbench.runner.sources import note_sources
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party import blamed, is_theirs, isolated
from kgbench.runner.workload import check, entry_of
from kgbench.sites import parse_graft
from kgbench.sites.configurations import BEST, canonical
from kgbench.stats import Ground, against_truth, best_effects, pathways_of, with_clause
from kgbench.stats.summary import Absent, Ran, summary_of


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
    quiet = replace(settings, on_record=None)
    if spec.held is not None:
        run = compute_job(spec, quiet, progress, pairs)
    else:
        if is_foreign(spec.localizer):
            check(spec)
        run = isolated(spec.localizer, compute_job, spec, quiet, progress=progress, pairs=pairs)
    if settings.on_record is not None:
        settings.on_record(run)
    return run


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
        return reused(job.workload, settings, found)
    localizer = job.identity.localizer
    code = f"{code_stamp()}, {localizer.name} {localizer.version}"
    journal = store.journal(id, code)

    def recorded() -> bool:
        """Whether another process has finished the run and removed the journal."""
        return not journal.begun and store.find(id) is not None

    measurement = measure_job(job, journal, pairs, progress, recorded)
    if (found := store.find(id)) is not None:  # by another process
        journal.discard()
        return reused(job.workload, settings, found)
    record = _record(measurement, journal)
    path = store.write(record, journal.table(), searched=True)
    note_sources(job.spec, settings, path)
    journal.discard()
    return Run(record, path, reused=False)


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
        InputError: A third-party localizer fails, or changes the models; or files of the pair
            changed meanwhile.
    """
    with job.pair.lock, guarded(job, journal, pairs):
        measurement = ready(job, journal, progress)
        _compute(measurement, journal, progress, recorded, facts)
    if changed := job.pair.changed_files():
        journal.discard()
        pairs.forget()
        raise InputError(
            f"{' and '.join(changed)} changed on disk during the run, so that no record is "
            "written; run it again when whole"
        )
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
        wanted = [p for p in prompts if facts is None or p.fact.id in facts]
        for some in chunks(wanted, GROUP):
            groups[f"group-{len(groups)}"] = some

    def left(group: str) -> list[Prompt]:
        done = journal.finished()
        return [p for p in groups[group] if (p.name, p.fact.id) not in done]

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


TAUTOLOGY = (
    "the facts were trained through the very graft that this method makes, so that it finds the "
    "planted pathway is near tautological; for other methods it is news"
)


def _judged(record: Record, measurement: Measurement, facts: pa.Table) -> Record:
    """Add the comparison of the ranking with planted truth, in suites that ask for it."""
    job = measurement.job
    if (truth := job.truth) is None:
        return record
    pair, prompts = job.pair, job.all_prompts
    slots = pair.slots
    entry = entry_of(job.spec)
    graded = None if entry is None else entry.truth
    ground = Ground(
        truth.plant,
        truth.decoy,
        sites=all_sites(pair, prompts),
        planted=graft_sites(pair, prompts, canonical(parse_graft(truth.plant))),
        decoys=graft_sites(pair, prompts, parse_graft(truth.decoy)) if truth.decoy else (),
        changed=frozenset(slots.sites[slot] for slot in changed(pair)),
        relevance=None if graded is None else graded.relevance,
    )
    scores = measurement.ranking.mean if measurement.ranking is not None else None
    effect, effects = best_effects(record, facts)
    tautological = job.localizer.name == "dynamic_graft" and not ground.everywhere
    planted = Planted(
        **against_truth(ground, scores, record.not_applicable.get(BEST, "")),
        effect=effect,
        prompts={name: effects[name] for name in job.prompts},
        pathways=None if ground.everywhere else pathways_of(record, ground.graft),
        notes=(TAUTOLOGY,) if tautological else (),
    )
    return with_clause(record.model_copy(update={"planted": planted}))


def _record(measurement: Measurement, journal: Journal) -> Record:
    """The record of a job whose prompts are all measured."""
    job, pair, facts = measurement.job, measurement.job.pair, journal.table()
    dropped = dict(job.dataset.dropped)
    run = Ran(job.identity, job.localizer.floor, sum(dropped.values()), measurement.absent)
    summary = summary_of(run, facts, job.spec.metric)
    device, ranking = pair.device, measurement.ranking
    record = Record(
        id=job.identity.digest(),
        model=pair.name,
        identity=job.identity,
        **vars(summary),
        dropped=dropped,
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
    return _judged(record, measurement, facts)


def _reasons(absent: Absent) -> dict[str, str]:
    """One reason per configuration, with the prompts where reasons differ between them."""
    reasons: dict[str, dict[str, str]] = {}
    for prompt, own in absent.items():
        for label, reason in own.items():
            reasons.setdefault(label, {})[prompt] = reason
    joined = {}
    for label, by_prompt in reasons.items():
        different = set(by_prompt.values())
        if len(by_prompt) == len(absent) and len(different) == 1:
            joined[label] = different.pop()
        else:
            told = (f"on {prompt}: {reason}" for prompt, reason in by_prompt.items())
            joined[label] = "; ".join(told)
    return joined


def _cost(spent: Mapping[str, float], measurement: Measurement) -> Cost:
    """Cost of the whole run; the ratio of each part is to a plain forward of the same prompts."""

    def ratio(seconds: float, plain: float) -> Estimate:
        value = seconds / plain
        return Estimate(value, value, value, 1)

    forwards, seconds, scoring = spent["forwards"], spent["seconds"], None
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
        measured_on=measured_on(measurement.job.engine.executor),
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


# ------------------------------------------------------------------ localizers of third parties


class Watch:
    """State of process and models before a third-party localizer; not taken for kgbench's own.

    What a run calls is loaded with this module, so that a patched function of it is noticed.

    Args:
        localizer: The localizer's name or file; its code is not loaded yet.
    """

    def __init__(self, localizer: str) -> None:
        self.localizer = localizer
        self._pair: ModelPair | None = None
        self._is_needed = is_foreign(localizer)
        self._before = process_state() if self._is_needed else {}

    def add(self, pair: ModelPair) -> None:
        """Watch a pair too, from now on."""
        if self._is_needed:
            _ = pair.weight_hashes  # kept with the pair, of the weights as they are now
            self._pair, self._before = pair, {**state_of(pair), **self._before}

    def changed(self, weights: bool = True) -> tuple[str, ...]:
        """What is no longer as it was.

        Args:
            weights: Read all weights, which takes long for large models. Otherwise they are read
                only where something else changed, such as the output of a short forward.
        """
        if not self._is_needed:
            return ()
        found = state_changes(
            self._before, process_state() if self._pair is None else state_of(self._pair)
        )
        if self._pair is None or not (weights or found):
            return found
        return (*(f"the weights of {name}" for name in self._pair.changed()), *found)

    def check(self, weights: bool = True) -> None:
        """Refuse to go on where something has changed.

        Args:
            weights: As of `changed`.

        Raises:
            InputError: Something has.
        """
        if changed := self.changed(weights):
            raise InputError(
                f"localizer {self.localizer!r}, or what was run with it, changed "
                f"{' and '.join(changed)}, and nothing that this process computes from here on can "
                f"be trusted; run `kgbench check-localizer {self.localizer}`"
            )


@contextmanager
def guarded(job: Job, journal: Journal, pairs: Pairs) -> Iterator[None]:
    """Run a localizer; discard results of a third-party one that changes models or settings.

    Args:
        job: The job.
        journal: Where its parts are kept.
        pairs: Where its models are kept.

    Raises:
        InputError: The localizer leaves something changed, or raises what is no `KgbenchError`.
    """
    if not is_theirs(job.localizer):
        yield
        return
    changed: tuple[str, ...] = ()
    watch = Watch(job.spec.localizer)
    watch.add(job.pair)
    try:
        with blamed(job):
            yield
    finally:
        if changed := watch.changed():
            journal.discard()
            pairs.forget()
    if changed:
        raise InputError(
            f"localizer {job.localizer.name!r} changed {' and '.join(changed)}, so that no "
            f"record is written; run `kgbench check-localizer {job.spec.localizer}`"
        )
