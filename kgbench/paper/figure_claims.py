"""The paper's figures from rows: estimates, its claims one by one, and agreement with its models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from kgbench.estimate import Estimate
from kgbench.paper.figure_specs import (
    MEDIAN_RANK,
    Bounded,
    ClaimSpec,
    FigureSpec,
    page,
)
from kgbench.paper.pair_rows import About, Donor, PairRows, columns_of
from kgbench.paper.published import PublishedRow, published
from kgbench.paper.training_seeds import difference_over, mean_over, median_rank_over
from kgbench.stats.scores import PromptColumns
from kgbench.testing.decisions import FEWEST, OPERATORS

LEAST = 0.25
"""Least recovery of the larger term of a claim or criterion that is not vacuous."""

_Z = 1.959964
"""Of a 95 % interval of a normal distribution."""

Outcome = Literal["holds", "fails", "undecided", "vacuous"]


@dataclass(frozen=True)
class ClaimTerm:
    """A configuration that a claim is about, and its recovery."""

    name: str
    recovery: float

    @property
    def is_next_to_nothing(self) -> bool:
        """Whether what is said of it is vacuous."""
        return self.recovery < LEAST


@dataclass(frozen=True)
class PublishedDifference:
    """A difference of published rates, as if independent: too wide for rates of the same facts."""

    value: float
    low: float
    high: float
    larger: ClaimTerm | None = None

    def outcome(self, claim: ClaimSpec) -> Outcome:
        """Outcome of a claim by this difference."""
        return _outcome(claim, (self.low, self.high), self.larger)


@dataclass(frozen=True)
class CheckedClaim:
    """A claim on one prompt."""

    prompt: str
    spec: ClaimSpec
    difference: Estimate
    outcome: Outcome
    paper: Mapping[str, PublishedDifference]
    """Difference of the paper's top-5 rates, by its model."""
    metric: str = "top5"
    """Metric of the difference."""
    larger: ClaimTerm | None = None
    """None where the difference is undefined."""

    @property
    def in_paper(self) -> Mapping[str, Outcome]:
        """Outcome on each of the paper's models, as far as its sample of facts decides."""
        return {model: apart.outcome(self.spec) for model, apart in self.paper.items()}


@dataclass(frozen=True)
class PaperFigure:
    """A figure with all that it is drawn from."""

    name: str
    spec: FigureSpec
    about: About
    prompts: Mapping[str, Sequence[PromptColumns]]
    """Each prompt's columns under each training seed."""
    rows: Mapping[str, str]
    """Our expression of each configuration, by the paper's name."""

    @property
    def trainings(self) -> Sequence[str]:
        """Trainings of its donors."""
        return page().trainings_of([self.spec.evaluation], self.about.scale)

    @property
    def model(self) -> str:
        """The pair."""
        return self.about.model

    @property
    def seeds(self) -> tuple[int, ...]:
        """Its training seeds."""
        return self.about.seeds_of(self.spec.evaluation)

    @property
    def donors(self) -> Mapping[tuple[int, str], Donor]:
        """By training seed and training."""
        return self.about.donors_of(self.spec.evaluation, self.trainings)

    @property
    def content(self) -> tuple[str, tuple[str, ...], str]:
        """Evaluation, prompts and metric; the paper shows some of them in two figures."""
        return self.spec.evaluation, self.spec.prompts, self.spec.metric

    def n(self, prompt: str) -> int:
        """Number of facts."""
        return self.prompts[prompt][0].n

    def estimate(self, prompt: str, graft: str, metric: str | None = None) -> Estimate:
        """Estimate of a configuration over facts and training seeds.

        Args:
            prompt: The prompt.
            graft: The configuration.
            metric: By default the figure's.
        """
        seeds, metric = self.prompts[prompt], metric or self.spec.metric
        if metric == MEDIAN_RANK:
            return median_rank_over(seeds, graft).rounded()
        return mean_over(seeds, metric, graft).rounded()

    def rates(self, prompt: str) -> dict[str, dict[str, PublishedRow]]:
        """The paper's figures of a prompt, see `published_rates`."""
        learned = page().evaluations[self.spec.evaluation].learned(self.about.scale)
        return published_rates(self.spec, page().trainings[learned].dataset, prompt)

    @cached_property
    def claims(self) -> Sequence[CheckedClaim]:
        """All claims about it.

        Differences are of recoveries: m(first) - m(second) over m(SFT) - m(PRE), by fact and seed.
        For ranks m is the mean log rank, since few facts dominate a mean rank; the paper has no log
        ranks.
        """
        metric, rows = self.spec.claimed, self.rows
        claims = []
        for prompt, columns in self.prompts.items():
            rates = self.rates(prompt) if metric == "top5" else {}
            means = means_of(columns, metric, rows)
            for spec in page().claims_of(self.spec):
                first, second = rows.get(spec.first, spec.first), rows.get(spec.second, spec.second)
                difference = difference_over(columns, metric, first, second, spec.share).rounded()
                larger = None if difference.undefined else larger_term(spec, means)
                ends = None
                if difference.numbers is not None and difference.n >= FEWEST:
                    ends = difference.numbers[1:]
                outcome, paper = _outcome(spec, ends, larger), _in_rates(rates, spec)
                claim = CheckedClaim(prompt, spec, difference, outcome, paper, metric, larger)
                claims.append(claim)
        return claims


