"""Which candidates are more likely than the answer, without scoring those that cannot be.

A candidate's log-likelihood is at most that of its first tokens. So those that go on from tokens which are less likely than the whole
answer need no scoring, and the rank is exact all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kgbench.answers.candidates import Candidates, Tokens

__all__ = ["Search"]


@dataclass
class Search:
    """What is known of one prompt's candidates under one configuration."""

    candidates: Candidates
    answer: str
    known: dict[Tokens, dict[int, float]] = field(default_factory=dict)
    """Log-probabilities (nats) of the tokens that candidates have after a prefix."""

    @property
    def loglik(self) -> float:
        """Log-likelihood (nats) of the answer, the sum over its tokens; it must have been read."""
        tokens, loglik = self.candidates.tokens[self.answer], 0.0
        for i, token in enumerate(
            tokens
        ):  # added up as those of candidates are, so that the answer is never more likely than itself
            loglik += self.known[tokens[:i]][token]
        return loglik

    def missing(self) -> list[Tokens]:
        """Prefixes at least as likely as the whole answer of which it is not known how they go on; none where the rank is known."""
        return [
            prefix
            for prefix, _ in self._likelier()
            if prefix in self.candidates.children and prefix not in self.known
        ]

    def better(self) -> list[tuple[str, float]]:
        """The other candidates that are at least as likely as the answer, the likeliest first, and their log-likelihoods (nats)."""
        names = self.candidates.names
        found = [
            (name, loglik) for tokens, loglik in self._likelier() for name in names.get(tokens, ())
        ]
        return sorted(
            (one for one in found if one[0] != self.answer), key=lambda one: (-one[1], one[0])
        )

    def scored(self) -> int:
        """How many candidates were scored to their last token."""
        return sum(
            all(tokens[:i] in self.known for i in range(len(tokens)))
            for tokens in self.candidates.tokens.values()
        )

    def _likelier(self) -> Iterator[tuple[Tokens, float]]:
        """All prefixes that are at least as likely as the answer, as far as is known, and their log-likelihoods."""
        least = self.loglik
        left: list[tuple[Tokens, float]] = [((), 0.0)]
        while left:
            prefix, loglik = left.pop()
            if loglik >= least:
                yield prefix, loglik
                left += [
                    ((*prefix, token), loglik + more)
                    for token, more in self.known.get(prefix, {}).items()
                ]
