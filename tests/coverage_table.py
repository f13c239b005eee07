"""Simulates how often each interval that kgbench prints holds the truth, and prints the table of
docs/results/statistics.md.

    python tests/coverage_table.py [REPETITIONS]

A few minutes on two cores.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from kgbench.estimate import Estimate
from kgbench.numbers import plain_text
from kgbench.stats import difference, hit_rate, mean, stratified_mean
from kgbench.stats.intervals import median
from kgbench.stats.ratios import recovery, synergy
from kgbench.stats.scores import support_of
from kgbench.stats.summary import means

__all__ = ["CASES", "FACTS", "Case", "Held", "main", "simulated"]

Array = NDArray[Any]
Scores = Mapping[str, Array]
Draw = Callable[[np.random.Generator, int], Scores]

FACTS = (10, 20, 40, 150, 400)
REPETITIONS = 4000
MANY = 2_000_000
"""Facts that stand for all."""

LOWEST, HIGHEST = 0.93, 0.98
SHOWN = 0.1
"""An interval that is printed in fewer repetitions is not judged: nobody sees it."""


@dataclass(frozen=True)
class Case:
    """One score of one population."""

    score: str
    name: str
    draw: Draw
    figure: Callable[[Scores], Estimate]
    truth: float | Callable[[Scores], float]
    """A number, or what gives it for `MANY` facts."""
    wide: str = ""
    """Why it holds more than 98 %, where it does: `discrete`, of few possible values; `bounded`,
    since rare facts at the other end of the scale, which would move the mean, cannot be ruled out.
    Or less than 93 %: `weak`, since a gain near 0 is divided by, and of such gains only those are
    significant that luck made large.
    """


@dataclass(frozen=True)
class Held:
    """How often an interval was printed, and of these how often it held the truth."""

    printed: float
    covered: float
    repetitions: int

    @property
    def error(self) -> float:
        """The simulation's standard error of what is covered."""
        return sqrt(self.covered * (1 - self.covered) / max(1.0, self.printed * self.repetitions))

    def text(self, wide: str) -> str:
        """Per cent; what is not within 93 to 98 is marked or explained."""
        if self.printed == 0:
            return "–"
        shown = "" if self.printed > 0.9995 else f" of {100 * self.printed:.0f}"
        if self.printed < SHOWN:
            return f"({100 * self.covered:.0f}{shown})"
        high = self.covered > HIGHEST + 2 * self.error
        low = self.covered < LOWEST - 2 * self.error
        why = f" {wide}" if wide and (high or (low and wide == "weak")) else ""
        bad = (high or low) and not why
        return f"{'**' if bad else ''}{100 * self.covered:.1f}{shown}{'**' if bad else ''}{why}"


def simulated(case: Case, n: int, repetitions: int, seed: int = 0) -> Held:
    """Draws n facts again and again.

    Args:
        case: What is drawn, and what is made of it.
        n: Number of facts.
        repetitions: How often.
        seed: Of the draws.
    """
    rng, printed, covered, truth = np.random.default_rng([seed, n]), 0, 0, _truth(case)
    for _ in range(repetitions):
        found = case.figure(case.draw(rng, n))
        if found.low is not None and found.high is not None:
            printed += 1
            # Rounding must not decide whether an end that is the truth holds it.
            covered += found.low - 1e-9 <= truth <= found.high + 1e-9
    return Held(printed / repetitions, covered / max(1, printed), repetitions)


# Hits


def hits(**rates: float) -> Draw:
    """Hits of each configuration, each by itself."""
    return lambda rng, n: {name: rng.random(n) < rate for name, rate in rates.items()}


def alike(pre: float, sft: float, graft: float) -> Draw:
    """The graft hits what the donor hits, but for some."""

    def draw(rng: np.random.Generator, n: int) -> Scores:
        before, donor = rng.random(n) < pre, rng.random(n) < sft
        return {"PRE": before, "SFT": donor, "LT": donor & (rng.random(n) < graft / sft)}

    return draw


def little(pre: float, sft: float, more: float) -> Draw:
    """The graft hits what the recipient hits, and a few more."""

    def draw(rng: np.random.Generator, n: int) -> Scores:
        before = rng.random(n) < pre
        return {"PRE": before, "SFT": rng.random(n) < sft, "LT": before | (rng.random(n) < more)}

    return draw


