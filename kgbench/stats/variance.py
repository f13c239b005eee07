"""Variance components over facts, wordings and seeds, and the smallest detectable difference.

**Components.** A table of scores x[fact, wording, seed] in which every fact is asked in every
wording under every seed is a fully crossed design, and all three are taken as drawn from many
(generalizability theory: R. L. Brennan, Generalizability Theory, 2001, chapters 3 and 4):

    x[f, w, s] = mean + a_f + b_w + c_s + (ab)_fw + (ac)_fs + (bc)_ws + e_fws

The components, one variance for each term, are estimated by the method of moments from products of
centred scores. With z_f the part of fact f's scores that a term is about (its mean; its means by
wording or by seed less that; the rest) and d the degrees of freedom of that part, the mean square
of facts, or of facts x term, and what a term has in all facts alike are

    V = mean over pairs of different facts of |z_f - z_g|^2 / (2 d)
    B = mean over pairs of different facts of z_f . z_g / d

    facts:wordings:seeds = V_ws                      wordings:seeds = B_ws
    facts:wordings = (V_w - V_ws) / S                wordings = (B_w - B_ws) / S
    facts:seeds    = (V_s - V_ws) / W                seeds    = (B_s - B_ws) / W
    facts          = (V_0 - V_w - V_s + V_ws) / (W S)

for W wordings and S seeds. They equal the textbook's mean squares solved for the components, are
unbiased, and may be below 0 where a component is small; setting such a one to 0 would bias it. With
one wording (or seed) the terms with wordings (seeds) cannot be separated from those without.

Both means are over different facts only, so that a bootstrap of facts in which one comes twice does
not count it as agreeing with itself; a bootstrap of mean squares would be biased by that (Brennan,
chapter 6).

**Detectable differences.** The smallest difference between two methods that a set-up can detect is
the true difference that a two-sided test of 5 % finds in 80 % of all repetitions:

    smallest = k * SE(difference),    k = z(.975) + z(.8) = 2.80 for a known standard error

(G. W. Snedecor and W. G. Cochran, Statistical Methods, 1989, on the size of samples; H. S. Bloom,
Minimum detectable effects, 1995). Where the standard error is estimated from few wordings or seeds,
k is that of Student's t with the degrees of freedom of the estimate (F. E. Satterthwaite, 1946):
the noncentrality at which the test rejects in 80 %. With one degree of freedom that is 16.

The standard error depends on what the difference is to hold for:

    facts     the same prompt, both methods on the same facts     var(x1 - x2) / n
    sample    the same prompt, each method on facts of its own    (var(x1) + var(x2)) / n
    wordings  the mean over all W wordings, to hold for others    (MS_f + MS_w - MS_fw) / (n W)
    seeds     the same prompt and facts, each under one seed      var(x1 - x2) / n
                                                                  + var_s(x1) + var_s(x2)

with MS the mean squares of x1 - x2. x are per-fact values whose mean is the figure
(`stats.linearised`). Where only one method is at hand, the other is assumed to have the same
variances, and of what both share (facts; facts and wordings) a given correlation:
var(x1 - x2) = 2 (1 - correlation) var(x).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf, isfinite, sqrt
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq
from scipy.stats import chi2, norm, t

from kgbench.estimate import Estimate
from kgbench.numbers import number_text
from kgbench.stats.intervals import BLOCK, LEVEL, Array, outwards, satterthwaite

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
        if source in self.drawn:
            return figure_of(self.drawn[source], self.n)
        sizes = (("wordings", self.wordings), ("seeds", self.seeds))
        lacking = " and ".join(name for name, n in sizes if n == 1 and name in source)
        reason = f"there is one only, so that nothing can be said of others: {lacking}"
        return Estimate.missing(reason, self.n)

    def parts(self) -> dict[str, Estimate]:
        """The variance of one figure, of one wording and one seed over n facts, by what it is from.

        `facts`, `wordings`, `seeds`, and `interaction`: what wordings and seeds do together, and
        what they do to single facts.
        """
        within = []
        for source, drawn in self.drawn.items():
            if ":" in source:
                within.append(drawn / self.n if source.startswith("facts:") else drawn)
        interaction = figure_of(np.sum(within, axis=0), self.n) if within else None
        return {
            "facts": figure_of(self.drawn["facts"] / self.n, self.n),
            "wordings": self.figure("wordings"),
            "seeds": self.figure("seeds"),
            "interaction": interaction or self.figure("wordings:seeds"),
        }


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
    v, b = _moments(_centred(scores), counts)
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
    low, high = outwards(drawn[1:])
    if not (isfinite(low) and isfinite(high)):
        lost = np.mean(np.isnan(drawn[1:]))
        return Estimate.missing(f"{lost:.1%} of the resamples of {n} facts have no value", n)
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
    parts: Mapping[str, tuple[Array, int]], counts: Float[np.ndarray, "draws facts"]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """V and B by term, of all facts once and of each draw [1 + draws]; NaN for a draw of one fact.

    Args:
        parts: By term, as of `_centred`; a term without freedom has 0.
        counts: Resample of the facts.
    """
    n, zero = counts.shape[1], np.zeros(1 + len(counts))
    cells = {name: part.reshape(n, -1) for name, (part, freedom) in parts.items() if freedom}
    lengths = np.stack([(part**2).sum(1) for part in cells.values()] + [np.ones(n)], axis=1)
    sums = _sums(np.hstack([lengths, *cells.values()]), counts, 1)
    squares = _sums(lengths, counts, 2)
    total = sums[:, len(cells)]
    pairs = total**2 - squares[:, -1]
    within, between, start = dict.fromkeys(parts, zero), dict.fromkeys(parts, zero), len(cells) + 1
    for i, (name, part) in enumerate(cells.items()):
        end = start + part.shape[1]
        apart = (sums[:, start:end] ** 2).sum(1) - squares[:, i]
        own = total * sums[:, i] - squares[:, i]
        divisor = np.where(pairs > 0, pairs, np.nan) * parts[name][1]
        within[name], between[name] = (own - apart) / divisor, apart / divisor
        start = end
    return within, between


def _sums(
    values: Float[np.ndarray, "facts columns"],
    counts: Float[np.ndarray, "draws facts"],
    power: int,
) -> Float[np.ndarray, "draws_and_one columns"]:
    """Sums over all facts once, then over each draw, weighted by a power of the counts."""
    sums = [np.ones((1, len(values))) @ values]
    for start in range(0, len(counts), BLOCK):
        sums.append(counts[start : start + BLOCK] ** power @ values)
    return np.concatenate(sums)


POWER = 0.8
"""Share of repetitions in which the difference is found."""

SCOPES = ("facts", "sample", "wordings", "seeds")

ZERO = 1e-12
"""Of variances, what rounding leaves."""

GRID = 20_000
"""Places at which the distribution of an estimated standard error is taken."""


@dataclass(frozen=True)
class Detectable:
    """The smallest difference that can be detected, for one scope."""

    fixed: float = 0.0
    """Variance of the difference that more facts do not lessen."""
    per_fact: float = 0.0
    """Variance of the difference that facts lessen, times their number."""
    n: int = 0
    """Number of facts."""
    freedom: float = inf
    """Degrees of freedom of the standard error; infinite where it is taken as known."""
    undefined: str | None = None
    """Why there is none."""

    @property
    def variance(self) -> float:
        """Of the difference."""
        return self.fixed + self.per_fact / self.n

    @property
    def smallest(self) -> float | None:
        """The smallest difference, in shares of what finetuning added."""
        return None if self.undefined else multiplier(self.freedom) * sqrt(self.variance)

    def facts_for(self, difference: float) -> int | str:
        """How many facts it takes to detect a difference, or why no number would do.

        The variances and their degrees of freedom are taken to stay what they are.

        Args:
            difference: In shares of what finetuning added; above 0.
        """
        if self.undefined:
            return self.undefined
        left = (difference / multiplier(self.freedom)) ** 2 - self.fixed
        if left <= 0:
            left_over = number_text(multiplier(self.freedom) * sqrt(self.fixed))
            return f"no number of facts: what they do not lessen keeps it at {left_over}"
        return max(2, ceil(self.per_fact / left))

    def to_json(self, difference: float) -> dict[str, Any]:
        """The object that `--json` prints."""
        if self.undefined:
            return {"undefined": self.undefined}
        facts = self.facts_for(difference)
        needed = {"facts": facts} if isinstance(facts, int) else {"facts": None, "reason": facts}
        freedom = None if self.freedom == inf else self.freedom
        return {
            "smallest": self.smallest,
            "se": sqrt(self.variance),
            "df": freedom,
            "k": multiplier(self.freedom),
            "needed": needed,
        }


@lru_cache(maxsize=256)
def multiplier(freedom: float = inf) -> float:
    """How many standard errors a difference must have to be found with the power `POWER`.

    Args:
        freedom: Degrees of freedom of the standard error.
    """
    tail = (1 + LEVEL) / 2
    if freedom == inf:
        return float(norm.ppf(tail) + norm.ppf(POWER))
    # The power is the mean of a normal test's over the distribution of the standard error.
    estimated = np.sqrt(chi2.ppf((np.arange(GRID) + 0.5) / GRID, freedom) / freedom)
    bound = float(t.ppf(tail, freedom)) * estimated

    def lacking(difference: float) -> float:
        return float(np.mean(norm.sf(bound - difference) + norm.cdf(-bound - difference))) - POWER

    return float(brentq(lacking, 0.0, 3 * (t.ppf(tail, freedom) + t.ppf(POWER, freedom))))


def detectable_by_assumption(
    scores: Cube, of: Components, correlation: float
) -> dict[str, Detectable]:
    """By scope, for a method and another that is assumed to be like it.

    Args:
        scores: Per-fact values of the one that is at hand.
        of: Their components.
        correlation: Of the two methods' values over what both share.
    """
    own, n = 2 * (1 - correlation), len(scores)
    within = float(scores.var(axis=0, ddof=1).mean())
    return {
        "facts": _checked(0.0, own * within, n),
        "sample": _checked(0.0, 2 * within, n),
        "wordings": _wordings(scores.mean(axis=2), own),
        "seeds": _with_seeds([of] if of.seeds > 1 else [], 2.0, own * within, n),
    }


def detectable_between(
    first: Cube, second: Cube, of: tuple[Components, Components]
) -> dict[str, Detectable]:
    """By scope, for two methods on the same facts and wordings.

    Args:
        first: Per-fact values of one.
        second: Of the other; its seeds are its own.
        of: The components of both.
    """
    n = len(first)
    apart = first[:, :, :, None] - second[:, :, None, :]
    paired = float(apart.var(axis=0, ddof=1).mean())
    both = sum(float(scores.var(axis=0, ddof=1).mean()) for scores in (first, second))
    drawn = [components for components in of if components.seeds > 1]
    return {
        "facts": _checked(0.0, paired, n),
        "sample": _checked(0.0, both, n),
        "wordings": _wordings(first.mean(axis=2) - second.mean(axis=2), 1.0),
        "seeds": _with_seeds(drawn, 1.0, paired, n),
    }


ONE_SEED = "one seed only"
ONE_WORDING = "one wording only: nothing is known of others"


def _with_seeds(drawn: Sequence[Components], scale: float, per_fact: float, n: int) -> Detectable:
    """With the variance between seeds in one wording, of methods under several seeds."""
    if not drawn:
        return Detectable(undefined=ONE_SEED)
    fixed = scale * sum(c.value("seeds") + c.value("wordings:seeds") for c in drawn)
    seeds = min(c.seeds for c in drawn)
    freedom = satterthwaite([(seeds - 1, fixed), (n - 1, per_fact / n)])
    return _checked(fixed, per_fact, n, freedom)


def _wordings(scores: Float[np.ndarray, "facts wordings"], scale: float) -> Detectable:
    """Variance of the mean of a crossed table, facts and wordings random, times a factor."""
    n, wordings = scores.shape
    if wordings < 2:
        return Detectable(undefined=ONE_WORDING)
    by_fact, by_wording, whole = scores.mean(1), scores.mean(0), float(scores.mean())
    rest = scores - by_fact[:, None] - by_wording[None, :] + whole
    facts = wordings * float(by_fact.var(ddof=1))
    asked = n * float(by_wording.var(ddof=1))
    both = float((rest**2).sum()) / ((n - 1) * (wordings - 1))
    fixed, per_fact = scale * (asked - both) / (n * wordings), scale * facts / wordings
    terms = [(n - 1, facts), (wordings - 1, asked), ((n - 1) * (wordings - 1), -both)]
    return _checked(fixed, per_fact, n, satterthwaite(terms))


def _checked(fixed: float, per_fact: float, n: int, freedom: float = inf) -> Detectable:
    variance = fixed + per_fact / n
    if variance <= ZERO:
        found = "is below 0" if variance < -ZERO else "is 0, for all facts came out alike"
        reason = f"the estimated variance of the difference {found}, so that nothing can be "
        return Detectable(n=n, undefined=f"{reason}told from it")
    if freedom < 1:
        reason = "the standard error of the difference is hardly known: less than one degree "
        return Detectable(n=n, undefined=f"{reason}of freedom")
    return Detectable(fixed, per_fact, n, freedom)
