"""From a specification to scored answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from kgbench.answers.candidates import candidate_names
from kgbench.answers.scoring import ScoredAnswer, score_prompts
from kgbench.errors import InputError
from kgbench.runner import Settings, Spec
from kgbench.runner.job import prepare_job
from kgbench.runner.ranking import Progress
from kgbench.sites import BASELINES

__all__ = ["AnswersRun", "score_answers"]

AT_ONCE = 8
"""Prompts whose candidates are searched together, so that what is known of many does not pile up."""


@dataclass(frozen=True)
class AnswersRun:
    """Scored answers, and what they are of."""

    model: str
    dataset: str
    dtype: str
    seed: int
    """Of the choice of facts."""
    n_facts: int
    """Of the data set; some of them are scored."""
    candidates: tuple[str, ...]
    """The distinct answers of the data set."""
    answers: tuple[ScoredAnswer, ...]
    """By prompt, then fact, then configuration; PRE and SFT come first."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where the models of the pair are from, by name."""


def score_answers(
    spec: Spec, settings: Settings, n_facts: int, progress: Progress | None = None
) -> AnswersRun:
    """Score the whole answers to the prompts of some facts; the candidates are those of all facts.

    Args:
        spec: Pair, facts, prompts and grafts; its seed chooses the facts.
        settings: How it is computed.
        n_facts: How many facts; all where there are fewer.
        progress: Told of the prompts done.

    Raises:
        InputError: Something in the specification is wrong, or there is only one candidate.
    """
    job = prepare_job(spec, settings)
    names = candidate_names(job.dataset)
    if len(names) < 2:
        raise InputError(
            f"data set {job.dataset.name!r} has only the answer {names[0]!r}, and a rank needs two candidates or more"
        )
    ids = sorted({prompt.fact.id for prompt in job.all_prompts})
    chosen = set(Random(spec.seed).sample(ids, min(n_facts, len(ids))))
    configurations = tuple(dict.fromkeys([*BASELINES, *spec.grafts]))
    prompts = {
        name: [prompt for prompt in some if prompt.fact.id in chosen]
        for name, some in job.prompts.items()
    }
    total, done = sum(map(len, prompts.values())), 0
    found: list[ScoredAnswer] = []
    for name, some in prompts.items():
        for start in range(0, len(some), AT_ONCE):
            if progress is not None:
                progress(done, total, name)
            group = some[start : start + AT_ONCE]
            found += score_prompts(job.engine, group, names, configurations)
            done += len(group)
    dtype = str(job.pair.dtype).removeprefix("torch.")
    return AnswersRun(
        job.pair.name,
        job.dataset.name,
        dtype,
        spec.seed,
        len(ids),
        names,
        tuple(found),
        job.pair.origins,
    )
