"""What localizers measure sites by: the log-probability of the prompts' targets."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.site_sets import site_treatments
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import changed
from kgbench.localizers._base import Treatments
from kgbench.metrics import score_logits
from kgbench.models.pair import ModelPair
from kgbench.sites import Site

__all__ = ["logprobs", "site_logprobs"]

DESCRIBED = 1 << 18
"""Most treatments described at once: configurations × tokens."""


def logprobs(
    pair: ModelPair, prompts: Sequence[Prompt], configurations: Sequence[Treatments]
) -> Float[np.ndarray, "configuration prompt"]:
    """Log-probability (nats) of each prompt's target under each configuration, with all of a prompt's configurations in one tree."""
    engine = Engine(pair)
    targets = torch.tensor([pair.encoded(prompt).target for prompt in prompts])
    found = np.empty((len(configurations), len(prompts)))
    for chunk in engine.run(engine.plan_treatments(prompts, configurations)):
        places = chunk.configuration.numpy(), chunk.prompt.numpy()

        def told(i: int, places: tuple[np.ndarray, np.ndarray] = places) -> str:
            return f"configuration {places[0][i]} of a scan, fact {prompts[places[1][i]].fact.id}"

        found[places] = score_logits(chunk.logits, targets[chunk.prompt], told)["logprob"]
    return found


def site_logprobs(
    pair: ModelPair,
    prompts: Sequence[Prompt],
    sets: Sequence[Collection[Site]],
    left_out: bool = False,
) -> Float[np.ndarray, "set prompt"]:
    """Log-probability (nats) of each prompt's target under the graft of each set of sites.

    Args:
        pair: The models; where donor and recipient have equal weights a graft is none, and makes no difference by rounding either.
        prompts: Prompts of any lengths; some are described at once, so that memory does not grow with their number.
        sets: Sets of sites.
        left_out: Graft all sites of the default components but those of each set instead.
    """
    places = Slots(pair.family, pair.n_layers).sites
    moved = {places[slot] for slot in changed(pair)}
    some = [[site for site in each if (site.layer, site.component) in moved] for each in sets]
    longest = max(len(pair.encoded(prompt).ids) for prompt in prompts)
    step = max(1, DESCRIBED // (len(sets) * longest))
    chunks = [prompts[start : start + step] for start in range(0, len(prompts), step)]
    return np.concatenate(
        [logprobs(pair, c, [site_treatments(pair, c, s, left_out) for s in some]) for c in chunks],
        axis=1,
    )
