"""The paper's claims about a figure, one by one, beside what its own figures say of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kgbench.estimate import Estimate
from kgbench.leaderboard.published import PublishedRow, published
from kgbench.reproduction.page import ClaimSpec, FigureSpec, Page, page
from kgbench.stats.scores import PromptColumns
from kgbench.stats.training_seeds import difference_over
from kgbench.testing.decisions import OPERATORS, decide

__all__ = [
    "LEAST",
    "Agreement",
    "Checked",
    "Outcome",
    "Published",
    "Term",
    "agreement",
    "checked",
    "family",
    "larger_term",
    "published_rates",
]

_Z = 1.959964
"""Of a 95 % interval of a normal distribution."""

_SAME = {"headline": ("headline_v1", "headline"), "movie_title": ("movie_title_v1", "movie_title")}
"""Our prompts, and under which names the paper's runs of them stand."""


LEAST = 0.25
"""Least recovery of the larger term of a claim that is not vacuous."""

Outcome = Literal["holds", "fails", "undecided", "vacuous"]


@dataclass(frozen=True)
class Term:
    """A configuration that a claim is about, and how much of what finetuning added it recovers."""

    name: str
    recovery: float


def larger_term(claim: ClaimSpec, means: Mapping[str, float]) -> Term | None:
    """The term of a claim that recovers more.

    Terms are the configurations that a claim names: `first`, `second` and `of`, but PRE. With m the
    mean over facts (and training seeds) of the claim's metric on its prompt, a term recovers
    (m(term) - m(PRE)) / (m(SFT) - m(PRE)): 1 for SFT by definition. `share` is not taken off. What
    counts is the estimate and not its interval. Where it is less than LEAST, the claim is vacuous:
    neither held nor refuted, since it is about next to nothing.

    Args:
        claim: The claim.
        means: m of PRE, SFT and the terms.

    Returns:
        The larger term; None where a term has no mean or finetuning added nothing.
    """
    terms = dict.fromkeys(
        name for name in (claim.first, claim.second, claim.of) if name not in ("", "PRE")
    )
    if not {"PRE", "SFT", *terms} <= set(means) or means["SFT"] == means["PRE"]:
        return None
    gain = means["SFT"] - means["PRE"]
    return max(
        (Term(name, (means[name] - means["PRE"]) / gain) for name in terms),
        key=lambda term: term.recovery,
    )


@dataclass(frozen=True)
class Published:
    """A difference of published rates, taken as independent: too wide for rates of the same facts."""

    value: float
    low: float
    high: float
    larger: Term | None = None

    def outcome(self, claim: ClaimSpec) -> Outcome:
        """What it says of a claim."""
        if self.larger is not None and self.larger.recovery < LEAST:
            return "vacuous"
        kept = [
            [OPERATORS[op](at, bound) for at in (self.low, self.high)]
            for op, bound in claim.bounds.items()
        ]
        return "holds" if all(map(all, kept)) else "undecided" if all(map(any, kept)) else "fails"


@dataclass(frozen=True)
class Checked:
    """A claim on one prompt."""

    prompt: str
    claim: ClaimSpec
    difference: Estimate
    outcome: Outcome
    paper: Mapping[str, Published]
    """The difference of the paper's top-5 rates, of each of its models."""
    metric: str = "top5"
    """What the difference is of."""
    larger: Term | None = None
    """None where the difference is undefined."""

    @property
    def in_paper(self) -> Mapping[str, Outcome]:
        """Whether each of the paper's models keeps the claim, as far as its sample of facts decides."""
        return {model: one.outcome(self.claim) for model, one in self.paper.items()}


def family(model: str) -> str | None:
    """The paper's model to compare a pair with: itself or one of its family; else None."""
    like = page().tiny.like.get(model, model)
    return like if any(row.model == like for row in published()) else None


@dataclass(frozen=True)
class Agreement:
    """How many claims come out here as in the paper."""

    like: str
    """The paper's model that they are held against."""
    claims: int
    """Of which the paper has that model's figure."""
    decided: int
    """That hold or fail both here and there."""
    agree: int
    """Of these, that came out the same."""


def agreement(claims: Sequence[Checked], like: str) -> Agreement:
    """Count over the claims of which the paper has a figure and that both sides decide."""
    both = [(claim.outcome, claim.in_paper[like]) for claim in claims if like in claim.paper]
    decided = [pair for pair in both if {"holds", "fails"} >= set(pair)]
    return Agreement(like, len(both), len(decided), sum(ours == theirs for ours, theirs in decided))


