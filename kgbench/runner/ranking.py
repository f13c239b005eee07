"""Rankings of sites: each half of the facts ranks, and the other half is measured.

Ties are broken at random, differently in each half: an order of computation would favour one end
of the model, and a method without information would seem to find a plant there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import nn

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.batch_rows import plain
from kgbench.engine.engine import choosing
from kgbench.engine.site_sets import all_sites, site_costs, site_treatments
from kgbench.errors import InputError
from kgbench.estimate import Estimate, rounded
from kgbench.localizers import (
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    Treatments,
)
from kgbench.localizers._scan import scan
from kgbench.models.pair import ModelPair
from kgbench.progress import Progress
from kgbench.records import Journal, SiteScore
from kgbench.sites import Site, SiteScores
from kgbench.sites.configurations import Top
from kgbench.stats import agreement

__all__ = [
    "RANKING_VERSION",
    "Count",
    "Halves",
    "SiteRanking",
    "counted",
    "now",
    "plain_seconds",
    "score_halves",
    "score_sites",
    "split_facts",
]

RANKING_VERSION = "1"
"""Version of the rules for halves, ties and budgets, part of a record's identity."""

Halves = tuple[frozenset[str], frozenset[str]]
"""Ids of facts."""


def split_facts(prompts: Mapping[str, Sequence[Prompt]], seed: int) -> Halves:
    """Split the facts in two halves, the same for all prompts, by a seeded permutation of ids.

    Raises:
        InputError: There is only one fact.
    """
    facts: set[str] = set()
    for some in prompts.values():
        facts |= {prompt.fact.id for prompt in some}
    ids = sorted(facts)
    if len(ids) < 2:
        raise InputError(
            "a ranking is made from one half of the facts and measured on the other, so it needs "
            f"two or more, not {len(ids)}"
        )
    order = np.random.default_rng(seed).permutation(len(ids)).tolist()
    first = frozenset(ids[i] for i in order[: (len(ids) + 1) // 2])
    return first, frozenset(ids) - first


@dataclass(frozen=True)
class SiteRanking:
    """Scores of both halves, and the sites that they rank highest."""

    pair: ModelPair
    prompts: Mapping[str, Sequence[Prompt]]
    halves: Halves
    scores: tuple[SiteScores, SiteScores]
    """From the prompts of each half."""
    k: int | None = None
    """Sites of the truth, where it is known."""
    seed: int = 0
    """Of the order of equal scores."""

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """All sites, in the order of computation."""
        return all_sites(self.pair, list(chain.from_iterable(self.prompts.values())))

    @cached_property
    def orders(self) -> list[tuple[Site, ...]]:
        """Sites by each half's scores, highest first; sites that a half lacks come last."""
        orders = []
        for half, scores in enumerate(self.scores):
            drawn = np.random.default_rng([self.seed, half]).permutation(len(self.sites)).tolist()
            keys = {
                site: (-scores.get(site, -np.inf), place)
                for site, place in zip(self.sites, drawn, strict=True)
            }
            orders.append(tuple(sorted(self.sites, key=keys.__getitem__)))
        return orders

    @cached_property
    def mean(self) -> SiteScores:
        """Localization map: mean of the halves' scores, or the only one, as stored and compared."""
        means = {}
        for site in self.sites:
            values = [scores[site] for scores in self.scores if site in scores]
            means[site] = rounded(float(np.mean(values)))
        return means

    @property
    def map(self) -> tuple[SiteScore, ...]:
        """The localization map as a record holds it."""
        return tuple(SiteScore(**site._asdict(), score=score) for site, score in self.mean.items())

    @property
    def agreement(self) -> Estimate:
        """Spearman's correlation of the halves' scores, over the sites that both have."""
        first, second = self.scores
        shared = [site for site in self.sites if site in first and site in second]
        return agreement(
            np.array([first[site] for site in shared]), np.array([second[site] for site in shared])
        )

    def treatments(self, top: Top, prompts: Sequence[Prompt]) -> Treatments:
        """Treatments of prompts of one template, each by the ranking of the other half."""
        found: dict[Prompt, Sequence[object]] = {}
        for half, facts in enumerate(self.halves):
            own = [prompt for prompt in prompts if prompt.fact.id in facts]
            sites = self.best(top, prompts[0].name, 1 - half)
            found |= dict(
                zip(own, site_treatments(self.pair, own, sites, top.left_out), strict=True)
            )
        return [found[prompt] for prompt in prompts]  # type: ignore[misc]

    def best(self, top: Top, prompt: str, half: int) -> tuple[Site, ...]:
        """Highest sites of a half, up to a budget on a prompt or as many as the truth has."""
        order = self.orders[half]
        if top.percent is None:
            assert self.k is not None
            return order[: self.k]
        costs = self._costs[prompt]
        spent = np.cumsum([costs.get(site, 0) for site in order])
        # Exact, since the last site of a budget of 100 % must be in it.
        allowed = int(Fraction(str(top.percent)) / 100 * int(spent[-1]))
        return order[: int(np.searchsorted(spent, allowed, side="right"))]

    def n_sites(self, top: Top, prompt: str) -> tuple[int, int]:
        """How many of a prompt's sites each half's ranking puts first."""
        sites = self._costs[prompt].keys()
        first, second = (len(sites & set(self.best(top, prompt, half))) for half in (0, 1))
        return first, second

    @cached_property
    def _costs(self) -> Mapping[str, Mapping[Site, int]]:
        """By prompt: weights × tokens of each site."""
        return {name: site_costs(self.pair, prompts) for name, prompts in self.prompts.items()}


@dataclass
class Count:
    """Forwards so far, and their token rows, padding included."""

    forwards: int = 0
    token_rows: int = 0


@contextmanager
def counted(pair: ModelPair, on_forward: Callable[[Count], None] | None = None) -> Iterator[Count]:
    """Count the forwards of all models of a pair.

    Args:
        pair: The models.
        on_forward: Called after each forward has begun.
    """
    count = Count()

    def begun(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        inputs = (kwargs.get("input_ids"), kwargs.get("inputs_embeds"), *args)
        count.forwards += 1
        for tokens in (given for given in inputs if given is not None):
            count.token_rows += int(tokens.shape[0] * tokens.shape[1])
            break
        if on_forward is not None:
            on_forward(count)

    models = {id(model): model for model in (pair.recipient, *pair.donors.values())}
    handles = [
        model.register_forward_pre_hook(begun, with_kwargs=True) for model in models.values()
    ]
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()


def score_halves(
    method: AbstractLocalizer,
    engine: Engine,
    prompts: Sequence[Prompt],
    halves: Halves,
    journal: Journal,
    progress: Progress | None,
) -> tuple[tuple[SiteScores, SiteScores], dict[str, float]]:
    """Scores of all sites by each half of the facts, and their total cost.

    Timing the plain forward before and after each scoring cancels drift.

    Args:
        method: A method that ranks, or one that intervenes and is scanned.
        engine: Of the pair.
        prompts: All prompts of the job.
        halves: Ids of facts.
        journal: Journal of each half's scores, from which a run resumes.
        progress: Progress callback: forwards; the second half takes about as many as the first.
    """
    names = ("scores-0", "scores-1")
    found: dict[str, dict[str, Any]] = {}

    def measure(half: int) -> dict[str, Any]:
        first = found.get(names[0])
        expected = 0 if first is None else int(first["cost"]["forwards"])

        def report(count: Count) -> None:
            total = max(expected, count.forwards) if expected else 0
            if progress is not None:
                progress(count.forwards, total, f"scoring, half {half + 1} of 2")

        own = [prompt for prompt in prompts if prompt.fact.id in halves[half]]
        before = plain_seconds(engine, own)
        started = now(engine.pair)
        with choosing(engine.executor, engine.budget), counted(engine.pair, report) as count:
            scores = score_sites(method, engine.pair, own)
        cost = {**vars(count), "seconds": now(engine.pair) - started}
        cost["plain_seconds"] = (before + plain_seconds(engine, own)) / 2
        return {"scores": [[*site, score] for site, score in scores.items()], "cost": cost}

    for name in journal.divide(names, lambda name: journal.kept(name) is not None):
        found[name] = measure(names.index(name))
        journal.keep(name, found[name])
    scores: list[SiteScores] = []
    total: dict[str, float] = {}
    for half, name in enumerate(names):
        # Where another process has ended the run meanwhile, its scores are gone.
        known = found.get(name) or journal.kept(name) or measure(half)
        scores.append({Site(*row[:3]): float(row[3]) for row in known["scores"]})
        for key, value in known["cost"].items():
            total[key] = total.get(key, 0.0) + value
    return (scores[0], scores[1]), total


def score_sites(
    method: AbstractLocalizer, pair: ModelPair, prompts: Sequence[Prompt]
) -> dict[Site, float]:
    """A method's score of every site, checked.

    Raises:
        InputError: The method leaves out a site, or a score is no finite number.
        NotApplicableError: The method cannot score sites.
    """
    if isinstance(method, ScoringLocalizer):
        found: Mapping[Site, float] = method.scores(pair, prompts)
    else:
        assert isinstance(method, InterventionLocalizer)
        found = scan(method, pair, prompts)
    if not isinstance(found, Mapping):
        raise InputError(
            f"localizer {method.name!r}: scores must give a number for each site as a mapping, "
            f"not {type(found).__name__}"
        )
    sites = all_sites(pair, prompts)
    for site in sites:
        if site not in found or not math.isfinite(found[site]):
            what = "has no score" if site not in found else f"has the score {found[site]}"
            raise InputError(
                f"localizer {method.name!r}: {tuple(site)} {what}; every site needs a finite number"
            )
    return {site: float(found[site]) for site in sites}


def plain_seconds(engine: Engine, prompts: Sequence[Prompt]) -> float:
    """Seconds of one plain forward of the recipient over some prompts."""
    plan = engine.plan(prompts, ["PRE"])
    started = now(engine.pair)
    with torch.inference_mode():
        plain(engine.wiring, plan, engine.budget)
    return now(engine.pair) - started


def now(pair: ModelPair) -> float:
    """Seconds on the clock once the device has done what it was given."""
    if pair.device.type == "cuda":
        torch.cuda.synchronize(pair.device)
    return time.perf_counter()
