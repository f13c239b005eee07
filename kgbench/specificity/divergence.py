"""How far one next-token distribution is from another."""

from __future__ import annotations

import torch
from jaxtyping import Float

__all__ = ["divergence"]

_SMALL = 1e-3
"""Below this difference of log-probabilities a series is more exact than a difference of nearly equal numbers."""


def divergence(
    before: Float[torch.Tensor, "prompt vocabulary"],
    after: Float[torch.Tensor, "prompt vocabulary"],
) -> Float[torch.Tensor, " prompt"]:
    """KL(p || q) of two next-token distributions (S. Kullback and R. A. Leibler, 1951), in nats.

    It is summed as p log(p/q) - p + q, which is the same since both add up to 1, and of which no term is negative. So equal logits give
    exactly 0, and a small divergence is not lost in the rounding of large terms that cancel.

    Args:
        before: Logits of p, of any type; they are taken to float64 first.
        after: Logits of q.
    """
    p, q = (logits.double().log_softmax(-1) for logits in (before, after))
    step = q - p
    series = step.square() * (1 / 2 + step / 6 + step.square() / 24)
    chances = p.exp()
    terms = torch.where(step.abs() < _SMALL, chances * series, q.exp() - chances - chances * step)
    return terms.sum(-1)
