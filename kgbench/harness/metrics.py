"""Per-document figures of kgbench's lm-eval tasks: of the first token of a name, and of the whole name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kgbench.harness.scores import TokenScore

__all__ = ["process_results"]


def process_results(
    doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]
) -> dict[str, float]:
    """What a task's `process_results` names.

    Args:
        doc: The document.
        results: One answer: a `TokenScore` from our model, a plain pair from any other.

    Returns:
        `name_logprob` (nats); of a `TokenScore` also `top1`, `top5` (0 or 1), `mrr` (1 / rank), `rank`, `prob` and `logprob` (nats) of
        the first token.
    """
    score = results[0]
    whole = {"name_logprob": float(score[0])}
    if not isinstance(score, TokenScore):
        return whole
    first = {
        "top1": score.rank <= 1,
        "top5": score.rank <= 5,
        "mrr": 1 / score.rank,
        "rank": score.rank,
    }
    return {
        **{name: float(value) for name, value in first.items()},
        "prob": score.prob,
        "logprob": score.logprob,
        **whole,
    }
