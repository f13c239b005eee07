"""The sequential executor: one prompt, one configuration, one token at a time with a key-value cache.

Deliberately naive: this is the algorithm as the paper states it, to audit the others by.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from transformers import DynamicCache

from kgbench.engine.forward import Wiring, one_treatment
from kgbench.engine.plan import Answers, Budget, Plan, Request

__all__ = ["run"]


def run(wiring: Wiring, plan: Plan, budget: Budget) -> Iterator[Answers]:
    """Answer a plan one prompt and configuration at a time; the budget does not matter."""
    for prompt, request in enumerate(plan.requests):
        for configuration in range(len(request.treatments)):
            logits = _token_by_token(wiring, plan, request, configuration)
            n = len(request.readouts)
            labels = torch.full((n,), prompt), torch.full((n,), configuration), torch.arange(n)
            yield Answers(*labels, logits, len(request.ids))


def _token_by_token(wiring: Wiring, plan: Plan, request: Request, configuration: int) -> torch.Tensor:
    """Logits [readout, vocabulary] of one prompt under one configuration."""
    cache = DynamicCache(config=wiring.model.config)
    read: dict[int, torch.Tensor] = {}
    for token, number in enumerate(request.treatments[configuration]):
        with one_treatment(wiring, plan.table[number]) as model:
            ids = torch.tensor([[request.ids[token]]], device=wiring.pair.device)
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        read[token] = logits[0, -1]
    return torch.stack([read[token] for token in request.readouts])
