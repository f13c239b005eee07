"""What our model says of a continuation: what lm-eval expects, and more."""

from __future__ import annotations

__all__ = ["TokenScore"]


class TokenScore(tuple[float, bool]):
    """The pair that every lm-eval task reads, (log-probability of the whole continuation in nats, whether it is the greedy one).

    A pair of its own class, so that tasks of ours find in it how the first token of the continuation stands, and all others see
    nothing unusual.
    """

    rank: int
    """1 + number of other tokens that are at least as probable as the first token of the continuation."""
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
        """What a copy is made from."""
        return (*self, self.rank, self.prob, self.logprob)
