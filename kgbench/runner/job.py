"""One job: a localizer on a model pair, from a specification to a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from kgbench import __version__
from kgbench.data import Dataset, Prompt, prompt_hash
from kgbench.effects import Summary, summarize
from kgbench.engine import Answers, Budget, Engine, Plan, load_pair
from kgbench.engine.rows import plain
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.errors import InputError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer, ScoringLocalizer, Treatments, create, fingerprint
from kgbench.metrics import METRIC_VERSION, score_logits
from kgbench.models.pair import ModelPair
from kgbench.records import (
    Cost,
    DatasetRef,
    Environment,
    Estimate,
    Identity,
    Journal,
    LocalizerRef,
    Record,
    RecordStore,
    SiteScore,
    WeightHashes,
    collect_provenance,
)
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.suites import configurations
from kgbench.runner.workload import check
from kgbench.sites import Graft

__all__ = ["GROUP", "Job", "Progress", "Run", "evaluate", "prepare_job", "run_group", "run_job"]

Progress = Callable[[int, int, str], None]
"""Called with prompts done, prompts in all, and what is being done."""

GROUP = 64
"""Prompts whose rows are kept together: what a killed run loses at most."""


@dataclass(frozen=True)
class Run:
    """A record, and how it came about."""

    record: Record
    path: Path
    """Its folder."""
    reused: bool
    """Whether it was there already, so that nothing was computed."""

    def to_json(self) -> dict[str, Any]:
        """The object that `kgbench eval --json` prints."""
        return self.record.answer(str(self.path))


@dataclass(frozen=True)
class Job:
    """Everything a run needs, loaded and checked."""

    spec: Spec
    settings: Settings
    dataset: Dataset
    prompts: Mapping[str, Sequence[Prompt]]
    configurations: Mapping[str, str | None]
    """Each configuration and its complement."""
    localizer: AbstractLocalizer
    pair: ModelPair

    @cached_property
    def engine(self) -> Engine:
        """The engine with the job's executor and batch size."""
        return Engine(self.pair, self.settings.executor, Budget.on(self.pair.device, prompts=self.settings.batch_size))

    @cached_property
    def identity(self) -> Identity:
        """What the record is of."""
        hashes = dict(self.pair.weight_hashes)
        return Identity(
            dataset=DatasetRef(name=self.dataset.name, hash=self.dataset.content_hash, n=len(self.dataset.facts)),
            prompts={name: prompt_hash(name, self.dataset) for name in self.prompts},
            weights=WeightHashes(recipient=hashes.pop("recipient"), donors=hashes),
            tokenizer=self.pair.tokenizer_hash,
            localizer=LocalizerRef(name=self.localizer.name, version=self._version, parameters=self.localizer.parameters()),
            configurations=tuple(self.configurations),
            metric_version=METRIC_VERSION,
            dtype=str(self.pair.dtype).removeprefix("torch."),
            seeds=(self.spec.seed,),
            limit=self.spec.limit,
        )

    @property
    def _version(self) -> str:
        """The localizer's version, and where its code is not kgbench's, which state of it."""
        return " ".join(filter(None, (self.localizer.version, fingerprint(self.spec.localizer))))

    def plan(self, prompts: Sequence[Prompt]) -> Plan:
        """All configurations of some prompts."""
        return self.engine.plan_treatments(prompts, [self._treatments(c, prompts) for c in self.configurations])

    def _treatments(self, configuration: str, prompts: Sequence[Prompt]) -> Treatments:
        parsed = parse_configuration(configuration)
        if isinstance(parsed, Graft) and isinstance(self.localizer, InterventionLocalizer):
            treatments = self.localizer.treat(self.pair, prompts, parsed)
            if [len(t) for t in treatments] != [len(self.pair.encoded(p).ids) for p in prompts]:
                raise InputError(f"localizer {self.localizer.name!r}: treat must give one treatment per token of each prompt")
            return treatments
        return graft_treatments(self.pair, prompts, parsed)


