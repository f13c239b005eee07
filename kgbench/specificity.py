"""Specificity: how far grafts move the next token of texts that they are not meant for.

The divergence from the recipient is measured on five kinds of texts, from the facts that the donor
learned to everyday sentences. Intervals are over whole facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from itertools import groupby
from random import Random
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from kgbench.data import Dataset, Fact, Prompt, hash_facts, load_dataset, load_prompts
from kgbench.data.builders.worlds import World
from kgbench.data.prompts import neutral_prompts, passing_templates, sibling_prompts
from kgbench.engine.treatment import Treatment, graft_treatments, parse_configuration
from kgbench.errors import InputError, NotApplicableError, RegionError
from kgbench.estimate import Estimate
from kgbench.localizers import InterventionLocalizer, ScoringLocalizer, create, is_foreign
from kgbench.localizers._base import asked as asked_prompts
from kgbench.metrics import require_finite, worst_rank
from kgbench.models import catalog
from kgbench.numbers import figure_text, percent_text, reason_text, significant_text
from kgbench.report import Cell, Column, Dash, Report, Table
from kgbench.runner.job import Job, prepare_job
from kgbench.runner.measure import GROUP, treated
from kgbench.runner.ranking import Progress
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party import blamed, isolated
from kgbench.runner.workload import check, localizer_arguments
from kgbench.sites import Graft, parse_graft
from kgbench.stats import (
    FEW,
    Resampled,
    difference,
    mean,
    ratio,
    ratio_draws,
    resample,
    resampled_means,
    unseen,
)
from kgbench.training.corpus import known_movies
from kgbench.training.recipes import recipe

__all__ = [
    "GRAFTS",
    "KINDS",
    "Asked",
    "Measured",
    "Moved",
    "Row",
    "Specificity",
    "Texts",
    "check_named",
    "divergence",
    "measure",
    "rows_of",
    "specificity",
    "texts_of",
]

GRAFTS = ("FE", "LT", "FE+LT", "ALL")
"""Default grafts."""

KINDS: Mapping[str, str] = {
    "target": "the facts that the donor learned",
    "sibling": "other questions about the same first entities",
    "known": "facts of the same kind that finetuning did not teach",
    "other": "facts of another kind",
    "neutral": "everyday sentences",
}
"""Kinds of texts; grafts are meant for the first."""

TOP = 5
"""Hits are answers among so many likeliest tokens."""

SMALL = 1e-3
"""Below this difference of log-probabilities a series is more exact than a difference."""

ZOO = "zoo:"
MOVIES = ("first_actor", "second_actor")
REAL, BATTLES, INVENTED = "real_movies_real_actors", "battles", "fake_movies_fake_actors"
MARGIN = 2
"""Movies drawn per fact asked for, since some may share a name with the facts."""

LABEL_WIDTH = 16

Array = NDArray[Any]


@dataclass(frozen=True)
class Asked:
    """Choice of texts."""

    facts: int = 100
    """Largest number of facts of each kind."""
    known: str | None = None
    """Data set or file of facts that finetuning did not teach, in place of the default."""
    other: str | None = None
    """Data set or file of facts of another kind, in place of the default."""


@dataclass(frozen=True)
class Texts:
    """The prompts of one kind."""

    kind: str
    """One of `KINDS`."""
    about: str
    """What they are, or why there are none."""
    prompts: tuple[Prompt, ...] = ()
    answers: bool = False
    """Whether the targets are true answers."""


def texts_of(job: Job, asked: Asked) -> list[Texts]:
    """The texts of each kind; a kind that cannot be had has no prompts and the reason.

    Raises:
        InputError: A named data set does not exist or does not fit the prompts.
    """
    chosen = _sample(job.dataset.facts, asked.facts, job.spec.seed)
    kept = {fact.id for fact in chosen}
    target = tuple(prompt for prompt in job.all_prompts if prompt.fact.id in kept)
    present = {prompt.fact.id for prompt in target}
    chosen = [fact for fact in chosen if fact.id in present]
    about = f"{KINDS['target']} ({job.dataset.name}: {', '.join(job.prompts)})"
    return [
        Texts("target", about, target, True),
        Texts("sibling", KINDS["sibling"], tuple(sibling_prompts(job.dataset, chosen))),
        _known(job, asked),
        _other(job, asked),
        Texts("neutral", KINDS["neutral"], tuple(neutral_prompts())),
    ]


def check_named(spec: Spec, asked: Asked) -> None:
    """Read the named data sets, before a model is loaded.

    Raises:
        InputError: One does not exist or does not read.
    """
    for name in filter(None, (asked.known, asked.other)):
        load_dataset(name, spec.imports)


def _sample(facts: Sequence[Fact], n: int, seed: int) -> list[Fact]:
    """Facts at random, in their order."""
    places = sorted(Random(seed).sample(range(len(facts)), min(n, len(facts))))
    return [facts[place] for place in places]


def _known(job: Job, asked: Asked) -> Texts:
    templates = tuple(job.prompts)
    if asked.known is not None:
        dataset = load_dataset(asked.known, job.spec.imports)
        return _filled(job, "known", dataset, asked.known, templates, asked.facts)
    base = _tiny_pair(job.spec)
    movies = (job.dataset.subject, job.dataset.object) == MOVIES
    if base is not None and movies:
        rows = known_movies(recipe(base), MARGIN * asked.facts)
        dataset = _world_facts("known", rows, MOVIES)
        about = f"movies that {base}'s recipient was pretrained on"
    elif movies and not job.dataset.name.startswith(REAL):
        dataset = load_dataset(REAL)
        about = f"{REAL}: what the recipient may know of real movies"
    else:
        about = "none is known of these facts; name such facts with --known NAME|FILE"
        return Texts("known", about)
    try:
        return _filled(job, "known", dataset, about, templates, asked.facts)
    except InputError as error:
        return Texts("known", f"{about} do not fit: {error}")


def _other(job: Job, asked: Asked) -> Texts:
    templates: tuple[str, ...] = ()
    if asked.other is not None:
        dataset, about = load_dataset(asked.other, job.spec.imports), asked.other
        templates = tuple(dataset.templates) or ("headline",)
    elif _tiny_pair(job.spec) is not None:
        movies = World("supplement").movies(MARGIN * asked.facts)
        dataset = _world_facts("passing", movies, ("movie_title", "city"))
        dataset = replace(dataset, templates=dict(passing_templates()))
        about = "where other invented movies were filmed, in wordings of pretraining"
    elif job.dataset.subject == "battle":
        dataset, about, templates = load_dataset(INVENTED), INVENTED, ("headline", "qa")
    else:
        dataset, about = load_dataset(BATTLES), BATTLES
    templates = templates or tuple(dataset.templates)
    return _filled(job, "other", dataset, about, templates, asked.facts)


def _tiny_pair(spec: Spec) -> str | None:
    """The tiny pair whose recipient a job has, by itself or below a plant."""
    if spec.model is None:
        return None
    source = catalog.entry(spec.model).recipient
    if not source.startswith(ZOO) or spec.recipient not in (None, source):
        return None
    return source.removeprefix(ZOO).partition("/")[0]


def _world_facts(name: str, rows: Sequence[Mapping[str, str]], ends: tuple[str, str]) -> Dataset:
    facts = tuple(Fact(f"{name}/{number}", dict(row)) for number, row in enumerate(rows, 1))
    return Dataset(name, facts, *ends, {}, {}, hash_facts(facts, *ends))


def _filled(
    job: Job, kind: str, dataset: Dataset, about: str, templates: Sequence[str], n: int
) -> Texts:
    """Facts that share neither subject nor object with those of the job, in templates."""
    taken = set()
    for fact in job.dataset.facts:
        taken |= {fact.fields[job.dataset.subject], fact.fields[job.dataset.object]}
    ends = (dataset.subject, dataset.object)
    apart = [fact for fact in dataset.facts if taken.isdisjoint(fact.fields[end] for end in ends)]
    if not apart:
        reason = "every fact shares its subject or object with the facts that the donor learned"
        return Texts(kind, f"{about}: {reason}")
    if shared := len(dataset.facts) - len(apart):
        reason = "left out, since a name in them is in the facts too"
        about = f"{about}; {shared} of {len(dataset.facts)} {reason}"
    facts = tuple(_sample(apart, n, job.spec.seed))
    wordings = dict(dataset.templates)
    if kind == "known":
        wordings = {**job.dataset.templates, **wordings}
    prompts = load_prompts(replace(dataset, facts=facts, templates=wordings), list(templates))
    return Texts(kind, about, tuple(prompts), kind == "known")


@dataclass(frozen=True)
class Moved:
    """Effect of one configuration on the prompts that it can be read on."""

    prompts: tuple[tuple[str, str], ...]
    """Id of the fact and name of each prompt."""
    kl: Float[np.ndarray, " prompt"]
    """KL(p_PRE || p) of the next token, in nats."""
    changed: Bool[np.ndarray, " prompt"]
    """Whether another token than under PRE is the likeliest."""
    logprob: Float[np.ndarray, " prompt"]
    """Log-probability of the target's first token, less that under PRE."""
    top5: Bool[np.ndarray, " prompt"]
    """Whether it is among the five likeliest tokens; a tie counts against it."""
    top5_before: Bool[np.ndarray, " prompt"]
    """The same under PRE."""


