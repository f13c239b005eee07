"""Per-fact scores of next-token logits."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int

__all__ = ["METRIC_VERSION", "score_logits"]

METRIC_VERSION = "1"
"""Raised whenever a definition below changes, so that records made before are told apart."""


def score_logits(logits: Float[torch.Tensor, "answer vocabulary"], targets: Int[torch.Tensor, " answer"]) -> dict[str, np.ndarray]:
    """How well each answer's logits predict its target token.

    Args:
        logits: Next-token logits; 16-bit ones are scored in float32.
        targets: Target token of each answer.

    Returns:
        Arrays [answer]: `rank` (1 + number of strictly greater probabilities; told by the logits, which order alike without the
        rounding of the softmax), `prob`, `logprob` (nats), `logit_diff` (target minus the best other token).
    """
    exact = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    index = targets.to(exact.device)[:, None]
    target = exact.gather(1, index)
    logprob = target - exact.logsumexp(dim=1, keepdim=True)
    best_other = exact.scatter(1, index, -torch.inf).amax(dim=1, keepdim=True)
    columns = {
        "rank": 1 + (exact > target).sum(dim=1, keepdim=True),
        "logprob": logprob,
        "logit_diff": target - best_other,
    }
    arrays = {name: column[:, 0].cpu().numpy() for name, column in columns.items()}
    scores = {name: arrays[name].astype(np.float64) for name in ("logprob", "logit_diff")}
    return {"rank": arrays["rank"], "prob": np.exp(scores["logprob"]), **scores}