def figures_from(names: Sequence[str], measured: PairRows) -> list[PaperFigure]:
    """Figures from rows; no model is needed.

    Args:
        names: Their names.
        measured: The rows.

    Raises:
        InputError: An evaluation of these figures has no rows.
        DataError: A configuration is missing.
    """
    evaluations = page().evaluations_of(names)
    columns = {evaluation: columns_of(measured, evaluation) for evaluation in evaluations}
    figures = []
    for name in names:
        spec = page().figures[name]
        prompts = {prompt: columns[spec.evaluation][prompt] for prompt in spec.prompts}
        figures.append(PaperFigure(name, spec, measured.about, prompts, page().rows[spec.rows]))
    return figures


def figures_there(names: Sequence[str], about: About) -> list[str]:
    """Of these figures those with rows under some seed."""
    return [name for name in names if about.seeds_of(page().figures[name].evaluation)]


def lacking(names: Sequence[str], about: About) -> dict[str, tuple[int, ...]]:
    """Missing training seeds of the evaluations behind figures, by evaluation."""
    missing = {}
    for evaluation in page().evaluations_of(names):
        there = about.seeds_of(evaluation)
        seeds = tuple(seed for seed in about.seeds if seed not in there)
        if seeds:
            missing[evaluation] = seeds
    return missing


def distinct(figures: Sequence[PaperFigure]) -> dict[tuple[str, tuple[str, ...], str], PaperFigure]:
    """The first figure of each content."""
    first: dict[tuple[str, tuple[str, ...], str], PaperFigure] = {}
    for figure in figures:
        first.setdefault(figure.content, figure)
    return first


def distinct_claims(figures: Sequence[PaperFigure]) -> list[tuple[str, CheckedClaim]]:
    """Every claim once, with the name of the first figure that it is about."""
    first: dict[tuple[str, str, str, str], tuple[str, CheckedClaim]] = {}
    for figure in figures:
        for claim in figure.claims:
            key = (figure.spec.evaluation, claim.prompt, figure.spec.metric, claim.spec.says)
            first.setdefault(key, (figure.name, claim))
    return list(first.values())


def means_of(
    seeds: Sequence[PromptColumns], metric: str, rows: Mapping[str, str]
) -> dict[str, float]:
    """Means over facts and seeds, by the paper's name of a configuration."""
    scores = [prompt.scores(metric) for prompt in seeds]
    means = {}
    for name, graft in {"PRE": "PRE", "SFT": "SFT", **rows}.items():
        means[name] = float(np.mean([by_graft[graft] for by_graft in scores]))
    return means


def larger_term(claim: Bounded, means: Mapping[str, float]) -> ClaimTerm | None:
    """The term of a claim or criterion that recovers more.

    Terms are the configurations that it names: `first`, `second` and `of`, but PRE. With m the
    mean over facts (and training seeds) of the claim's metric on its prompt, a term recovers
    (m(term) - m(PRE)) / (m(SFT) - m(PRE)): 1 for SFT by definition. `share` is not taken off. The
    estimate counts, not its interval. Below LEAST the claim is vacuous, neither held nor refuted,
    and a criterion is not shown, since it is about next to nothing.

    Args:
        claim: The claim or criterion.
        means: m of PRE, SFT and the terms.

    Returns:
        The larger term; None where a term has no mean or finetuning added nothing.
    """
    terms = [name for name in (claim.first, claim.second, claim.of) if name not in ("", "PRE")]
    if not {"PRE", "SFT", *terms} <= set(means) or means["SFT"] == means["PRE"]:
        return None
    pre, gain = means["PRE"], means["SFT"] - means["PRE"]
    recovered = {name: (means[name] - pre) / gain for name in terms}
    largest = max(terms, key=recovered.__getitem__)
    return ClaimTerm(largest, recovered[largest])


