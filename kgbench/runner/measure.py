"""Measuring: fit the localizer, rank sites, then read prompts under all configurations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import log
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine import Answers, Plan
from kgbench.engine.site_sets import graft_sites
from kgbench.engine.treatment import Treatment, graft_treatments
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer, Treatments
from kgbench.localizers._base import asked
from kgbench.metrics import score_logits
from kgbench.models.pair import ModelPair
from kgbench.progress import Progress
from kgbench.records import Journal
from kgbench.runner.job import Job
from kgbench.runner.ranking import SiteRanking, now, plain_seconds, score_halves
from kgbench.sites import Graft, SiteScores, parse_graft

__all__ = [
    "GROUP",
    "Absent",
    "Measurement",
    "Mixed",
    "chunks",
    "expressed",
    "mixed",
    "ranked",
    "ready",
    "run_group",
    "treated",
    "warm_up",
    "without_ranking",
]


GROUP = 64
"""Checkpoint interval, in prompts."""

T = TypeVar("T")


Absent = Mapping[str, Mapping[str, str]]
"""Reason why a method cannot express a configuration, by prompt and configuration."""


@dataclass(frozen=True)
class Measurement:
    """A job whose localizer is fitted and whose sites are ranked."""

    job: Job
    method: AbstractLocalizer
    """The job's localizer, fitted."""
    absent: Absent = field(default_factory=dict)
    ranking: SiteRanking | None = None
    scoring: Mapping[str, float] | None = None
    """Cost of the ranking."""

    def labels(self, prompt: str) -> list[str]:
        """Configurations that are run on a prompt."""
        return [
            label for label in self.job.configurations if label not in self.absent.get(prompt, {})
        ]

    def plan(self, prompts: Sequence[Prompt]) -> tuple[Plan, list[int]]:
        """Plan of prompts of one template, with the index in `labels` of each configuration."""
        treatments: list[Treatments] = []
        indices: list[int] = []
        for index, label in enumerate(self.labels(prompts[0].name)):
            draws = self._treatments(label, prompts)
            treatments += draws
            indices += [index] * len(draws)
        return self.job.engine.plan_treatments(prompts, treatments), indices

    def _treatments(self, label: str, prompts: Sequence[Prompt]) -> list[Treatments]:
        """Treatments of a configuration, one per draw of a random method."""
        job = self.job
        if label in job.tops:
            assert self.ranking is not None
            return [self.ranking.treatments(job.tops[label], prompts)]
        graft = job.grafts[label]
        if isinstance(graft, Graft) and isinstance(self.method, InterventionLocalizer):
            return [treated(draw, job.pair, prompts, graft) for draw in self.method.variants()]
        return [graft_treatments(job.pair, prompts, graft)]

    @property
    def at_once(self) -> int:
        """Prompts per plan: a group, or fewer where averages over draws fill the logit budget."""
        if not isinstance(self.method, InterventionLocalizer) or len(self.method.variants()) == 1:
            return GROUP
        logits = len(self.job.configurations) * int(self.job.pair.recipient.config.vocab_size)
        return max(1, min(GROUP, self.job.engine.budget.logits // logits))


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def treated(
    method: InterventionLocalizer, pair: ModelPair, prompts: Sequence[Prompt], graft: Graft
) -> Treatments:
    """Ask a method for the treatments of some prompts, and check them.

    Raises:
        InputError: It gives something else than a treatment per token of each prompt.
        NotApplicableError: It cannot express the graft.
    """
    treatments = method.treat(pair, asked(method, pair, prompts), graft)

    def is_row(row: object, prompt: Prompt) -> bool:
        """Whether it is a treatment per token."""
        if not isinstance(row, Sequence) or len(row) != len(pair.encoded(prompt).ids):
            return False
        return all(isinstance(treatment, Treatment) for treatment in row)

    listed = isinstance(treatments, Sequence) and len(treatments) == len(prompts)
    if not listed or not all(map(is_row, treatments, prompts)):
        raise InputError(
            f"localizer {method.name!r}: treat must give one treatment per token of each prompt, "
            "as lists of Treatment"
        )
    return treatments


def run_group(
    measurement: Measurement, prompts: Sequence[Prompt], plain_each: float | None = None
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Measure prompts of one template under all configurations: per-fact rows and cost.

    Args:
        measurement: The job with its method.
        prompts: Prompts of one template.
        plain_each: Seconds of the plain forward per prompt of the template; timed where not given.
    """
    job = measurement.job
    before = plain_seconds(job.engine, prompts) if plain_each is None else 0.0
    started = now(job.pair)
    parts, cost = [], {"forwards": 0.0, "token_rows": 0.0}

    def run(plan: Plan) -> Iterator[Answers]:
        for answers in job.engine.run(plan):
            cost["forwards"] += 1
            cost["token_rows"] += answers.token_rows
            yield answers

    for some in chunks(prompts, measurement.at_once):
        plan, labels = measurement.plan(some)
        for answers in mixed(run(plan), labels):
            parts.append(_columns(measurement, some, answers))
    seconds = now(job.pair) - started
    if plain_each is None:
        # Before and after, so that a drift of the machine cancels.
        plain_each = (before + plain_seconds(job.engine, prompts)) / 2 / len(prompts)
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return columns, {**cost, "seconds": seconds, "plain_seconds": plain_each * len(prompts)}


def _columns(
    measurement: Measurement, prompts: Sequence[Prompt], answers: Mixed
) -> dict[str, np.ndarray]:
    encoded = list(map(measurement.job.pair.encoded, prompts))
    names = np.array(measurement.labels(prompts[0].name), dtype=object)
    which, labels, logits = answers[0].numpy(), answers[1].numpy(), answers[2]
    targets = np.array([e.target for e in encoded])[which]

    def row_text(i: int) -> str:
        prompt = prompts[which[i]]
        return f"configuration {names[labels[i]]}, fact {prompt.fact.id}, prompt {prompt.name!r}"

    return {
        "prompt": np.array([p.name for p in prompts], dtype=object)[which],
        "fact": np.array([p.fact.id for p in prompts], dtype=object)[which],
        "graft": names[labels],
        "position": np.array([len(e.ids) - 1 for e in encoded])[which],
        "target": targets,
        **score_logits(logits, torch.from_numpy(targets), row_text),
    }


Mixed = tuple[Int[Tensor, " answer"], Int[Tensor, " answer"], Float[Tensor, "answer vocabulary"]]
"""Prompt, label and logits of each answer."""


def mixed(chunks: Iterable[Answers], labels: Sequence[int]) -> Iterator[Mixed]:
    """Average probabilities of configurations with the same label; logits are their logarithms.

    Only averages that still miss a configuration are held in memory.

    Args:
        chunks: Answers with one readout per prompt.
        labels: Label of each configuration.
    """
    sizes = {label: labels.count(label) for label in labels}
    if max(sizes.values()) == 1:
        of = torch.tensor(labels)
        yield from ((chunk.prompt, of[chunk.configuration], chunk.logits) for chunk in chunks)
        return
    held: dict[tuple[int, int], tuple[int, Tensor]] = {}
    for chunk in chunks:
        done: list[tuple[int, int, Tensor]] = []
        for prompt, configuration, logits in zip(
            chunk.prompt.tolist(), chunk.configuration.tolist(), chunk.logits, strict=True
        ):
            label = labels[configuration]
            exact = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
            number, total = held.pop((prompt, label), (0, None))
            own = exact.log_softmax(0)
            total, number = own if total is None else torch.logaddexp(total, own), number + 1
            if number < sizes[label]:
                held[prompt, label] = (number, total)
            else:
                done.append((prompt, label, total - log(number)))
        if done:
            prompts, found, logits_of = zip(*done, strict=True)
            yield torch.tensor(prompts), torch.tensor(found), torch.stack(logits_of)


def ready(job: Job, journal: Journal, progress: Progress | None) -> Measurement:
    """Fit a job's localizer, and rank its sites where the job needs that.

    Args:
        job: The job.
        journal: Journal of scores, from which a run resumes.
        progress: Progress callback.
    """
    measurement = expressed(job)
    warm_up(job)
    if not job.ranks:
        return measurement
    try:
        scores, cost = score_halves(
            measurement.method, job.engine, job.all_prompts, job.halves, journal, progress
        )
    except NotApplicableError as error:
        return without_ranking(measurement, str(error))
    return replace(ranked(measurement, scores), scoring=cost)


def expressed(job: Job, most: int | None = None) -> Measurement:
    """Fit a job's localizer, and find the configurations that it cannot express.

    Args:
        job: The job.
        most: Try only so many prompts of each template; by default all.
    """
    method: AbstractLocalizer = job.localizer
    if not isinstance(method, InterventionLocalizer):
        return Measurement(job, method)
    method = method.fitted(job.pair, asked(method, job.pair, job.all_prompts))
    drawn = method.variants() if isinstance(method, InterventionLocalizer) else None
    listed = isinstance(drawn, Sequence) and len(drawn) > 0
    if not listed or not all(isinstance(draw, InterventionLocalizer) for draw in drawn or ()):
        raise InputError(
            f"localizer {job.localizer.name!r}: fitted must give an intervention, and variants a "
            "list of such, never empty"
        )
    absent: dict[str, dict[str, str]] = {name: {} for name in job.prompts}
    for (label, graft), (name, prompts) in product(job.grafts.items(), job.prompts.items()):
        if not isinstance(graft, Graft):
            continue
        try:
            for some in chunks(prompts[:most], GROUP):
                treated(method.variants()[0], job.pair, some, graft)
        except NotApplicableError as error:
            absent[name][label] = str(error)
    return Measurement(job, method, absent)


def ranked(measurement: Measurement, scores: tuple[SiteScores, SiteScores]) -> Measurement:
    """Add the scores of both halves."""
    job, k = measurement.job, None
    if job.truth is not None:
        k = len(graft_sites(job.pair, job.all_prompts, parse_graft(job.truth.plant)))
    ranking = SiteRanking(job.pair, job.prompts, job.halves, scores, k, job.spec.seed)
    return replace(measurement, ranking=ranking)


def without_ranking(measurement: Measurement, reason: str) -> Measurement:
    """Mark budgets as not applicable for a method that cannot score sites."""
    job = measurement.job
    tops = dict.fromkeys(job.tops, reason)
    absent = {name: {**measurement.absent.get(name, {}), **tops} for name in job.prompts}
    return replace(measurement, absent=absent)


def warm_up(job: Job) -> None:
    """Run a first forward, whose start-up costs are no part of the method's cost."""
    for _ in job.engine.run(job.engine.plan(job.all_prompts[:2], ["PRE", "SFT", "ALL", "LT"])):
        pass
