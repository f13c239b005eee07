"""The first-order effect of grafting each site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kgbench.data import Prompt
from kgbench.engine.gradients import graft_effects
from kgbench.errors import InputError
from kgbench.localizers._base import ScoringLocalizer
from kgbench.localizers._credit import by_token
from kgbench.models.pair import ModelPair
from kgbench.sites import SiteScores


@dataclass(frozen=True)
class GraftAttribution(ScoringLocalizer):
    """⟨∂m/∂y, (W' - W) x⟩ summed over a site's tokens: first-order effect of the site's graft.

    m is the targets' mean log-probability (nats), x and y a module's input and output. One forward
    and one backward give the whole map. With several steps it is averaged along the straight path
    of all default components from W to W' (integrated gradients, arXiv 1703.01365); the sum of the
    scores then converges to m(ALL) - m(PRE) with the number of steps.
    """

    name = "graft_attribution"
    needs = frozenset({"donor", "gradients"})
    cost = "backward"
    about = "first-order effect of grafting each site: the whole map in one backward pass"
    score_meaning = "log-probability gained by grafting the site, first order (nats)"

    at: float = 0.0
    """Where the derivative is taken with one step: 0 at the recipient, 1 at the graft of all
    default components, or between."""
    steps: int = 1
    """Points of the Gauss-Legendre rule along the path; 1 takes the derivative at `at` instead."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            InputError: A parameter is out of range, or `at` is given with several steps.
        """
        if self.steps < 1 or not 0 <= self.at <= 1:
            raise InputError(
                "graft_attribution takes steps of 1 or more and at from 0 to 1, "
                f"not steps={self.steps} at={self.at}"
            )
        if self.steps > 1 and self.at:
            raise InputError(
                "graft_attribution with several steps runs along the whole path: "
                "leave 'at' out, or give steps=1"
            )

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """Effects summed over each site's tokens."""
        effects = [np.zeros(())] * len(prompts)
        for at, weight in self._rule():
            for i, effect in enumerate(graft_effects(pair, prompts, at)):
                effects[i] = effects[i] + weight * effect
        return by_token(pair, prompts, effects, pair.slots.index)

    def _rule(self) -> list[tuple[float, float]]:
        """Points on the path and their quadrature weights."""
        if self.steps == 1:
            return [(self.at, 1.0)]
        points, weights = np.polynomial.legendre.leggauss(self.steps)
        return list(zip(((1 + points) / 2).tolist(), (weights / 2).tolist(), strict=True))
