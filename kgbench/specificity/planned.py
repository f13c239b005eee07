"""Which configurations can be read on which texts, and what is then done to each token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from kgbench.data import Prompt
from kgbench.engine.treatment import Treatment, graft_treatments, parse_configuration
from kgbench.errors import NotApplicableError, RegionError
from kgbench.localizers import InterventionLocalizer
from kgbench.localizers._base import asked
from kgbench.runner.job import Job
from kgbench.runner.measure import GROUP, treated
from kgbench.sites import Graft

__all__ = ["Planned", "plan_texts"]


@dataclass(frozen=True)
class Planned:
    """Prompts with what each configuration does to them."""

    prompts: tuple[Prompt, ...]
    """Those whose regions can be told apart."""
    treatments: Mapping[str, Mapping[int, Sequence[Treatment]]]
    """By configuration and place of a prompt, the treatment of each of its tokens."""
    absent: Mapping[str, Mapping[str, int]]
    """By configuration, the reasons why it cannot be read on a prompt, and on how many."""
    unread: Mapping[str, int]
    """Reasons why the tokenizer cannot take a prompt apart, and of how many."""

    def batches(self, at_once: int) -> Iterator[tuple[list[int], list[str]]]:
        """Places of prompts that the same configurations can be read on, so many at a time, and the configurations."""

        def shared(place: int) -> list[str]:
            return [label for label, found in self.treatments.items() if place in found]

        for labels, places in groupby(sorted(range(len(self.prompts)), key=shared), key=shared):
            some = list(places)
            for start in range(0, len(some), min(at_once, GROUP)):
                yield some[start : start + min(at_once, GROUP)], labels


def plan_texts(job: Job, prompts: Sequence[Prompt], labels: Sequence[str]) -> Planned:
    """Say what each configuration does to each prompt, or why it cannot be said.

    Args:
        job: Model pair and method; a method that learns from prompts learns from these.
        prompts: Prompts of one kind.
        labels: Baselines and grafts.
    """
    readable, unread = _readable(job, prompts)
    method = _fitted(job, readable)
    treatments: dict[str, dict[int, Sequence[Treatment]]] = {label: {} for label in labels}
    reasons: dict[str, Counter[str]] = {label: Counter() for label in labels}
    for label in labels:
        for place, prompt in enumerate(readable):
            found = _treatment(job, method, label, prompt)
            if isinstance(found, str):
                reasons[label][found] += 1
            else:
                treatments[label][place] = found
    return Planned(
        tuple(readable),
        treatments,
        {label: dict(found) for label, found in reasons.items() if found},
        unread,
    )


def _readable(job: Job, prompts: Sequence[Prompt]) -> tuple[list[Prompt], dict[str, int]]:
    kept: list[Prompt] = []
    reasons: Counter[str] = Counter()
    for prompt in prompts:
        try:
            job.pair.encoded(prompt)
        except RegionError as error:
            reasons[str(error)] += 1
        else:
            kept.append(prompt)
    return kept, dict(reasons)


def _fitted(job: Job, prompts: Sequence[Prompt]) -> InterventionLocalizer | str:
    """The method with what it learns from these prompts, or why it cannot."""
    method = job.localizer
    assert isinstance(method, InterventionLocalizer)
    try:
        return method.fitted(job.pair, asked(method, job.pair, prompts)) if prompts else method
    except NotApplicableError as error:
        return str(error)


def _treatment(
    job: Job, method: InterventionLocalizer | str, label: str, prompt: Prompt
) -> Sequence[Treatment] | str:
    """What is done to a prompt's tokens, or why that cannot be said."""
    configuration = parse_configuration(label)
    if not isinstance(configuration, Graft):
        return graft_treatments(job.pair, [prompt], configuration)[0]
    if isinstance(method, str):
        return method
    try:
        return treated(method, job.pair, [prompt], configuration)[0]
    except NotApplicableError as error:
        return str(error)
    except RegionError as error:
        return str(error.__cause__ or error)  # the cause is the same for all prompts of a kind