def checked(
    figure: FigureSpec, known: Page, prompts: Mapping[str, Sequence[PromptColumns]], dataset: str
) -> list[Checked]:
    """All claims of a figure.

    Differences are of recoveries: m(first) - m(second) over m(SFT) - m(PRE), by fact and seed; of
    ranks they are those of the mean log rank, since a mean rank is that of a few facts; the paper
    has none of that.

    Args:
        figure: The figure.
        known: The page that it stands on.
        prompts: Each prompt's columns under each training seed.
        dataset: The shipped data set whose facts they are.
    """
    metric, rows = figure.claimed, known.rows[figure.rows]
    found = []
    for prompt in figure.prompts:
        rates = published_rates(figure, dataset, prompt) if metric == "top5" else {}
        for claim in known.claims_of(figure):
            first, second = (rows.get(name, name) for name in (claim.first, claim.second))
            difference = difference_over(prompts[prompt], metric, first, second, claim.share)
            difference = difference.rounded()
            larger = (
                None
                if difference.undefined
                else larger_term(claim, _means(prompts[prompt], metric, rows))
            )
            outcome = _outcome(difference, claim, larger)
            found.append(
                Checked(prompt, claim, difference, outcome, _in_rates(rates, claim), metric, larger)
            )
    return found


def _means(
    seeds: Sequence[PromptColumns], metric: str, rows: Mapping[str, str]
) -> dict[str, float]:
    """Means over facts and seeds, by the paper's name of a configuration."""
    scores = [prompt.scores(metric) for prompt in seeds]
    named = {"PRE": "PRE", "SFT": "SFT", **rows}
    return {name: float(np.mean([own[graft] for own in scores])) for name, graft in named.items()}


def _outcome(difference: Estimate, claim: ClaimSpec, larger: Term | None) -> Outcome:
    if larger is not None and larger.recovery < LEAST:
        return "vacuous"
    outcomes = [decide(difference, op, bound).outcome for op, bound in claim.bounds.items()]
    return "fails" if "fails" in outcomes else "undecided" if "undecided" in outcomes else "holds"


def published_rates(
    figure: FigureSpec, dataset: str, prompt: str
) -> dict[str, dict[str, PublishedRow]]:
    """The paper's figures of a prompt, by model and the paper's name of the configuration."""
    if figure.published is None:
        return {}
    rows = [
        row for row in published() if (row.experiment, row.dataset) == (figure.published, dataset)
    ]
    name = next(
        (name for name in _SAME.get(prompt, (prompt,)) if any(row.prompt == name for row in rows)),
        None,
    )
    found: dict[str, dict[str, PublishedRow]] = {}
    for row in rows:
        # In the experiment from one direction to both, PRE is not the recipient of the grafts, whose own figures are not given.
        if row.prompt == name and (figure.published, row.named) != ("reversal", "PRE"):
            found.setdefault(row.model, {})[row.named] = row
    return found


def _in_rates(
    rates: Mapping[str, Mapping[str, PublishedRow]], claim: ClaimSpec
) -> dict[str, Published]:
    """The claim's difference among each model's rates."""
    weights = {claim.first: 1.0, claim.second: -claim.share} | (
        {"PRE": claim.share - 1} if claim.share != 1 else {}
    )
    # Where PRE is not given, 0 stands for it, so that a term recovers at most what is told.
    means = {
        model: {"PRE": 0.0} | {name: row.top5 for name, row in rows.items()}
        for model, rows in rates.items()
    }
    return {
        m: _weighted(rows, weights, larger_term(claim, means[m]))
        for m, rows in rates.items()
        if set(weights) <= set(rows)
    }


def _weighted(
    rows: Mapping[str, PublishedRow], weights: Mapping[str, float], larger: Term | None
) -> Published:
    """Weighted sum of rates; interval with one more hit and miss each (Agresti and Caffo, 2000)."""
    moved = {name: (rows[name].top5 * rows[name].n + 1) / (rows[name].n + 2) for name in weights}
    middle = sum(weight * moved[name] for name, weight in weights.items())
    half = _Z * math.sqrt(
        sum(
            weight**2 * moved[name] * (1 - moved[name]) / (rows[name].n + 2)
            for name, weight in weights.items()
        )
    )
    return Published(
        sum(weight * rows[name].top5 for name, weight in weights.items()),
        middle - half,
        middle + half,
        larger,
    )