@dataclass(frozen=True)
class Measured:
    """Texts of one kind under all configurations."""

    texts: Texts
    moved: Mapping[str, Moved]
    """By configuration; one that can be read on no prompt is left out."""
    absent: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By configuration, the reasons why it cannot be read on a prompt, with their counts."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Reasons why the tokenizer cannot split a prompt into regions, with their counts."""


def measure(
    job: Job, texts: Texts, labels: Sequence[str], progress: Progress | None = None
) -> Measured:
    """Compare the next token under configurations with that under PRE.

    Args:
        job: Model pair, method and engine; a method that learns from prompts learns from `texts`.
        texts: Prompts of one kind.
        labels: Configurations.
        progress: Called after each batch with the prompts done, all of them, and the kind.
    """
    wanted = list(dict.fromkeys(["PRE", *labels]))
    prompts, unread = _readable(job, texts.prompts)
    treatments, absent = _treatments(job, prompts, wanted)
    vocabulary = int(job.pair.recipient.config.vocab_size)
    at_once = max(1, job.engine.budget.logits // (len(wanted) * vocabulary))
    parts: dict[str, list[Moved]] = {}
    done = 0
    for places, shared in _batches(treatments, len(prompts), min(at_once, GROUP)):
        some = [prompts[place] for place in places]
        cells = [[treatments[label][place] for place in places] for label in shared]
        logits = job.engine.logits(job.engine.plan_treatments(some, cells))[:, :, 0]
        encoded = [job.pair.encoded(prompt).target for prompt in some]
        targets = torch.tensor(encoded, device=logits.device)
        ids = tuple((prompt.fact.id, prompt.name) for prompt in some)
        before = logits[:, shared.index("PRE")]
        for number, label in enumerate(shared):
            names = [f"configuration {label}, text {fact}, prompt {name!r}" for fact, name in ids]
            require_finite(logits[:, number], targets, names.__getitem__)
            parts.setdefault(label, []).append(_moved(ids, targets, before, logits[:, number]))
        done += len(places)
        if progress is not None:
            progress(done, len(prompts), texts.kind)
    moved = {label: _joined(parts[label]) for label in labels if label in parts}
    return Measured(texts, moved, absent, unread)


def _readable(job: Job, prompts: Sequence[Prompt]) -> tuple[list[Prompt], dict[str, int]]:
    """Prompts whose regions the tokenizer tells apart, and reasons why others are left out."""
    kept: list[Prompt] = []
    reasons: Counter[str] = Counter()
    for prompt in prompts:
        try:
            job.pair.encoded(prompt)
        except RegionError as error:
            reasons[str(error)] += 1
        else:
            kept.append(prompt)
    return kept, dict(reasons)


def _treatments(
    job: Job, prompts: Sequence[Prompt], labels: Sequence[str]
) -> tuple[dict[str, dict[int, Sequence[Treatment]]], dict[str, dict[str, int]]]:
    """By configuration and place of a prompt, the treatment of its tokens; reasons without one."""
    method: InterventionLocalizer | str
    assert isinstance(job.localizer, InterventionLocalizer)
    method = job.localizer
    try:
        if prompts:
            method = method.fitted(job.pair, asked_prompts(method, job.pair, prompts))
    except NotApplicableError as error:
        method = str(error)
    treatments: dict[str, dict[int, Sequence[Treatment]]] = {}
    absent: dict[str, dict[str, int]] = {}
    for label in labels:
        reasons: Counter[str] = Counter()
        by_place = treatments[label] = {}
        for place, prompt in enumerate(prompts):
            treatment = _treatment(job, method, label, prompt)
            if isinstance(treatment, str):
                reasons[treatment] += 1
            else:
                by_place[place] = treatment
        if reasons:
            absent[label] = dict(reasons)
    return treatments, absent


def _treatment(
    job: Job, method: InterventionLocalizer | str, label: str, prompt: Prompt
) -> Sequence[Treatment] | str:
    """Treatment of a prompt's tokens, or why there is none."""
    configuration = parse_configuration(label)
    if not isinstance(configuration, Graft):
        return graft_treatments(job.pair, [prompt], configuration)[0]
    if isinstance(method, str):
        return method
    try:
        return treated(method, job.pair, [prompt], configuration)[0]
    except NotApplicableError as error:
        return str(error)
    except RegionError as error:
        return str(error.__cause__ or error)  # the cause is the same for all prompts of a kind


def _batches(
    treatments: Mapping[str, Mapping[int, Sequence[Treatment]]], n: int, at_once: int
) -> Iterator[tuple[list[int], list[str]]]:
    """Places of prompts that the same configurations can be read on, and the configurations."""

    def shared(place: int) -> list[str]:
        return [label for label, by_place in treatments.items() if place in by_place]

    for labels, places in groupby(sorted(range(n), key=shared), key=shared):
        some = list(places)
        for start in range(0, len(some), at_once):
            yield some[start : start + at_once], labels


def _moved(
    prompts: tuple[tuple[str, str], ...],
    targets: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
) -> Moved:
    """Two configurations of a batch compared; targets [prompt], logits [prompt, vocabulary]."""
    places = targets[:, None]
    first, second = (
        logits.double().log_softmax(-1).gather(-1, places)[:, 0] for logits in (before, after)
    )
    return Moved(
        prompts,
        divergence(before, after).cpu().numpy(),
        (before.argmax(-1) != after.argmax(-1)).cpu().numpy(),
        (second - first).cpu().numpy(),
        (worst_rank(after, after.gather(-1, places)) <= TOP).cpu().numpy(),
        (worst_rank(before, before.gather(-1, places)) <= TOP).cpu().numpy(),
    )


def _joined(parts: Sequence[Moved]) -> Moved:
    prompts = tuple(prompt for part in parts for prompt in part.prompts)
    names = [column.name for column in fields(Moved)][1:]
    return Moved(
        prompts, *(np.concatenate([getattr(part, name) for part in parts]) for name in names)
    )


def divergence(
    before: Float[torch.Tensor, "prompt vocabulary"],
    after: Float[torch.Tensor, "prompt vocabulary"],
) -> Float[torch.Tensor, " prompt"]:
    """KL(p || q) of two next-token distributions (S. Kullback and R. A. Leibler, 1951), in nats.

    It is summed as p log(p/q) - p + q, which is the same since both add up to 1, and of which no
    term is negative. So equal logits give exactly 0, and a small divergence is not lost in the
    rounding of large terms that cancel.

    Args:
        before: Logits of p, of any type; they are taken to float64 first.
        after: Logits of q.
    """
    p, q = (logits.double().log_softmax(-1) for logits in (before, after))
    step = q - p
    series = step.square() * (1 / 2 + step / 6 + step.square() / 24)
    chances = p.exp()
    terms = torch.where(step.abs() < SMALL, chances * series, q.exp() - chances - chances * step)
    return terms.sum(-1)


@dataclass(frozen=True)
class Row:
    """One configuration on texts of one kind; an estimate is None where the kind has none."""

    graft: str
    kind: str
    prompts: int
    """Number of prompts that the configuration was read on."""
    lacking: int
    """Number of prompts that it cannot be read on."""
    kl_largest: float | None
    """The largest KL of any prompt."""
    kl: Estimate
    """Mean KL(p_PRE || p) of the next token, in nats."""
    top1_changed: Estimate
    """Share of prompts of which another token is the likeliest."""
    leak: Estimate | None = None
    """Mean KL, as a share of that on the target facts under the same configuration."""
    of_sft: Estimate | None = None
    """Mean KL, as a share of what the whole donor does to the same prompts."""
    logprob_change: Estimate | None = None
    """Mean change of the true answer's log-probability against PRE."""
    top5_pre: Estimate | None = None
    """Share of true answers among PRE's five likeliest tokens."""
    top5: Estimate | None = None
    """The same under the configuration."""
    top5_change: Estimate | None = None
    """The difference of the two."""

    def to_json(self) -> dict[str, Any]:
        """The row of `kgbench specificity --json`."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        for name, value in values.items():
            if isinstance(value, Estimate):
                values[name] = value.to_json()
        return values


@dataclass(frozen=True)
class _Scores:
    """One score of each fact: the mean over its prompts."""

    facts: tuple[str, ...]
    values: Array
    seed: int

    @classmethod
    def of(cls, moved: Moved, values: Array, seed: int) -> _Scores:
        """Scores by fact; of facts with one prompt each as they are, so that hits stay hits."""
        names = [fact for fact, _ in moved.prompts]
        facts, places, prompts = np.unique(names, return_inverse=True, return_counts=True)
        by_fact = values[places.argsort()]
        if len(facts) < len(values):
            by_fact = np.bincount(places, values.astype(float)) / prompts
        return cls(tuple(facts.tolist()), by_fact, seed)

    @property
    def counts(self) -> Array:
        """A resample of the facts; the same facts and seed give the same one."""
        return _resample(len(self.facts), self.seed)


@lru_cache(maxsize=16)
def _resample(n: int, seed: int) -> Array:
    return resample(n, seed=seed)


def rows_of(measured: Sequence[Measured], labels: Sequence[str], seed: int = 0) -> list[Row]:
    """The estimates of every configuration on every kind of texts.

    Facts are resampled whole. Kinds that have the same facts share a resample, so that their ratio
    is paired; others are resampled apart.

    Args:
        measured: The kinds of texts, the target facts first.
        labels: Configurations.
        seed: Seed of the resamples.
    """
    seeds = {}
    for place, one in enumerate(measured):
        kind = one.texts.kind
        seeds[kind] = seed if kind in ("target", "sibling") else seed + place
    target = measured[0].moved
    return [_row(label, one, target, seeds) for label in labels for one in measured]


def _row(
    label: str, measured: Measured, target: Mapping[str, Moved], seeds: Mapping[str, int]
) -> Row:
    kind, moved = measured.texts.kind, measured.moved.get(label)
    seed = seeds[kind]
    lacking = sum(measured.absent.get(label, {}).values()) + sum(measured.unread.values())
    if moved is None:
        reasons = [measured.texts.about]
        if measured.texts.prompts:
            reasons = [*measured.absent.get(label, {}), *measured.unread]
        missing = Estimate.missing(f"absent: {'; '.join(reasons[:2])}")
        return Row(label, kind, 0, lacking, None, missing, missing)
    kl, every = _Scores.of(moved, moved.kl, seed), measured.moved.values()
    row = Row(
        label,
        kind,
        len(moved.kl),
        lacking,
        float(moved.kl.max()),
        mean(kl.values, (0.0, max(float(other.kl.mean()) for other in every))),
        mean(_Scores.of(moved, moved.changed, seed).values, (0.0, 1.0)),
    )
    if kind != "target" and label in target:
        near = target[label]
        row = replace(row, leak=_leak(kl, _Scores.of(near, near.kl, seeds["target"])))
    if label != "SFT" and "SFT" in measured.moved:
        row = replace(row, of_sft=_share(kl, moved, measured.moved["SFT"]))
    if not measured.texts.answers:
        return row
    changes = [0.0, *(float(other.logprob.mean()) for other in every)]
    change = _Scores.of(moved, moved.logprob, seed).values
    before = _Scores.of(moved, moved.top5_before, seed).values
    after = _Scores.of(moved, moved.top5, seed).values
    return replace(
        row,
        logprob_change=mean(change, (min(changes), max(changes))),
        top5_pre=mean(before, (0.0, 1.0)),
        top5=mean(after, (0.0, 1.0)),
        top5_change=difference(after, before),
    )


def _share(kl: _Scores, moved: Moved, whole: Moved) -> Estimate:
    """The ratio of two mean divergences over the prompts that both were read on."""
    places = {prompt: place for place, prompt in enumerate(whole.prompts)}
    same = whole.kl[[places[prompt] for prompt in moved.prompts]]
    donor, n = _Scores.of(moved, same, kl.seed), len(kl.facts)
    if not donor.values.any():
        return Estimate.missing("the whole donor moves none of these texts", n)
    if n < 2:
        return Estimate.missing(f"{n} fact, and an interval needs two", n)
    return ratio(kl.values, donor.values)


def _leak(near: _Scores, target: _Scores) -> Estimate:
    """The ratio of two means, of the same facts or of facts that are resampled apart."""
    n = min(len(near.facts), len(target.facts))
    if not target.values.any():
        return Estimate.missing("the graft moves no target fact", n)
    if n < 2:
        reason = f"{n} fact{'s' * (n != 1)} on one side, and an interval needs two"
        return Estimate.missing(reason, n)
    if near.facts == target.facts:
        return ratio(near.values, target.values)
    above, below = float(near.values.mean()), float(target.values.mean())
    numerators = resampled_means(near.values, near.counts)
    draws = ratio_draws(numerators, resampled_means(target.values, target.counts), below)
    moved, share, facts = np.count_nonzero(near.values), above / below, len(near.facts)
    # As in `stats.ratio_floor`: facts without an exception leave a share of exceptions open.
    open_to = unseen(facts) if moved < FEW and 2 * moved < facts else 0.0
    return Resampled(share, draws, (share - open_to, share + open_to), n).figure()


@dataclass(frozen=True)
class Kind:
    """The texts of one kind, as a report describes them."""

    kind: str
    about: str
    facts: int
    prompts: int
    unread: dict[str, int]
    """Reasons why the tokenizer cannot split a prompt into regions, with their counts."""
    absent: dict[str, dict[str, int]]
    """By configuration, the reasons why it cannot be read on a prompt, with their counts."""

    @classmethod
    def of(cls, measured: Measured) -> Kind:
        """The description of measured texts."""
        texts = measured.texts
        facts = len({prompt.fact.id for prompt in texts.prompts})
        absent = {label: dict(reasons) for label, reasons in measured.absent.items()}
        unread = dict(measured.unread)
        return cls(texts.kind, texts.about, facts, len(texts.prompts), unread, absent)

    def __str__(self) -> str:
        if not self.prompts:
            return f"{self.kind:<8} {self.about}"
        counted = f"{self.prompts} prompt{'s' * (self.prompts != 1)}"
        if self.facts < self.prompts:
            counted += f" of {self.facts} fact{'s' * (self.facts != 1)}"
        return f"{self.kind:<8} {counted}, {self.about}"


@dataclass(frozen=True)
class Specificity:
    """Effects of grafts on the texts that they are meant for and on others."""

    model: str
    dataset: str
    localizer: str
    dtype: str
    seed: int
    labels: tuple[str, ...]
    """Configurations, the whole donor first."""
    kinds: tuple[Kind, ...]
    """The target facts first."""
    rows: tuple[Row, ...]
    origins: Mapping[str, str]
    """Sources of the pair's models, by name."""

    def row(self, label: str, kind: str) -> Row:
        """The estimates of a configuration on a kind of texts."""
        return next(row for row in self.rows if (row.graft, row.kind) == (label, kind))

    @property
    def verdict(self) -> str:
        """One sentence on the graft that moves the target facts most; on `ALL` if it is alone."""
        moved = {}
        for label in self.labels:
            value = self.row(label, "target").kl.value
            if label != "SFT" and value is not None:
                moved[label] = value
        partial = [label for label in moved if label != "ALL"]
        label = max(partial, key=moved.__getitem__, default="ALL")
        if label not in moved:
            return (
                "Of no graft is it known how far it moves the target facts, "
                "so that nothing can be said of how specific it is."
            )
        return _sentence(
            {kind: self.row(label, kind) for kind in KINDS}, self.row("SFT", "neutral")
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `kgbench specificity --json` prints."""
        about = ("model", "dataset", "localizer", "dtype", "seed")
        return {
            **{name: getattr(self, name) for name in about},
            "origins": dict(self.origins),
            "unit": "nats",
            "kinds": [asdict(kind) for kind in self.kinds],
            "rows": [row.to_json() for row in self.rows],
            "verdict": self.verdict,
        }

    def report(self) -> Report:
        """Tables of the divergences, their shares, and the true answers."""
        near = [kind for kind in KINDS if kind != "target"]
        tables = [
            self._table("KL from PRE to the graft, in nats", "kl"),
            self._table("share of prompts with another likeliest token", "top1_changed"),
            self._table("leak: KL as a share of that on the target facts", "leak", near),
            self._table("KL as a share of the whole donor's (SFT)", "of_sft"),
            self._answers(),
        ]
        title = (
            f"{self.localizer} on {self.model}, {self.dataset}, {self.dtype}, seed {self.seed}: "
            "the next token compared with PRE's, means over facts with 95 % intervals"
        )
        return Report(title, tables, list(map(str, self.kinds)), self._lacking(), self.verdict)

    def _table(self, title: str, name: str, kinds: Iterable[str] = KINDS) -> Table:
        """One estimate of every configuration on kinds of texts."""
        rows: list[list[Cell]] = []
        for label in self.labels[1:] if name == "of_sft" else self.labels:
            cells = [_cell(self.row(label, kind), name) for kind in kinds]
            rows.append([label, *cells])
        text = _share_text if name == "top1_changed" else _nats_text
        columns = [Column("graft"), *(Column(kind, text) for kind in kinds)]
        return Table(title, columns, rows, label_width=LABEL_WIDTH)

    def _answers(self) -> Table:
        """Hits, PRE's first, and changes of log-probability, where the true answer is known."""
        kinds = ("target", "known")
        columns = [Column("graft")]
        before: list[Cell] = ["PRE"]
        for kind in kinds:
            columns += [Column(f"{kind} top5", _share_text), Column(f"{kind} logprob", _nats_text)]
            before += [self.row(self.labels[0], kind).top5_pre or Dash(), Dash()]
        rows = [before]
        for label in self.labels:
            cells: list[Cell] = [label]
            for kind in kinds:
                row = self.row(label, kind)
                cells += [row.top5 or Dash(), row.logprob_change or Dash()]
            rows.append(cells)
        title = "true answers: top5, and the change of their logprob against PRE"
        return Table(title, columns, rows, label_width=LABEL_WIDTH)

    def _lacking(self) -> list[str]:
        """Configurations that some prompts of a kind lack, and prompts that could not be read."""
        lines = []
        for one in self.kinds:
            of = f"of {one.prompts} prompts"
            for reason, count in one.unread.items():
                lines.append(f"{one.kind}: {count} {of} left out: {reason}")
            for label in self.labels:
                # A configuration that all prompts lack has a footnote.
                if not self.row(label, one.kind).prompts:
                    continue
                for reason, count in one.absent.get(label, {}).items():
                    lines.append(f"{label} on {one.kind}: absent in {count} {of}: {reason}")
        return lines


def _cell(row: Row, name: str) -> Cell:
    """An estimate of a row; a mean divergence of zeros alone, which has no interval, in words."""
    estimate = getattr(row, name)
    if estimate is None:
        return Dash()
    zeros = row.kl_largest == 0 and name != "top1_changed"
    if zeros and (name == "kl" or estimate.undefined is None):
        return f"0 in all {row.prompts}"
    assert isinstance(estimate, Estimate)
    return estimate


def _share_text(estimate: Estimate) -> str:
    return figure_text(estimate.rounded())


def _nats_text(estimate: Estimate) -> str:
    """`2.4 [2.0, 2.8]`, or why it is undefined."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return f"undefined ({reason_text(estimate.undefined or '')})"
    value, low, high = map(significant_text, (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def _sentence(rows: Mapping[str, Row], donor: Row) -> str:
    """What one graft does to texts of all kinds.

    Args:
        rows: The graft's, by kind of texts.
        donor: The whole donor's on neutral texts.
    """
    target, neutral, known = rows["target"], rows["neutral"], rows["known"]
    sideways = "nothing that could be measured"
    if neutral.kl_largest == 0:
        sideways = f"0 in all {neutral.prompts}"
    elif neutral.kl.undefined is None or neutral.prompts:
        sideways = _nats_text(neutral.kl)
    text = (
        f"{target.graft} moves the next token of the facts that it is meant for by "
        f"{_nats_text(target.kl)} nats and that of everyday sentences by {sideways}"
    )
    if neutral.of_sft is not None and neutral.of_sft.value is not None:
        text += f", {_percent(neutral.of_sft)} of what the whole donor does to them"
    if neutral.leak is not None:
        whole = _percent(donor.leak) if donor.leak else "undefined"
        text += f"; its leak is {_percent(neutral.leak)}, the donor's {whole}"
    before = None if known.top5_pre is None else known.top5_pre.value
    after = None if known.top5 is None else known.top5.value
    if before is not None and after is not None:
        text += (
            f"; of known answers {percent_text(before)} % are among the five likeliest tokens "
            f"before and {percent_text(after)} % after"
        )
    return f"{text}."


def _percent(estimate: Estimate) -> str:
    """`46 % [34, 59]`; small shares, which leaks are, with two significant digits."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return f"undefined ({reason_text(estimate.undefined or '')})"
    texts = []
    for share in (estimate.value, estimate.low, estimate.high):
        texts.append(significant_text(100 * share) if abs(share) < 0.1 else percent_text(share))
    return f"{texts[0]} % [{texts[1]}, {texts[2]}]"


def specificity(
    spec: Spec, settings: Settings, asked: Asked | None = None, progress: Progress | None = None
) -> Specificity:
    """Compare the next token under grafts with that of the recipient, on texts of all kinds.

    Args:
        spec: Pair, facts, prompts, grafts and an intervention; its seed chooses the facts and
            resamples them.
        settings: Batch size, device and so on.
        asked: Choice of texts.
        progress: Called with the prompts done, all of a kind, and the kind.

    Raises:
        InputError: Something in the specification is wrong, or the method ranks or draws.
    """
    asked = asked or Asked()
    spec = replace(spec, grafts=spec.grafts or GRAFTS)
    labels = tuple(dict.fromkeys(["SFT", *(label for label in spec.grafts if label != "PRE")]))
    for label in labels[1:]:
        parse_graft(label)
    check(spec)
    arguments = (spec, settings, asked, labels)
    if is_foreign(spec.localizer):
        return isolated(spec.localizer, _specificity, *arguments, progress=progress)
    return _specificity(*arguments, progress)


def _specificity(
    spec: Spec,
    settings: Settings,
    asked: Asked,
    labels: tuple[str, ...],
    progress: Progress | None = None,
) -> Specificity:
    _check_method(spec)
    check_named(spec, asked)
    job = prepare_job(spec, settings)
    assert isinstance(job.localizer, InterventionLocalizer)
    texts = texts_of(job, asked)
    assert [one.kind for one in texts] == list(KINDS)
    with blamed(job):
        measured = [measure(job, one, labels, progress) for one in texts]
    return Specificity(
        job.pair.name,
        job.dataset.name,
        job.localizer.name,
        str(job.pair.dtype).removeprefix("torch."),
        spec.seed,
        labels,
        tuple(map(Kind.of, measured)),
        tuple(rows_of(measured, labels, spec.seed)),
        job.pair.origins,
    )


def _check_method(spec: Spec) -> None:
    method = create(spec.localizer, localizer_arguments(spec), spec.seed)
    if isinstance(method, ScoringLocalizer):
        raise InputError(
            f"{method.name!r} ranks sites; specificity is of a method that intervenes, "
            "such as dynamic_graft"
        )
    if isinstance(method, InterventionLocalizer) and len(method.variants()) > 1:
        raise InputError(
            f"{method.name!r} averages {len(method.variants())} random draws; "
            "specificity is of a method without draws"
        )
