"""What localizers measure sites by: the log-probability of the prompts' targets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.localizers._base import Treatments
from kgbench.metrics import score_logits
from kgbench.models.pair import ModelPair

__all__ = ["logprobs"]


def logprobs(pair: ModelPair, prompts: Sequence[Prompt], configurations: Sequence[Treatments]) -> Float[np.ndarray, "configuration prompt"]:
    """Log-probability (nats) of each prompt's target under each configuration, with all of a prompt's configurations in one tree."""
    engine = Engine(pair)
    targets = torch.tensor([pair.encoded(prompt).target for prompt in prompts])
    found = np.empty((len(configurations), len(prompts)))
    for chunk in engine.run(engine.plan_treatments(prompts, configurations)):
        found[chunk.configuration.numpy(), chunk.prompt.numpy()] = score_logits(chunk.logits, targets[chunk.prompt])["logprob"]
    return found