def run_job(spec: Spec, settings: Settings, progress: Progress | None = None) -> Run:
    """Evaluate a localizer, or find that this was done before.

    Args:
        spec: What is evaluated.
        settings: How.
        progress: Told of the progress.

    Raises:
        InputError: Something in the specification is wrong; found before anything is computed.
    """
    store = RecordStore(settings.output_dir)
    store.check_writable()
    job = prepare_job(spec, settings)
    if (found := store.find(job.identity.digest())) is not None:
        return Run(_on_metric(job, found.record, found.facts()), found.path, reused=True)
    journal = store.journal(job.identity.digest())
    _compute(job, journal, progress)
    record = _record(job, journal)
    path = store.write(record, journal.table())
    journal.discard()
    return Run(record, path, reused=False)


def evaluate(
    model: str | None = None,
    *,
    localizer: str = "dynamic_graft",
    prompts: Sequence[str] = (),
    output_dir: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Record:
    """Evaluate a localizer on a model pair.

    Args:
        model: A pair of the catalog; otherwise give `recipient` and `donors`.
        localizer: A registered name, or `path/to/file.py:Class`.
        prompts: Evaluation prompts by name; by default the suite's.
        output_dir: Where records are kept; by default `kgbench-results` in the working directory.
        progress: Told of the progress.
        **options: Further fields of `Spec` and `Settings`, such as `limit`, `grafts`, `dataset`, `seed`, `batch_size`, `executor`.

    Raises:
        InputError: Something is wrong with what was given.
    """
    how: dict[str, Any] = {k: options.pop(k) for k in ("batch_size", "device", "executor", "attention") if k in options}
    if "grafts" in options:
        options["grafts"] = tuple(options["grafts"])
    if output_dir is not None:
        how["output_dir"] = Path(output_dir)
    spec = Spec(model=model, localizer=localizer, prompts=tuple(prompts), **options)
    return run_job(spec, Settings(**how), progress).record


def prepare_job(spec: Spec, settings: Settings) -> Job:
    """Check everything that can be checked cheaply, then load the models and check the rest.

    Raises:
        InputError: Something is wrong.
    """
    asked = check(spec)
    localizer = create(spec.localizer, spec.localizer_args, spec.seed)
    grafts = spec.grafts or (asked.suite.grafts if isinstance(localizer, InterventionLocalizer) else ())
    wanted = configurations(grafts, spec.layers)
    pair = load_pair(
        spec.model,
        recipient=spec.recipient,
        donors=spec.donors or None,
        dtype=spec.dtype,
        device=_device(settings.device),
        revision=spec.revision,
        chat_template=spec.chat_template,
        attention=settings.attention,
    )
    _check_lengths(pair, asked.prompts)
    job = Job(spec, settings, asked.dataset, asked.prompts, wanted, localizer, pair)
    for some in asked.prompts.values():
        job.plan(some[:1])  # a graft that does not fit is found here, before the long part
    return job


def _check_lengths(pair: ModelPair, prompts: Mapping[str, Sequence[Prompt]]) -> None:
    most = getattr(pair.recipient.config, "max_position_embeddings", None)
    for prompt in (p for some in prompts.values() for p in some):
        if most is not None and (n := len(pair.encoded(prompt).ids)) > most:
            raise InputError(f"fact {prompt.fact.id}, prompt {prompt.name!r} has {n} tokens; the model reads at most {most}")


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return name


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _compute(job: Job, journal: Journal, progress: Progress | None) -> None:
    """Run what the journal does not hold yet, group by group."""
    _warm_up(job)
    total = sum(map(len, job.prompts.values()))
    done = len(journal.finished())
    for name, prompts in job.prompts.items():
        left = [p for p in prompts if (name, p.fact.id) not in journal.finished()]
        for start in range(0, len(left), GROUP):
            if progress is not None:
                progress(done, total, name)
            group = left[start : start + GROUP]
            journal.append(*run_group(job, group))
            done += len(group)
    if progress is not None:
        progress(total, total, "intervals")


def _warm_up(job: Job) -> None:
    """The first forward of a process pays for much that is no part of the cost."""
    first = next(iter(job.prompts.values()))[:2]
    for _ in job.engine.run(job.plan(first)):
        pass


def run_group(job: Job, prompts: Sequence[Prompt]) -> tuple[dict[str, Any], dict[str, float]]:
    """Per-fact rows of some prompts under all configurations, and what they cost."""
    plan = job.plan(prompts)
    plain_seconds = _plain(job, plan)
    started = _now(job)
    plan = job.plan(prompts)
    chunks, forwards, token_rows = [], 0, 0
    for answers in job.engine.run(plan):
        chunks.append(_columns(job, prompts, answers))
        forwards, token_rows = forwards + 1, token_rows + answers.token_rows
    seconds = _now(job) - started
    plain_seconds = (plain_seconds + _plain(job, plan)) / 2  # before and after, so that a drift of the machine cancels
    cost = {"forwards": forwards, "token_rows": token_rows, "seconds": seconds, "plain_seconds": plain_seconds}
    return {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0]}, cost


