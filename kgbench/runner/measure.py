"""Measuring: fit the localizer, rank sites, then read prompts under all configurations."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import chain, product
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from kgbench.data import Prompt
from kgbench.engine import Answers, Engine, Plan
from kgbench.engine.batch_rows import plain
from kgbench.engine.edits import Treatment
from kgbench.engine.engine import choosing
from kgbench.engine.generation import write_texts
from kgbench.engine.site_sets import all_sites, graft_sites, site_costs, site_treatments
from kgbench.engine.treatment import graft_treatments, misfit
from kgbench.errors import InputError, NotApplicableError
from kgbench.estimate import Estimate, rounded
from kgbench.localizers import (
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    Treatments,
)
from kgbench.localizers._base import asked
from kgbench.localizers._parts import Values, keeping
from kgbench.localizers._scan import scan
from kgbench.metrics import Mixed, of_answers, score_labels
from kgbench.models.pair import ModelPair
from kgbench.progress import Progress
from kgbench.readouts import TextReadout
from kgbench.records import Journal, SiteScore
from kgbench.runner.job import Halves, Job
from kgbench.sites import Graft, Site, SiteScores, parse_graft
from kgbench.sites.configurations import Top
from kgbench.stats import agreement

GROUP = 64
"""Checkpoint interval, in prompts."""

T = TypeVar("T")


Absent = Mapping[str, Mapping[str, str]]
"""Reason why a method cannot express a configuration, by prompt and configuration."""


@runtime_checkable
class Elsewhere(Protocol):
    """A localizer that answered in another process."""

    def spent(self, prompts: Sequence[Prompt]) -> Mapping[str, float]:
        """What that cost: forwards, token rows and seconds."""


@dataclass(frozen=True)
class Measurement:
    """A job whose localizer is fitted and whose sites are ranked."""

    job: Job
    method: AbstractLocalizer
    """The job's localizer, fitted."""
    absent: Absent = field(default_factory=dict)
    ranking: SiteRanking | None = None
    scoring: Mapping[str, float] | None = None
    """Cost of the ranking."""

    def labels(self, prompt: str) -> list[str]:
        """Configurations that are run on a prompt."""
        return [
            label for label in self.job.configurations if label not in self.absent.get(prompt, {})
        ]

    def plan(self, prompts: Sequence[Prompt]) -> tuple[Plan, list[int]]:
        """Plan of prompts of one template, with the index in `labels` of each configuration."""
        treatments: list[Treatments] = []
        indices: list[int] = []
        for index, label in enumerate(self.labels(prompts[0].name)):
            draws = self.treatments(label, prompts)
            treatments += draws
            indices += [index] * len(draws)
        return self.job.engine.plan_treatments(prompts, treatments), indices

    def treatments(self, label: str, prompts: Sequence[Prompt]) -> list[Treatments]:
        """Treatments of a configuration, one per draw of a random method."""
        job = self.job
        if label in job.tops:
            assert self.ranking is not None
            return [self.ranking.treatments(job.tops[label], prompts)]
        graft = job.grafts[label]
        if isinstance(graft, Graft) and isinstance(self.method, InterventionLocalizer):
            return [treated(draw, job.pair, prompts, graft) for draw in self.method.variants()]
        return [graft_treatments(job.pair, prompts, graft)]

    @property
    def at_once(self) -> int:
        """Prompts per plan: a group, or fewer where averages over draws fill the logit budget."""
        if not isinstance(self.method, InterventionLocalizer) or len(self.method.variants()) == 1:
            return GROUP
        logits = len(self.job.configurations) * int(self.job.pair.recipient.config.vocab_size)
        return max(1, min(GROUP, self.job.engine.budget.logits // logits))


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in order, so many at a time."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def treated(
    method: InterventionLocalizer, pair: ModelPair, prompts: Sequence[Prompt], graft: Graft
) -> Treatments:
    """Ask a method for the treatments of some prompts, and check them.

    Raises:
        InputError: It gives something else than a treatment per token of each prompt.
        NotApplicableError: It cannot express the graft.
    """
    with pair.lock:
        treatments = method.treat(pair, asked(method, pair, prompts), graft)

    def is_row(row: object, prompt: Prompt) -> bool:
        """Whether it is a treatment per token."""
        if not isinstance(row, Sequence) or len(row) != len(pair.encoded(prompt).ids):
            return False
        return all(isinstance(treatment, Treatment) for treatment in row)

    listed = isinstance(treatments, Sequence) and len(treatments) == len(prompts)
    if not listed or not all(map(is_row, treatments, prompts)):
        raise InputError(
            f"localizer {method.name!r}: treat must give one treatment per token of each prompt, "
            "as lists of Treatment"
        )
    for row, prompt in zip(treatments, prompts, strict=True) if is_theirs(method) else ():
        if wrong := next(filter(None, (misfit(pair, each, len(row)) for each in set(row))), None):
            raise InputError(
                f"localizer {method.name!r}: treat gave what the models cannot run with: {wrong} "
                f"(in fact {prompt.fact.id} under {graft})"
            )
    return treatments


def is_theirs(localizer: AbstractLocalizer) -> bool:
    """Whether a localizer's code is a third party's, and runs in this process."""
    return not type(localizer).__module__.startswith("kgbench.")


def run_group(
    measurement: Measurement, prompts: Sequence[Prompt], plain_each: float | None
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Measure prompts of one template under all configurations: per-fact rows and cost.

    Args:
        measurement: The job with its method.
        prompts: Prompts of one template.
        plain_each: Seconds of the plain forward per prompt of the template; timed where None.
    """
    job = measurement.job
    before = plain_seconds(job.engine, prompts) if plain_each is None else 0.0
    started = now(job.pair)
    parts, cost = [], {"forwards": 0.0, "token_rows": 0.0}

    def run(plan: Plan) -> Iterator[Answers]:
        for answers in job.engine.run(plan):
            cost["forwards"] += 1
            cost["token_rows"] += answers.token_rows
            yield plan.numbered(answers)

    for chunk in chunks(prompts, measurement.at_once):
        if isinstance(job.readout, TextReadout):
            parts.append(shares(measurement, chunk, job.readout, cost))
            continue
        plan, labels = measurement.plan(chunk)
        parts.append(scored(measurement, chunk, mixed(run(plan), labels)))
    seconds = now(job.pair) - started
    if plain_each is None:
        # Before and after, so that a drift of the machine cancels.
        plain_each = (before + plain_seconds(job.engine, prompts)) / 2 / len(prompts)
    columns = {}
    for name in parts[0]:
        columns[name] = np.concatenate([part[name] for part in parts])
    return columns, {**cost, "seconds": seconds, "plain_seconds": plain_each * len(prompts)}


def scored(
    measurement: Measurement, prompts: Sequence[Prompt], answers: Iterable[Mixed]
) -> dict[str, np.ndarray]:
    """Per-fact rows of the answers to prompts of one template."""
    encoded = list(map(measurement.job.pair.encoded, prompts))
    names = measurement.labels(prompts[0].name)
    reads = list(chain.from_iterable(each.answer for each in encoded))
    owners = np.repeat(np.arange(len(encoded)), [len(each.answer) for each in encoded])

    def row_text(label: int, read: int) -> str:
        prompt = prompts[owners[read]]
        return f"configuration {names[label]}, fact {prompt.fact.id}, prompt {prompt.name!r}"

    columns = {
        "prompt": np.array([p.label for p in prompts], dtype=object),
        "fact": np.array([p.fact.id for p in prompts], dtype=object),
        "position": np.array([each.answer[0].token for each in encoded]),
        "target": np.array([each.answer[0].right[0] for each in encoded]),
    }
    scores = of_answers(score_labels(answers, reads, len(names), row_text), owners)
    return {
        "graft": np.repeat(np.array(names, dtype=object), len(prompts)),
        **{name: np.tile(values, len(names)) for name, values in columns.items()},
        **{name: values.ravel() for name, values in scores.items()},
    }


def shares(
    measurement: Measurement,
    prompts: Sequence[Prompt],
    readout: TextReadout,
    cost: dict[str, float],
) -> dict[str, np.ndarray]:
    """Per-fact rows of the texts after prompts of one template.

    Args:
        measurement: The job with its method.
        prompts: The prompts.
        readout: What the texts are to have.
        cost: Forwards and token rows, which are added.

    Raises:
        InputError: The method does something else than graft weights.
    """
    job = measurement.job
    columns: dict[str, list[object]] = {
        name: [] for name in ("prompt", "fact", "graft", "position", "prob")
    }
    for label in measurement.labels(prompts[0].name):
        graft = job.grafts[label]
        plain_graft = graft_treatments(job.pair, prompts, graft)
        for draw in measurement.treatments(label, prompts):
            if list(map(tuple, draw)) != list(map(tuple, plain_graft)):
                raise InputError(
                    f"localizer {measurement.method.name!r} does not just graft weights, and readout "
                    f"{readout.name!r} writes texts under grafts of weights alone: choose another "
                    "--readout, or dynamic_graft"
                )
        written: list[list[str]] = [[] for _ in prompts]
        for part in write_texts(job.pair, graft, prompts, readout, job.engine.budget):
            cost["forwards"] += part.forwards
            cost["token_rows"] += part.token_rows
            for number, text in zip(part.prompts, part.texts, strict=True):
                written[number].append(text)
        columns["prompt"] += [prompt.label for prompt in prompts]
        columns["fact"] += [prompt.fact.id for prompt in prompts]
        columns["graft"] += [label] * len(prompts)
        columns["position"] += [len(job.pair.encoded(prompt).ids) - 1 for prompt in prompts]
        columns["prob"] += map(readout.judged, prompts, written)
    return {name: np.array(values) for name, values in columns.items()}


def mixed(chunks: Iterable[Answers], labels: Sequence[int]) -> Iterator[Mixed]:
    """Average probabilities of configurations with the same label; logits are their logarithms.

    Only averages that still miss a configuration are held in memory.

    Args:
        chunks: Answers with one readout per prompt, or numbered over all prompts.
        labels: Label of each configuration.
    """
    sizes = {label: labels.count(label) for label in labels}
    if max(sizes.values()) == 1:
        of = torch.tensor(labels)
        yield from ((chunk.prompt, of[chunk.configuration], chunk.logits) for chunk in chunks)
        return
    sums: dict[tuple[int, int], tuple[int, Tensor]] = {}
    for chunk in chunks:
        done: list[tuple[int, int, Tensor]] = []
        for prompt, configuration, logits in zip(
            chunk.prompt.tolist(), chunk.configuration.tolist(), chunk.logits, strict=True
        ):
            label = labels[configuration]
            exact = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
            number, total = sums.pop((prompt, label), (0, None))
            shares = exact.log_softmax(0)
            total, number = shares if total is None else torch.logaddexp(total, shares), number + 1
            if number < sizes[label]:
                sums[prompt, label] = (number, total)
            else:
                done.append((prompt, label, total - math.log(number)))
        if done:
            prompts, averages, logits_of = zip(*done, strict=True)
            yield torch.tensor(prompts), torch.tensor(averages), torch.stack(logits_of)


def ready(job: Job, journal: Journal, progress: Progress | None) -> Measurement:
    """Fit a job's localizer, and rank its sites where the job needs that.

    Args:
        job: The job.
        journal: Journal of scores, from which a run resumes.
        progress: Progress callback.
    """
    measurement = expressed(job)
    # A first forward, whose start-up costs are no part of the method's.
    for _ in job.engine.run(job.engine.plan(job.all_prompts[:2], ["PRE", "SFT", "ALL", "LT"])):
        pass
    if not job.ranks:
        return measurement
    try:
        scores, cost = _score_halves(measurement, journal, progress)
    except NotApplicableError as error:
        tops = dict.fromkeys(job.tops, str(error))
        absent = {name: {**measurement.absent.get(name, {}), **tops} for name in job.prompts}
        return replace(measurement, absent=absent)
    k = None
    if job.truth is not None:
        k = len(graft_sites(job.pair, job.all_prompts, parse_graft(job.truth.plant)))
    ranking = SiteRanking(job.pair, job.prompts, job.halves, scores, k, job.seed)
    return replace(measurement, ranking=ranking, scoring=cost)


def drawn(method: AbstractLocalizer, fitted: object) -> Sequence[InterventionLocalizer]:
    """The draws of a method that was fitted, checked.

    Raises:
        InputError: It gave no intervention, or no draws.
    """
    draws = fitted.variants() if isinstance(fitted, InterventionLocalizer) else None
    listed = isinstance(draws, Sequence) and len(draws) > 0
    if not listed or not all(isinstance(draw, InterventionLocalizer) for draw in draws or ()):
        raise InputError(
            f"localizer {method.name!r}: fitted must give an intervention, and variants a list of "
            "such, never empty"
        )
    return draws or ()


def expressed(job: Job) -> Measurement:
    """Fit a job's localizer, and find the configurations that it cannot express."""
    method: AbstractLocalizer = job.localizer
    if not isinstance(method, InterventionLocalizer):
        return Measurement(job, method)
    method = method.fitted(job.pair, asked(method, job.pair, job.all_prompts))
    draws = drawn(job.localizer, method)
    absent: dict[str, dict[str, str]] = {name: {} for name in job.prompts}
    for (label, graft), (name, prompts) in product(job.grafts.items(), job.prompts.items()):
        if not isinstance(graft, Graft):
            continue
        try:
            for part in chunks(prompts, GROUP):
                treated(draws[0], job.pair, part, graft)
        except NotApplicableError as error:
            absent[name][label] = str(error)
    return Measurement(job, method, absent)


# ------------------------------------------------------------------------------------ ranking
# Each half of the facts ranks, and the other half is measured. Ties are broken at random,
# differently in each half: an order of computation would favour one end of the model, and a method
# without information would seem to find a plant there. A tie is what is equal within rounding: many
# sites have no effect at all, of which another processor makes other noise, and another order.

ROUNDING = 2.0**-20
"""Share of the highest score, by amount, below which scores are equal: rounding and no effect."""


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
            largest = max(map(abs, scores.values()), default=0.0)
            # A power of two, so that the largest score's own rounding moves no other.
            step = 2.0 ** np.floor(np.log2(ROUNDING * largest)) if largest else 1.0
            keys = {}
            for site, place in zip(self.sites, drawn, strict=True):
                keys[site] = (-np.round(scores.get(site, -np.inf) / step), place)
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
        rows: dict[Prompt, Sequence[object]] = {}
        for half, facts in enumerate(self.halves):
            half_prompts = [prompt for prompt in prompts if prompt.fact.id in facts]
            sites = self.best(top, prompts[0].name, 1 - half)
            rows |= dict(
                zip(
                    half_prompts,
                    site_treatments(self.pair, half_prompts, sites, top.left_out),
                    strict=True,
                )
            )
        return [rows[prompt] for prompt in prompts]  # type: ignore[misc]

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
        tokens = next(given for given in inputs if given is not None)
        count.forwards += 1
        count.token_rows += tokens.shape[:2].numel()
        if on_forward is not None:
            on_forward(count)

    models = {id(model): model for model in (pair.recipient, *pair.donors.values())}
    with pair.lock, ExitStack() as hooks:  # another thread's forwards are not counted
        for model in models.values():
            hooks.callback(model.register_forward_pre_hook(begun, with_kwargs=True).remove)
        yield count


def _score_halves(
    measurement: Measurement, journal: Journal, progress: Progress | None
) -> tuple[tuple[SiteScores, SiteScores], dict[str, float]]:
    """Scores of all sites by each half of the facts, and their total cost.

    Timing the plain forward before and after each scoring cancels drift. A run that resumes has the
    cost of the parts that were kept as they were computed.

    Args:
        measurement: The job with its method, which ranks, or intervenes and is scanned.
        journal: Journal of each half's scores, and of its parts, from which a run resumes.
        progress: Progress callback: forwards; the second half takes about as many as the first.
    """
    job, engine = measurement.job, measurement.job.engine
    names = ("scores-0", "scores-1")
    by_half: dict[str, dict[str, Any]] = {}

    def measure(half: int) -> dict[str, Any]:
        first = by_half.get(names[0])
        expected = 0 if first is None else int(first["cost"]["forwards"])

        def report(count: Count) -> None:
            total = max(expected, count.forwards) if expected else 0
            if progress is not None:
                progress(count.forwards, total, f"scoring, half {half + 1} of 2")

        # Those that are to show the behaviour: controls are measured only.
        half_prompts = []
        for prompt in job.all_prompts:
            if prompt.fact.id in job.halves[half] and prompt.group == "on":
                half_prompts.append(prompt)
        before = plain_seconds(engine, half_prompts)
        started = now(engine.pair)
        parts = (f"{names[half]}-{number}" for number in itertools.count())

        def keep(part: Callable[[], Values]) -> Values:
            nonlocal started
            name = next(parts)
            if (known := journal.kept(name)) is None:
                values = part()
                spent = {**vars(count), "seconds": now(engine.pair) - started}
                journal.keep(name, {"values": values.tolist(), "spent": spent})
                return values
            started = now(engine.pair) - known["spent"].pop("seconds")
            vars(count).update(known["spent"])
            return np.array(known["values"])

        chosen = choosing(engine.executor, engine.budget)
        with chosen, keeping(keep), counted(engine.pair, report) as count:
            scores = score_sites(measurement.method, engine.pair, half_prompts)
        cost = {**vars(count), "seconds": now(engine.pair) - started}
        if isinstance(measurement.method, Elsewhere):
            for key, value in measurement.method.spent(half_prompts).items():
                cost[key] += value
        cost["plain_seconds"] = (before + plain_seconds(engine, half_prompts)) / 2
        return {"scores": [[*site, score] for site, score in scores.items()], "cost": cost}

    for name in journal.divide(names, lambda name: journal.kept(name) is not None):
        by_half[name] = measure(names.index(name))
        journal.keep(name, by_half[name])
    scores: list[SiteScores] = []
    total: dict[str, float] = {}
    for half, name in enumerate(names):
        # Where another process has ended the run meanwhile, its scores are gone.
        stored = by_half.get(name) or journal.kept(name) or measure(half)
        scores.append({Site(*row[:3]): float(row[3]) for row in stored["scores"]})
        for key, value in stored["cost"].items():
            total[key] = total.get(key, 0.0) + value
    return (scores[0], scores[1]), total


def score_sites(
    method: AbstractLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
) -> dict[Site, float]:
    """A method's score of every site, checked.

    Args:
        method: One that ranks, or intervenes and is scanned.
        pair: The models.
        prompts: The prompts.

    Raises:
        InputError: The method leaves out a site, or a score is no finite number.
        NotApplicableError: The method cannot score sites.
    """
    with pair.lock:
        if isinstance(method, ScoringLocalizer):
            scores: Mapping[Site, float] = method.scores(pair, prompts)
        else:
            assert isinstance(method, InterventionLocalizer)
            scores = scan(method, pair, prompts)
    if not isinstance(scores, Mapping):
        raise InputError(
            f"localizer {method.name!r}: scores must give a number for each site as a mapping, "
            f"not {type(scores).__name__}"
        )
    sites = all_sites(pair, prompts)
    for site in sites:
        if site not in scores or not math.isfinite(scores[site]):
            what = "has no score" if site not in scores else f"has the score {scores[site]}"
            raise InputError(
                f"localizer {method.name!r}: {tuple(site)} {what}; every site needs a finite number"
            )
    return {site: float(scores[site]) for site in sites}


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