def discordant(lost: float, won: float) -> Draw:
    """Two configurations that differ on so many facts."""

    def draw(rng: np.random.Generator, n: int) -> Scores:
        u = rng.random(n)
        return {"PRE": u < lost, "LT": (u >= lost) & (u < lost + won)}

    return draw


# Other scores


def ranked(*parts: tuple[float, float, float]) -> Callable[[np.random.Generator, int], Array]:
    """Ranks: of each part its share, and mean and standard deviation of the logarithm; without a
    deviation all are of rank 1.
    """
    shares = np.cumsum([share for share, _, _ in parts])

    def draw(rng: np.random.Generator, n: int) -> Array:
        which = np.minimum(np.searchsorted(shares, rng.random(n)), len(parts) - 1)
        middle, spread = (np.array([part[i] for part in parts])[which] for i in (1, 2))
        return np.minimum(
            np.ceil(
                np.exp(middle + spread * rng.standard_normal(n)) * (spread > 0) + (spread == 0)
            ),
            256_000.0,
        )

    return draw


RECIPIENT, HALF, DONOR = (
    ranked((1, 6.0, 1.6)),
    ranked((0.3, 0, 0), (0.7, 3.5, 1.8)),
    ranked((0.9, 0, 0), (0.1, 1.5, 1.5)),
)


def ranks(score: Callable[[Array], Array]) -> Draw:
    """A score of the ranks of recipient, donor and one between."""
    made = {"PRE": RECIPIENT, "SFT": DONOR, "LT": HALF}
    return lambda rng, n: {name: score(draw(rng, n)) for name, draw in made.items()}


def probable(rng: np.random.Generator, n: int) -> Scores:
    """Probabilities that belong to one fact together: all but 0, widespread near 0, of two humps,
    near 1.
    """
    return {
        "PRE": np.exp(np.minimum(0, rng.normal(-9, 2, n))),
        "LT": np.exp(np.minimum(0, rng.normal(-5, 2.2, n))),
        "U": rng.beta(0.2, 0.2, n),
        "SFT": rng.beta(3, 1, n),
        "ALL": rng.beta(20, 0.5, n),
    }


def logarithms(rng: np.random.Generator, n: int) -> Scores:
    """Log-probabilities."""
    return {
        name: np.log(np.maximum(values, 1e-12))
        for name, values in probable(rng, n).items()
        if name != "U"
    }


def areas(draw: Callable[[np.random.Generator, int], Array]) -> Draw:
    """Average precision of plants."""
    return lambda rng, n: {"map": draw(rng, n)}


LEVELS = 4
"""Levels of planted knowledge on a board, among which plants are divided."""


def levelled(*populations: Callable[[np.random.Generator, int], Array]) -> Draw:
    """Plants by level, each level of a population of its own."""

    def draw(rng: np.random.Generator, n: int) -> Scores:
        sizes = map(len, np.array_split(np.empty(n), LEVELS))
        return {
            "map": np.concatenate([own(rng, k) for own, k in zip(populations, sizes, strict=True)])
        }

    return draw


def beta(a: float, b: float) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.beta(a, b, n)


def seldom(rng: np.random.Generator, n: int) -> Array:
    return np.where(rng.random(n) < 0.9, 0.99, 0.6)


# Cases


def _of(metric: str, graft: str) -> Callable[[Scores], Estimate]:
    return lambda scores: means(scores, support_of(scores.values(), metric))[graft]


def _differ(scores: Scores) -> Estimate:
    return difference(scores["LT"], scores["PRE"])


def _mean(graft: str) -> Callable[[Scores], float]:
    return lambda scores: float(scores[graft].mean())


def _median(graft: str) -> Callable[[Scores], Estimate]:
    return lambda scores: median(scores[graft])


def _middle(graft: str) -> Callable[[Scores], float]:
    return lambda scores: float(np.median(scores[graft]))


def _over_plants(scores: Scores) -> Estimate:
    return mean(scores["map"], (0.0, 1.0))


def _by_level(scores: Scores) -> list[Array]:
    return np.array_split(scores["map"], LEVELS)


def _over_levels(scores: Scores) -> Estimate:
    return stratified_mean(_by_level(scores), (0.0, 1.0))


def _levels(scores: Scores) -> float:
    return float(np.mean([own.mean() for own in _by_level(scores)]))


