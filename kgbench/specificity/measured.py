"""What some configurations do to the next token of texts, prompt by prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from kgbench.metrics import require_finite, worst_rank
from kgbench.runner.job import Job
from kgbench.runner.ranking import Progress
from kgbench.specificity.divergence import divergence
from kgbench.specificity.planned import plan_texts
from kgbench.specificity.texts import Texts

__all__ = ["Measured", "Moved", "measure"]

_TOP = 5


def _from_list(kind: type) -> PlainValidator:
    numbers = TypeAdapter(list[kind])  # type: ignore[valid-type]
    return PlainValidator(lambda read: np.array(numbers.validate_python(read), kind))


_AS_LIST = PlainSerializer(np.ndarray.tolist)
Numbers = Annotated[Float[np.ndarray, " prompt"], _from_list(float), _AS_LIST]
Flags = Annotated[Bool[np.ndarray, " prompt"], _from_list(bool), _AS_LIST]
"""Arrays, in JSON lists."""


@dataclass(frozen=True)
class Moved:
    """What one configuration does to the prompts that it can be read on."""

    prompts: tuple[tuple[str, str], ...]
    """Id of the fact and name of each prompt."""
    kl: Numbers
    """KL(p_PRE || p) of the next token, in nats."""
    changed: Flags
    """Whether another token than under PRE is the likeliest."""
    logprob: Numbers
    """Log-probability of the target's first token, less that under PRE."""
    top5: Flags
    """Whether it is among the five likeliest tokens; a tie counts against it."""
    top5_before: Flags
    """The same under PRE."""


@dataclass(frozen=True)
class Measured:
    """Texts of one kind under all configurations."""

    texts: Texts
    moved: Mapping[str, Moved]
    """By configuration; one that can be read on no prompt is not there."""
    absent: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By configuration, the reasons why it cannot be read on a prompt, and on how many."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Reasons why the tokenizer cannot take a prompt apart, and of how many."""


def measure(
    job: Job, texts: Texts, labels: Sequence[str], progress: Progress | None = None
) -> Measured:
    """Compare the next token under some configurations with that under PRE.

    Args:
        job: Model pair, method and engine.
        texts: Prompts of one kind.
        labels: Configurations.
        progress: Called after each batch with the prompts done and all of this kind.
    """
    wanted = list(dict.fromkeys(["PRE", *labels]))
    planned = plan_texts(job, texts.prompts, wanted)
    at_once = max(
        1, job.engine.budget.logits // (len(wanted) * int(job.pair.recipient.config.vocab_size))
    )
    parts: dict[str, list[Moved]] = {}
    done = 0
    for places, shared in planned.batches(at_once):
        prompts = [planned.prompts[place] for place in places]
        plan = job.engine.plan_treatments(
            prompts, [[planned.treatments[label][place] for place in places] for label in shared]
        )
        logits = job.engine.logits(plan)[:, :, 0]
        ids = tuple((prompt.fact.id, prompt.name) for prompt in prompts)
        targets = torch.tensor(
            [job.pair.encoded(prompt).target for prompt in prompts], device=logits.device
        )
        before = logits[:, shared.index("PRE")]
        for number, label in enumerate(shared):
            told = [
                f"configuration {label}, text {identifier}, prompt {name!r}"
                for identifier, name in ids
            ]
            require_finite(logits[:, number], targets, told.__getitem__)
            parts.setdefault(label, []).append(_moved(ids, targets, before, logits[:, number]))
        done += len(places)
        if progress is not None:
            progress(done, len(planned.prompts), texts.kind)
    return Measured(
        texts,
        {label: _joined(parts[label]) for label in labels if label in parts},
        planned.absent,
        planned.unread,
    )


def _moved(
    prompts: tuple[tuple[str, str], ...],
    targets: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
) -> Moved:
    """Two configurations of a batch compared; targets [prompt], logits [prompt, vocabulary]."""
    first, second = (
        logits.double().log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        for logits in (before, after)
    )
    return Moved(
        prompts,
        divergence(before, after).cpu().numpy(),
        (before.argmax(-1) != after.argmax(-1)).cpu().numpy(),
        (second - first).cpu().numpy(),
        _hits(after, targets),
        _hits(before, targets),
    )


def _hits(logits: torch.Tensor, targets: torch.Tensor) -> Bool[np.ndarray, " prompt"]:
    hits: np.ndarray = (
        (worst_rank(logits, logits.gather(-1, targets[:, None])) <= _TOP).cpu().numpy()
    )
    return hits


def _joined(parts: Sequence[Moved]) -> Moved:
    return Moved(
        tuple(prompt for part in parts for prompt in part.prompts),
        np.concatenate([part.kl for part in parts]),
        np.concatenate([part.changed for part in parts]),
        np.concatenate([part.logprob for part in parts]),
        np.concatenate([part.top5 for part in parts]),
        np.concatenate([part.top5_before for part in parts]),
    )
