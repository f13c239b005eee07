"""Scores of a continuation, and the metrics of kgbench's lm-eval tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class TokenScore(tuple[float, bool]):
    """Log-probability of a continuation (nats), and whether it is greedy.

    lm-eval's tasks read such a pair; figures of the first token are attributes for kgbench's.
    """

    rank: int
    """1 + number of other tokens that are at least as probable as the first token."""
    prob: float
    """Probability of the first token."""
    logprob: float
    """Log-probability (nats) of the first token."""

    def __new__(
        cls, total: float, greedy: bool, rank: int, prob: float, logprob: float
    ) -> TokenScore:
        """A score of a continuation."""
        score = super().__new__(cls, (total, greedy))
        score.rank, score.prob, score.logprob = rank, prob, logprob
        return score

    def __getnewargs__(self) -> tuple[float, bool, int, float, float]:
        """Arguments of a copy."""
        return (*self, self.rank, self.prob, self.logprob)


def process_results(
    doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]
) -> dict[str, float]:
    """Metrics of a document; the function that a task's `process_results` names.

    Args:
        doc: The document.
        results: One answer: a `TokenScore` from `--model kgbench`, a plain pair from other models.

    Returns:
        `name_logprob` (nats); of a `TokenScore` also `top1`, `top5` (0 or 1), `mrr` (1 / rank),
        `rank`, `prob` and `logprob` (nats) of the first token.
    """
    score = results[0]
    name_logprob = {"name_logprob": float(score[0])}
    if not isinstance(score, TokenScore):
        return name_logprob
    return {
        "top1": float(score.rank <= 1),
        "top5": float(score.rank <= 5),
        "mrr": 1 / score.rank,
        "rank": float(score.rank),
        "prob": score.prob,
        "logprob": score.logprob,
        **name_logprob,
    }
