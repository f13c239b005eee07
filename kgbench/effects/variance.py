"""Where the variance of a figure is from: facts, wordings, seeds, and what these do together.

A table of scores x[fact, wording, seed] in which every fact is asked in every wording under every
seed is a fully crossed design, and all three are taken as drawn from many (generalizability theory:
R. L. Brennan, Generalizability Theory, 2001, chapters 3 and 4):

    x[f, w, s] = mean + a_f + b_w + c_s + (ab)_fw + (ac)_fs + (bc)_ws + e_fws

The components, one variance for each term, are estimated by the method of moments from products of
centred scores. With z_f the part of fact f's scores that a term is about (its mean; its means by
wording or by seed less that; the rest), d the degrees of freedom of that part,

    V = mean over pairs of different facts of |z_f - z_g|^2 / (2 d)      the mean square of facts,
    or of facts x term B = mean over pairs of different facts of z_f . z_g / d              what a
    term has in all facts alike

    facts:wordings:seeds = V_ws                      wordings:seeds = B_ws
    facts:wordings = (V_w - V_ws) / S                wordings = (B_w - B_ws) / S
    facts:seeds    = (V_s - V_ws) / W                seeds    = (B_s - B_ws) / W
    facts          = (V_0 - V_w - V_s + V_ws) / (W S)

for W wordings and S seeds. They equal the textbook's mean squares solved for the components, are
unbiased, and may be below 0 where a component is small: that is reported as it is, since setting it
to 0 would make them biased. With one wording (or seed) the terms with wordings (seeds) cannot be
told from those without.

Both means are over different facts only, so that a bootstrap of facts in which one comes twice does
not count it as agreeing with itself; a bootstrap of mean squares would be biased by that (Brennan,
chapter 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from kgbench.estimate import Estimate
from kgbench.stats import LEVEL

__all__ = ["SOURCES", "Components", "components", "spread"]

Array = NDArray[Any]
Cube = Float[np.ndarray, "facts wordings seeds"]

SOURCES = (
    "facts",
    "wordings",
    "seeds",
    "facts:wordings",
    "facts:seeds",
    "wordings:seeds",
    "facts:wordings:seeds",
)
"""Terms of the model; a colon joins what acts together."""


@dataclass(frozen=True)
class Components:
    """Variance components with their bootstrap over facts."""

    n: int
    """Number of facts."""
    wordings: int
    seeds: int
    drawn: Mapping[str, Array]
    """By source [1 + draws]: estimate, then each draw; without sources that cannot be separated."""

    def value(self, source: str) -> float:
        """Estimate of a source; 0 where the design cannot separate it from another."""
        return float(self.drawn[source][0]) if source in self.drawn else 0.0

    def figure(self, source: str) -> Estimate:
        """A component with its interval over facts, for the wordings and seeds that were run."""
        if source not in self.drawn:
            return Estimate.missing(self._why_not(source), self.n)
        return figure_of(self.drawn[source], self.n)

    def parts(self) -> dict[str, Estimate]:
        """The variance of one figure, of one wording and one seed over n facts, by what it is from.

        `facts`, `wordings`, `seeds`, and `interaction`: what wordings and seeds do together, and
        what they do to single facts.
        """
        together = [source for source in self.drawn if source.startswith("facts:")]
        within = [self.drawn[source] / self.n for source in together] + [
            self.drawn[s] for s in ("wordings:seeds",) if s in self.drawn
        ]
        found = {"facts": figure_of(self.drawn["facts"] / self.n, self.n)}
        found |= {source: self.figure(source) for source in ("wordings", "seeds")}
        found["interaction"] = (
            figure_of(np.sum(within, axis=0), self.n)
            if within
            else Estimate.missing(self._why_not("interaction"), self.n)
        )
        return found

    def _why_not(self, source: str) -> str:
        sizes = {"wordings": self.wordings, "seeds": self.seeds}
        lacking = [
            name
            for name, n in sizes.items()
            if n == 1 and (source == "interaction" or name in source)
        ]
        return f"there is one only, so that nothing can be said of others: {' and '.join(lacking)}"


def components(scores: Cube, counts: Array) -> Components:
    """Estimate the variance components of a crossed table.

    Args:
        scores: Of every fact in every wording under every seed.
        counts: Resample of the facts [draws, facts].

    Raises:
        ValueError: There are fewer than two facts.
    """
    n, wordings, seeds = scores.shape
    if n < 2:
        raise ValueError(f"variance between facts needs two of them, not {n}")
    weights = np.vstack([np.ones(n), np.asarray(counts, float)])
    zero = np.zeros(len(weights))
    v, b = {}, {}
    for name, (part, freedom) in _centred(scores).items():
        v[name], b[name] = (
            _moments(part.reshape(n, -1), freedom, weights) if freedom else (zero, zero)
        )
    found = {"facts": (v["mean"] - v["wordings"] - v["seeds"] + v["both"]) / (wordings * seeds)}
    if wordings > 1:
        found["wordings"] = (b["wordings"] - b["both"]) / seeds
        found["facts:wordings"] = (v["wordings"] - v["both"]) / seeds
    if seeds > 1:
        found["seeds"] = (b["seeds"] - b["both"]) / wordings
        found["facts:seeds"] = (v["seeds"] - v["both"]) / wordings
    if wordings > 1 and seeds > 1:
        found["wordings:seeds"], found["facts:wordings:seeds"] = b["both"], v["both"]
    return Components(
        n, wordings, seeds, {source: found[source] for source in SOURCES if source in found}
    )


def spread(draws: Float[np.ndarray, "several draws"], values: Array, n: int) -> Estimate:
    """The standard deviation of several figures, with its interval over facts.

    It holds the figures' own noise too, so that it is above 0 where nothing but facts differs;
    `components` takes that off.

    Args:
        draws: The figures under one resample; NaN where one is undefined in a draw.
        values: The figures.
        n: Number of facts.
    """
    if len(values) < 2:
        return Estimate.missing("one only, and a spread needs two", n)
    return figure_of(np.append(np.std(values, ddof=1), np.std(draws, axis=0, ddof=1)), n)


def figure_of(drawn: Array, n: int) -> Estimate:
    """Estimate with percentiles of its draws [1 + draws]; a NaN counts against both ends."""
    rest, missing, tail = drawn[1:], np.isnan(drawn[1:]), (1 - LEVEL) / 2
    low = float(np.quantile(np.where(missing, -np.inf, rest), tail, method="lower"))
    high = float(np.quantile(np.where(missing, np.inf, rest), 1 - tail, method="higher"))
    if not (isfinite(low) and isfinite(high)):
        return Estimate.missing(
            f"{np.mean(missing):.1%} of the resamples of {n} facts have no value", n
        )
    return Estimate.hull(float(drawn[0]), n, (low, high))


def _centred(scores: Cube) -> dict[str, tuple[Array, int]]:
    """Components of the scores by term, in full size, with their degrees of freedom."""
    _, wordings, seeds = scores.shape
    whole, by_wording, by_seed = (scores.mean(axis, keepdims=True) for axis in ((1, 2), 2, 1))
    full = np.zeros_like(scores, dtype=float)
    return {
        "mean": (full + whole, 1),
        "wordings": (full + by_wording - whole, wordings - 1),
        "seeds": (full + by_seed - whole, seeds - 1),
        "both": (scores - by_wording - by_seed + whole, (wordings - 1) * (seeds - 1)),
    }


def _moments(
    part: Float[np.ndarray, "facts cells"], freedom: int, weights: Float[np.ndarray, "draws facts"]
) -> tuple[Array, Array]:
    """V and B under each draw [draws]; NaN for a draw of one fact alone."""
    lengths, total, squares = (part**2).sum(1), weights.sum(1), weights**2
    pairs = total**2 - squares.sum(1)
    between = ((weights @ part) ** 2).sum(1) - squares @ lengths
    own = total * (weights @ lengths) - squares @ lengths
    divisor = np.where(pairs > 0, pairs, np.nan) * freedom
    return (own - between) / divisor, between / divisor