def _cases() -> list[Case]:
    found = [
        Case("hits", f"p = {plain_text(p)}", hits(LT=p), lambda s: mean(s["LT"]), p, "discrete")
        for p in (0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.99)
    ]
    found += [
        Case(
            "difference of hits",
            f"+{plain_text(won)}, −{plain_text(lost)}",
            discordant(lost, won),
            lambda s: difference(s["LT"], s["PRE"]),
            won - lost,
            "discrete",
        )
        for won, lost in (
            (0.01, 0.0),
            (0.05, 0.01),
            (0.1, 0.1),
            (0.3, 0.05),
            (0.5, 0.2),
            (0.9, 0.02),
            (0.97, 0.0),
        )
    ]

    def recovered(name: str, draw: Draw, truth: float, wide: str = "discrete") -> Case:
        return Case("recovery of hits", name, draw, lambda s: recovery(s, "LT"), truth, wide)

    found += [
        recovered("PRE .02, SFT .97, r = .5", hits(PRE=0.02, SFT=0.97, LT=0.495), 0.5),
        recovered("the same, r = .98, alike", alike(0.02, 0.97, 0.951), 0.98),
        recovered("the same, r = .02, alike", little(0.02, 0.97, 0.019 / 0.98), 0.02),
        recovered("PRE .01, SFT .40, r = .6, alike", alike(0.01, 0.4, 0.244), 0.6),
        recovered("PRE .02, SFT .47, r = 2.07", hits(PRE=0.02, SFT=0.47, LT=0.95), 0.93 / 0.45),
        recovered("PRE .05, SFT .30, r = 1.84", hits(PRE=0.05, SFT=0.3, LT=0.51), 1.84, "weak"),
        recovered("PRE .02, SFT .30, r = .5", hits(PRE=0.02, SFT=0.3, LT=0.16), 0.5, "weak"),
        recovered("PRE .30, SFT .50, r = 1.25", hits(PRE=0.3, SFT=0.5, LT=0.55), 1.25, "weak"),
        recovered("PRE .30, SFT .40, r = 1.24", hits(PRE=0.3, SFT=0.4, LT=0.424), 1.24, "weak"),
        recovered("PRE .30, SFT .40, r = 6", hits(PRE=0.3, SFT=0.4, LT=0.9), 6.0, "weak"),
        recovered("PRE .01, SFT .08, r = 1, alike", alike(0.01, 0.08, 0.08), 1.0),
    ]
    together = hits(PRE=0.02, SFT=0.97, FE=0.2, LT=0.4, **{"FE+LT": 0.9})
    found.append(
        Case(
            "synergy of hits",
            "FE .2, LT .4, both .9",
            together,
            synergy,
            (0.9 - 0.2 - 0.4 + 0.02) / 0.95,
            "discrete",
        )
    )

    def over(
        score: str,
        name: str,
        draw: Draw,
        figure: Callable[[Scores], Estimate],
        truth: Callable[[Scores], float],
        wide: str,
    ) -> None:
        found.append(Case(score, name, draw, figure, truth, wide))

    kinds = {"PRE": "of the recipient", "LT": "of a part", "SFT": "nine in ten at 1"}
    for graft, name in kinds.items():
        over("median rank", name, ranks(lambda r: r), _median(graft), _middle(graft), "discrete")
    for graft, name in kinds.items():
        over("mean log rank", name, ranks(np.log), _of("log_rank", graft), _mean(graft), "bounded")
    for graft, name in kinds.items():
        over(
            "mean reciprocal rank",
            name,
            ranks(lambda r: 1 / r),
            _of("mrr", graft),
            _mean(graft),
            "bounded",
        )
    humps = {
        "PRE": "all but 0",
        "LT": "widespread near 0",
        "U": "of two humps",
        "SFT": "of the donor",
        "ALL": "near 1",
    }
    for graft, name in humps.items():
        over("mean probability", name, probable, _of("prob", graft), _mean(graft), "bounded")
    for graft in ("PRE", "LT", "SFT", "ALL"):
        over(
            "mean log-probability",
            humps[graft],
            logarithms,
            _of("logprob", graft),
            _mean(graft),
            "bounded",
        )
    for score, draw in (
        ("log rank", ranks(np.log)),
        ("reciprocal rank", ranks(lambda r: 1 / r)),
        ("probability", probable),
        ("log-probability", logarithms),
    ):
        over(
            f"recovery of {score}",
            "of a part",
            draw,
            lambda s: recovery(s, "LT"),
            _recovered,
            "bounded",
        )
    for name, draw in (
        ("Beta(8, 1)", areas(beta(8, 1))),
        ("Beta(2, 2)", areas(beta(2, 2))),
        ("nine in ten .99, one .6", areas(seldom)),
    ):
        over(
            "average precision, mean over n plants",
            name,
            draw,
            _over_plants,
            _mean("map"),
            "bounded",
        )
    for name, draw in (
        ("Beta(8, 1)", levelled(*[beta(8, 1)] * LEVELS)),
        ("Beta(2, 2)", levelled(*[beta(2, 2)] * LEVELS)),
        ("U-shaped", levelled(*[beta(0.5, 0.5)] * LEVELS)),
        ("levels apart", levelled(beta(8, 1), beta(2, 2), beta(1, 8), beta(20, 20))),
        ("one level varies", levelled(beta(2, 2), *[beta(200, 2)] * (LEVELS - 1))),
        ("nine in ten .99, one .6", levelled(*[seldom] * LEVELS)),
    ):
        score = f"average precision, mean over {LEVELS} levels, n plants"
        over(score, name, draw, _over_levels, _levels, "bounded")
    return found