def _plain(job: Job, plan: Plan) -> float:
    """Seconds of one plain forward of the recipient over the plan's prompts."""
    started = _now(job)
    with torch.inference_mode():
        plain(job.engine.wiring, plan, job.engine.budget)
    return _now(job) - started


def _now(job: Job) -> float:
    """Seconds on the clock once the device has done what it was given."""
    if job.pair.device.type == "cuda":
        torch.cuda.synchronize(job.pair.device)
    return time.perf_counter()


def _columns(job: Job, prompts: Sequence[Prompt], answers: Answers) -> dict[str, np.ndarray]:
    encoded = [job.pair.encoded(p) for p in prompts]
    names = np.array(list(job.configurations), dtype=object)
    which = answers.prompt.numpy()
    targets = np.array([e.target for e in encoded])[which]
    return {
        "prompt": np.array([p.name for p in prompts], dtype=object)[which],
        "fact": np.array([p.fact.id for p in prompts], dtype=object)[which],
        "graft": names[answers.configuration.numpy()],
        "position": np.array([len(e.ids) - 1 for e in encoded])[which],
        "target": targets,
        **score_logits(answers.logits, torch.from_numpy(targets)),
    }


def _record(job: Job, journal: Journal) -> Record:
    summary = _summary(job, journal.table())
    return Record(
        id=job.identity.digest(),
        model=job.pair.name,
        metric=summary.metric,
        verdict=summary.verdict,
        identity=job.identity,
        rows=summary.rows,
        synergy=summary.synergy,
        dropped=dict(job.dataset.dropped),
        baselines=summary.baselines,
        cost=_cost(journal.cost(), job.engine.executor),
        environment=_environment(job),
        provenance=collect_provenance(__version__, _device_name(job.pair.device)),
        scores=_scores(job),
        notes={"origins": dict(job.pair.origins), "executor_reason": job.engine.reason},
    )


def _summary(job: Job, facts: pa.Table) -> Summary:
    dropped = dict.fromkeys(job.prompts, sum(job.dataset.dropped.values()))
    return summarize(facts, metric=job.spec.metric, complements=job.configurations, dropped=dropped, seed=job.spec.seed)


def _on_metric(job: Job, record: Record, facts: pa.Table) -> Record:
    """The same record with its ratios on the metric asked for, from the stored rows, and with what this data set dropped."""
    if record.metric == job.spec.metric and record.dropped == dict(job.dataset.dropped):
        return record
    summary = _summary(job, facts)
    changed = {
        "metric": summary.metric,
        "rows": summary.rows,
        "synergy": summary.synergy,
        "verdict": summary.verdict,
        "dropped": dict(job.dataset.dropped),
    }
    return record.model_copy(update=changed)


def _cost(cost: Mapping[str, float], executor: str) -> Cost:
    ratio = cost["seconds"] / cost["plain_seconds"]
    return Cost(
        forwards=int(cost["forwards"]),
        token_rows=int(cost["token_rows"]),
        seconds=cost["seconds"],
        plain_forward_ratio=Estimate(value=ratio, low=ratio, high=ratio, n=1),
        measured_on=f"all prompts and configurations by the {executor} executor, scoring included",
    )


def _environment(job: Job) -> Environment:
    return Environment(
        batch_size=job.settings.batch_size,
        device=job.pair.device.type,
        executor=job.engine.executor,
        attention=job.settings.attention,
        threads=torch.get_num_threads(),
    )


def _scores(job: Job) -> tuple[SiteScore, ...] | None:
    if not isinstance(job.localizer, ScoringLocalizer):
        return None
    everything = [p for some in job.prompts.values() for p in some]
    found = job.localizer.scores(job.pair, everything)
    return tuple(SiteScore(**site._asdict(), score=score) for site, score in found.items())
