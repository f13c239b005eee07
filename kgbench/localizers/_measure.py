"""Log-probabilities of the prompts' answers under grafts, by which localizers score sites."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from itertools import chain

import numpy as np
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.site_sets import site_treatments
from kgbench.localizers._base import Treatments
from kgbench.localizers._parts import part
from kgbench.metrics import of_answers, score_labels
from kgbench.models.pair import ModelPair
from kgbench.sites import Site

DESCRIBED = 1 << 18
"""Largest number of treatments in memory at once: configurations × tokens."""


def logprobs(
    pair: ModelPair, prompts: Sequence[Prompt], configurations: Sequence[Treatments]
) -> Float[np.ndarray, "configuration prompt"]:
    """Log-probability (nats) of each prompt's answer under each configuration.

    All configurations of a prompt share one token tree.

    Args:
        pair: The models.
        prompts: Prompts of any lengths.
        configurations: Treatments of all prompts under each configuration.
    """
    engine = Engine(pair)
    answers = [pair.encoded(prompt).answer for prompt in prompts]
    owners = np.repeat(np.arange(len(prompts)), list(map(len, answers)))
    plan = engine.plan_treatments(prompts, configurations)
    run = map(plan.numbered, engine.run(plan))
    parts = ((part.prompt, part.configuration, part.logits) for part in run)

    def describe(configuration: int, read: int) -> str:
        return f"configuration {configuration} of a scan, fact {prompts[owners[read]].fact.id}"

    reads = list(chain.from_iterable(answers))
    scores = score_labels(parts, reads, len(configurations), describe)
    return of_answers(scores, owners)["logprob"]


def site_logprobs(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    sets: Sequence[Collection[Site]],
    left_out: bool = False,
) -> Float[np.ndarray, "set prompt"]:
    """Log-probability (nats) of each prompt's answer under the graft of each set of sites.

    Args:
        pair: The models.
        prompts: Prompts of any lengths; treated in chunks, so that memory does not grow with their
            number.
        sets: Sets of sites.
        left_out: Graft the complement of each set among the sites of the default components.
    """
    longest = max(len(pair.encoded(prompt).ids) for prompt in prompts)
    step = max(1, DESCRIBED // (len(sets) * longest))
    parts = []
    for start in range(0, len(prompts), step):
        chunk = prompts[start : start + step]
        grafts = [site_treatments(pair, chunk, sites, left_out) for sites in sets]
        parts.append(part(partial(logprobs, pair, chunk, grafts)))
    return np.concatenate(parts, axis=1)