def _recovered(scores: Scores) -> float:
    pre, sft, own = (float(scores[name].mean()) for name in ("PRE", "SFT", "LT"))
    return (own - pre) / (sft - pre)


CASES: Sequence[Case] = _cases()


def _truths() -> Iterator[float]:
    sample = np.random.default_rng(1)
    for case in CASES:
        yield case.truth(case.draw(sample, MANY)) if callable(case.truth) else case.truth


_left, _found = _truths(), list[float]()


def _truth(case: Case) -> float:
    """The truth of a case; all draw from one sequence of random numbers, so those before come first."""
    while len(_found) <= CASES.index(case):
        _found.append(next(_left))
    return _found[CASES.index(case)]


def lowest_of_hits(n: int) -> float:
    """The lowest coverage of a hit rate, of all p from .001 to .999: exact."""
    p, k = np.linspace(0.001, 0.999, 1997), np.arange(n + 1)
    low, high = np.array(
        [(found.low, found.high) for found in (hit_rate(int(hits), n) for hits in k)], float
    ).T[:, :, None]
    return float(
        (binom.pmf(k[:, None], n, p) * ((low - 1e-9 <= p) & (p <= high + 1e-9))).sum(axis=0).min()
    )


def _job(place: tuple[int, int, int]) -> Held:
    case, n, repetitions = place
    return simulated(CASES[case], n, repetitions)


def table(repetitions: int) -> str:
    """The table, and how well it knows."""
    places = [(case, n, repetitions) for case in range(len(CASES)) for n in FACTS]
    with ProcessPoolExecutor(2) as pool:
        held = dict(zip(places, pool.map(_job, places, chunksize=4), strict=True))
    lines = [
        "| interval of | where | " + " | ".join(f"n = {n}" for n in FACTS) + " |",
        "|---" * (len(FACTS) + 2) + "|",
    ]
    lowest = " | ".join(f"{100 * lowest_of_hits(n):.1f}" for n in FACTS)
    lines.append(f"| hits | the worst p of .001 to .999 (exact) | {lowest} |")
    for i, case in enumerate(CASES):
        cells = (held[i, n, repetitions].text(case.wide) for n in FACTS)
        lines.append(f"| {case.score} | {case.name} | {' | '.join(cells)} |")
    none = " | ".join("no interval" for _ in FACTS)
    lines += [
        f"| mean rank | everywhere | {none} |",
        f"| average precision of one plant | over its sites | {none} |",
    ]
    errors = [one.error for one in held.values() if one.printed >= SHOWN]
    told = (
        f"{repetitions:,} repetitions a cell; standard error of a cell"
        f" {100 * float(np.median(errors)):.1f} points at the median, {100 * max(errors):.1f} at"
        " most."
    )
    return "\n".join([*lines, "", told])


def main(repetitions: int = REPETITIONS) -> None:
    print(f"<!-- begin: coverage -->\n{table(repetitions)}\n<!-- end: coverage -->")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