def _outcome(
    claim: ClaimSpec, interval: tuple[float, float] | None, larger: ClaimTerm | None
) -> Outcome:
    """What comes of a claim by the interval of its difference; None where that decides nothing."""
    if larger is not None and larger.is_next_to_nothing:
        return "vacuous"
    if interval is None:
        return "undecided"
    outcome: Outcome = "holds"
    for op, bound in claim.bounds.items():
        kept = [OPERATORS[op](end, bound) for end in interval]
        if not any(kept):
            return "fails"
        if not all(kept):
            outcome = "undecided"
    return outcome


def published_rates(
    figure: FigureSpec, dataset: str, prompt: str
) -> dict[str, dict[str, PublishedRow]]:
    """The paper's figures of a prompt, by model and the paper's name of the configuration."""
    rates: dict[str, dict[str, PublishedRow]] = {}
    wanted = figure.published, dataset, prompt
    for row in published():
        # In the experiment from one direction to both, PRE is not the recipient of the grafts,
        # whose own figures are not given.
        hidden = (row.experiment, row.named) == ("reversal", "PRE")
        if (row.experiment, row.dataset, row.asked) == wanted and not hidden:
            rates.setdefault(row.model, {})[row.named] = row
    return rates


def _in_rates(
    rates: Mapping[str, Mapping[str, PublishedRow]], claim: ClaimSpec
) -> dict[str, PublishedDifference]:
    """The claim's difference among each model's rates.

    Its interval has one more hit and miss in each rate (Agresti and Caffo, 2000).
    """
    weights = {claim.first: 1.0, claim.second: -claim.share}
    if claim.share != 1:
        weights["PRE"] = claim.share - 1
    differences = {}
    for model, rows in rates.items():
        if not set(weights) <= set(rows):
            continue
        value = middle = variance = 0.0
        for name, weight in weights.items():
            row = rows[name]
            moved = (row.top5 * row.n + 1) / (row.n + 2)
            value += weight * row.top5
            middle += weight * moved
            variance += weight**2 * moved * (1 - moved) / (row.n + 2)
        half = _Z * math.sqrt(variance)
        # Where PRE is not given, 0 is taken for it: a term recovers at most what this gives.
        means = {"PRE": 0.0} | {name: row.top5 for name, row in rows.items()}
        larger = larger_term(claim, means)
        differences[model] = PublishedDifference(value, middle - half, middle + half, larger)
    return differences


def family(model: str) -> str | None:
    """The paper's model to compare a pair with: itself or one of its family; else None."""
    like = page().like(model)
    return like if any(row.model == like for row in published()) else None


@dataclass(frozen=True)
class Agreement:
    """Number of claims with the same outcome here and in the paper."""

    like: str
    """The paper's model of comparison."""
    claims: int
    """With a figure of that model."""
    decided: int
    """Of these, held or failed both here and there."""
    agree: int
    """Of these, with the same outcome."""
    premises: int
    """Of those decided, which could hardly fail."""
    agree_beyond: int
    """Of those decided but the premises, with the same outcome."""

    @property
    def beyond(self) -> int:
        """Claims that both sides decide and that could fail."""
        return self.decided - self.premises


def claims_agreement(claims: Sequence[CheckedClaim], like: str) -> Agreement:
    """Agreement with one of the paper's models, over claims that both sides decide."""
    there = [claim for claim in claims if like in claim.paper]
    same: list[tuple[bool, bool]] = []
    for claim in there:
        ours, its = claim.outcome, claim.in_paper[like]
        if {ours, its} <= {"holds", "fails"}:
            same.append((claim.spec.premise, ours == its))
    return Agreement(
        like,
        claims=len(there),
        decided=len(same),
        agree=sum(agrees for _, agrees in same),
        premises=sum(premise for premise, _ in same),
        agree_beyond=sum(agrees and not premise for premise, agrees in same),
    )
