"""Specificity: how far grafts move the next token of texts that they are not meant for.

The divergence from the recipient is measured on five kinds of texts, from the facts that the donor
learned to everyday sentences. Intervals are over whole facts.

Texts for the tiny pairs are shipped: `specificity_known.jsonl` has movies that their recipients
were pretrained on in all wordings, and `specificity_other.jsonl` asks where invented movies were
filmed, of which neither recipients nor donors read, in wordings that the recipients were pretrained
on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float

from kgbench.analyses import Analysis, Answer, Inputs, sampled
from kgbench.data import Dataset, Prompt, load_dataset, load_prompts
from kgbench.data.prompts import neutral_prompts, sibling_prompts
from kgbench.errors import InputError, NotApplicableError, RegionError
from kgbench.estimate import Estimate, plain
from kgbench.localizers import InterventionLocalizer, ScoringLocalizer
from kgbench.localizers._base import asked
from kgbench.models import catalog
from kgbench.numbers import (
    count_text,
    figure_text,
    interval_text,
    reason_text,
    significant_text,
)
from kgbench.progress import Progress
from kgbench.report import Cell, Column, Dash, Report, Table
from kgbench.runner.lookup import Workload, check, made_localizer
from kgbench.runner.sources import Sources
from kgbench.runner.spec import INSTALLED, Settings, Spec
from kgbench.runner.third_party_process import isolated
from kgbench.sites import Graft, parse_graft
from kgbench.stats.intervals import (
    Array,
    Resampled,
    mean,
    open_to,
    ratio,
    ratio_draws,
    resample,
    resampled_means,
)

if TYPE_CHECKING:  # the help of the command must not wait for torch
    import torch

    from kgbench.engine.edits import Treatment
    from kgbench.runner.job import Job

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

ANSWERED = ("target", "known")
"""Kinds of which the targets are true answers."""

TOP = 5
"""Hits are answers among so many likeliest tokens."""

SMALL = 1e-3
"""Below this difference of log-probabilities a series is more exact than a difference."""

LABEL_WIDTH = 16

SHIPPED = {
    "known": "movies that the recipient was pretrained on",
    "other": "where other invented movies were filmed, in wordings of pretraining",
}
"""Facts for the tiny pairs."""


@dataclass(frozen=True)
class Texts:
    """The prompts of one kind."""

    kind: str
    """One of `KINDS`."""
    about: str
    """What they are, or why there are none."""
    prompts: tuple[Prompt, ...] = ()


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

    @cached_property
    def facts(self) -> tuple[str, ...]:
        """Ids of the facts, sorted."""
        return tuple(sorted({fact for fact, _ in self.prompts}))

    def by_fact(self, values: Array) -> Array:
        """Means over the prompts of each fact; where each has one, values as they are."""
        places = np.searchsorted(self.facts, [fact for fact, _ in self.prompts])
        if len(self.facts) == len(values):
            return values[places.argsort()]
        return np.bincount(places, values.astype(float)) / np.bincount(places)


@dataclass(frozen=True)
class MeasuredTexts:
    """Texts of one kind under all configurations."""

    texts: Texts
    moved: Mapping[str, Moved]
    """By configuration; one that can be read on no prompt is left out."""
    absent: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By configuration, the reasons why it cannot be read on a prompt, with their counts."""


# ---------------------------------------------------------------------------- texts and measurement


def sample_texts(job: Job, sample: Specificity) -> list[Texts]:
    """The texts of each kind; a kind that cannot be had has no prompts and the reason.

    Raises:
        InputError: A named data set does not exist or does not fit the prompts.
    """
    asked_of = {prompt.fact.id for prompt in job.all_prompts}
    facts = [fact for fact in job.dataset.facts if fact.id in asked_of]
    chosen = sampled(facts, sample.facts, job.seed)
    ids = {fact.id for fact in chosen}
    target = tuple(prompt for prompt in job.all_prompts if prompt.fact.id in ids)
    about = f"{KINDS['target']} ({job.dataset.name}: {', '.join(job.prompts)})"
    return [
        Texts("target", about, target),
        Texts("sibling", KINDS["sibling"], tuple(sibling_prompts(job.dataset, chosen))),
        _unrelated(job, "known", sample.known, sample.facts),
        _unrelated(job, "other", sample.other, sample.facts),
        Texts("neutral", KINDS["neutral"], tuple(neutral_prompts())),
    ]


def _unrelated(job: Job, kind: str, name: str | None, n: int) -> Texts:
    """Facts of a data set that is named, or shipped for the tiny pairs."""
    if name is not None:
        return _filled(job, kind, load_dataset(name, job.sources.imports), name, n)
    of_movies = (job.dataset.subject, job.dataset.object) == ("first_actor", "second_actor")
    if not _is_tiny(job.sources) or (kind == "known" and not of_movies):
        return Texts(kind, f"no such facts are shipped for these models; name some with --{kind}")
    shipped = load_dataset(str(Path(__file__).with_name(f"specificity_{kind}.jsonl")))
    try:
        return _filled(job, kind, shipped, SHIPPED[kind], n)
    except InputError as error:
        return Texts(kind, f"{SHIPPED[kind]} do not fit: {error}")


def _is_tiny(sources: Sources) -> bool:
    """Whether the recipient is that of a tiny pair, by itself or below a plant."""
    source = "" if sources.entry is None else sources.entry.recipient
    return catalog.zoo_path(source) is not None and sources.recipient in (None, source)


def _filled(job: Job, kind: str, dataset: Dataset, about: str, n: int) -> Texts:
    """Facts that share neither subject nor object with those of the job.

    Known ones are asked in the prompts of the job, others in templates of their own.
    """
    names = set()
    for fact in job.dataset.facts:
        names |= {fact.fields.get(job.dataset.subject), fact.fields.get(job.dataset.object)}
    apart = []
    for fact in dataset.facts:
        if names.isdisjoint({fact.fields[dataset.subject], fact.fields[dataset.object]}):
            apart.append(fact)
    if not apart:
        reason = "every fact shares its subject or object with the facts that the donor learned"
        return Texts(kind, f"{about}: {reason}")
    facts = tuple(sampled(apart, n, job.seed))
    templates, names_of_prompts = dict(dataset.templates), list(job.prompts)
    if kind == "known":
        templates = {**job.dataset.templates, **templates}
    else:
        names_of_prompts = list(templates) or ["headline"]
    prompts = load_prompts(replace(dataset, facts=facts, templates=templates), names_of_prompts)
    return Texts(kind, about, tuple(prompts))


def measure(
    job: Job, texts: Texts, labels: Sequence[str], progress: Progress | None = None
) -> MeasuredTexts:
    """Compare the next token under configurations with that under PRE.

    Args:
        job: Model pair, method and engine; a method that learns from prompts learns from `texts`.
        texts: Prompts of one kind.
        labels: Configurations.
        progress: Called after each configuration with their number, all of them, and the kind.
    """
    method: InterventionLocalizer | NotApplicableError
    absent: dict[str, Counter[str]] = {}
    moved: dict[str, Moved] = {}
    unread: Counter[str] = Counter()
    prompts = []
    for prompt in texts.prompts:
        try:
            job.pair.encoded(prompt)
            prompts.append(prompt)
        except RegionError as error:
            unread[str(error)] += 1
    assert isinstance(job.localizer, InterventionLocalizer)
    method = job.localizer
    try:
        if prompts:
            method = method.fitted(job.pair, asked(method, job.pair, prompts))
    except NotApplicableError as error:
        method = error
    for number, label in enumerate(labels, 1):
        treatments, reasons = _treatments(job, method, prompts, label)
        if reasons := unread + reasons:
            absent[label] = reasons
        if treatments:
            moved[label] = _moved(job, label, treatments)
        if progress is not None:
            progress(number, len(labels), texts.kind)
    return MeasuredTexts(texts, moved, absent)


def _treatments(
    job: Job,
    method: InterventionLocalizer | NotApplicableError,
    prompts: Sequence[Prompt],
    label: str,
) -> tuple[dict[Prompt, Sequence[Treatment]], Counter[str]]:
    """Treatments of the tokens of each prompt; reasons why some prompts have none."""
    from kgbench.engine.treatment import graft_treatments, parse_configuration
    from kgbench.runner.measure import treated

    configuration = parse_configuration(label)
    reasons: Counter[str] = Counter()
    treatments: dict[Prompt, Sequence[Treatment]] = {}
    for prompt in prompts:
        try:
            if not isinstance(configuration, Graft):
                (treatments[prompt],) = graft_treatments(job.pair, [prompt], configuration)
            elif isinstance(method, NotApplicableError):
                raise method
            else:
                (treatments[prompt],) = treated(method, job.pair, [prompt], configuration)
        except (NotApplicableError, RegionError) as error:
            # The cause of a missing region is the same for all prompts of a kind.
            reasons[str(error.__cause__ or error)] += 1
    return treatments, reasons


def _moved(job: Job, label: str, treatments: Mapping[Prompt, Sequence[Treatment]]) -> Moved:
    """The effect of a configuration, given its treatments of the tokens of each prompt."""
    import torch

    from kgbench.engine.treatment import graft_treatments
    from kgbench.metrics import score_logits
    from kgbench.runner.measure import GROUP, chunks

    vocabulary = int(job.pair.recipient.config.vocab_size)
    at_once = max(1, job.engine.budget.logits // (2 * vocabulary))
    columns: list[tuple[np.ndarray, ...]] = []
    for batch in chunks(list(treatments), min(at_once, GROUP)):
        grafted = [treatments[prompt] for prompt in batch]
        plan = job.engine.plan_treatments(
            batch, [graft_treatments(job.pair, batch, "PRE"), grafted]
        )
        before, after = job.engine.logits(plan)[:, :, 0].unbind(1)
        targets = torch.tensor([job.pair.encoded(prompt).target for prompt in batch])
        scores = []
        for name, logits in (("PRE", before), (label, after)):
            which = [
                f"configuration {name}, text {prompt.fact.id}, prompt {prompt.name!r}"
                for prompt in batch
            ]
            scores.append(score_logits(logits.double(), targets, which.__getitem__))
        first, second = scores
        columns.append(
            (
                divergence(before, after).cpu().numpy(),
                (before.argmax(-1) != after.argmax(-1)).cpu().numpy(),
                second["logprob"] - first["logprob"],
                second["rank"] <= TOP,
                first["rank"] <= TOP,
            )
        )
    ids = tuple((prompt.fact.id, prompt.name) for prompt in treatments)
    return Moved(ids, *map(np.concatenate, zip(*columns, strict=True)))


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
    import torch

    p, q = (logits.double().log_softmax(-1) for logits in (before, after))
    step = q - p
    series = step.square() * (1 / 2 + step / 6 + step.square() / 24)
    chances = p.exp()
    terms = torch.where(step.abs() < SMALL, chances * series, q.exp() - chances - chances * step)
    return terms.sum(-1)


# --------------------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class DivergenceRow:
    """One configuration on texts of one kind; an estimate is None where the kind has none."""

    graft: str
    kind: str
    prompts: int
    """Number of prompts that the configuration was read on."""
    absent: dict[str, int]
    """Reasons why it cannot be read on other prompts, with their counts."""
    kl_largest: float | None
    """The largest KL of any prompt."""
    kl: Estimate
    """Mean KL(p_PRE || p) of the next token, in nats."""
    top1_changed: Estimate
    """Share of prompts of which another token is the likeliest."""
    leak: Estimate | None = None
    """Mean KL, as a share of that on the target facts under the same configuration."""
    logprob_change: Estimate | None = None
    """Mean change of the true answer's log-probability against PRE."""
    top5_pre: Estimate | None = None
    """Share of true answers among PRE's five likeliest tokens."""
    top5: Estimate | None = None
    """The same under the configuration."""


def rows_of(
    measured: Sequence[MeasuredTexts], labels: Sequence[str], seed: int = 0
) -> list[DivergenceRow]:
    """The estimates of every configuration on every kind of texts.

    Args:
        measured: The kinds of texts, the target facts first.
        labels: Configurations.
        seed: Seed of the resamples.
    """
    rows: list[DivergenceRow] = []
    for label in labels:
        target = measured[0].moved.get(label)
        rows += (_row(label, texts, target, seed) for texts in measured)
    return rows


def _row(label: str, measured: MeasuredTexts, target: Moved | None, seed: int) -> DivergenceRow:
    kind, moved = measured.texts.kind, measured.moved.get(label)
    absent = dict(measured.absent.get(label, {}))
    if moved is None:
        listed = list(absent)[:2] or [measured.texts.about]
        missing = Estimate.missing(f"absent: {'; '.join(listed)}")
        return DivergenceRow(label, kind, 0, absent, None, missing, missing)
    every = measured.moved.values()
    estimates: dict[str, Estimate] = {}
    if kind != "target" and target is not None:
        estimates["leak"] = _leak(moved, target, seed)
    if kind in ANSWERED:
        changes = [0.0, *(float(other.logprob.mean()) for other in every)]
        estimates |= {
            "logprob_change": mean(moved.by_fact(moved.logprob), (min(changes), max(changes))),
            "top5_pre": mean(moved.by_fact(moved.top5_before), (0.0, 1.0)),
            "top5": mean(moved.by_fact(moved.top5), (0.0, 1.0)),
        }
    return DivergenceRow(
        label,
        kind,
        len(moved.kl),
        absent,
        float(moved.kl.max()),
        mean(moved.by_fact(moved.kl), (0.0, max(float(other.kl.mean()) for other in every))),
        mean(moved.by_fact(moved.changed), (0.0, 1.0)),
        **estimates,
    )


def _leak(near: Moved, target: Moved, seed: int) -> Estimate:
    """The ratio of two mean divergences, of the same facts or of facts that are resampled apart.

    Args:
        near: On texts that the graft is not meant for.
        target: On those that it is meant for.
        seed: Of the resamples.
    """
    above, below = near.by_fact(near.kl), target.by_fact(target.kl)
    n = min(len(above), len(below))
    if not below.any():
        return Estimate.missing("the graft moves no target fact", n)
    if n < 2:
        reason = f"{n} fact{'s' * (n != 1)} on one side, and an interval needs two"
        return Estimate.missing(reason, n)
    if near.facts == target.facts:
        return ratio(above, below)
    # As in `stats.intervals._floor`: facts without an exception leave a share of exceptions open.
    gap = float(below.mean())
    share, rest = float(above.mean()) / gap, open_to(above)
    means = resampled_means(above, resample(len(above), seed=seed + 1))
    draws = ratio_draws(means, resampled_means(below, resample(len(below), seed=seed)), gap)
    return Resampled(share, draws, (share - rest, share + rest), n).figure()


@dataclass(frozen=True)
class KindSummary:
    """The texts of one kind, as a report describes them."""

    kind: str
    about: str
    facts: int
    prompts: int

    @classmethod
    def of(cls, texts: Texts) -> KindSummary:
        """The description of texts."""
        facts = len({prompt.fact.id for prompt in texts.prompts})
        return cls(texts.kind, texts.about, facts, len(texts.prompts))

    def __str__(self) -> str:
        if not self.prompts:
            return f"{self.kind:<8} {self.about}"
        counted = count_text(self.prompts, "prompt")
        if self.facts < self.prompts:
            counted += f" of {count_text(self.facts, 'fact')}"
        return f"{self.kind:<8} {counted}, {self.about}"


@dataclass(frozen=True)
class Divergences:
    """Effects of grafts on the texts that they are meant for and on others."""

    model: str
    dataset: str
    localizer: str
    dtype: str
    seed: int
    labels: tuple[str, ...]
    """Configurations, the whole donor first."""
    kinds: tuple[KindSummary, ...]
    """The target facts first."""
    rows: tuple[DivergenceRow, ...]
    origins: Mapping[str, str]
    """Sources of the pair's models, by name."""

    def row(self, label: str, kind: str) -> DivergenceRow:
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
                "No graft has a defined effect on the target facts, so that its specificity is "
                "undefined."
            )
        target, neutral = (self.row(label, kind) for kind in ("target", "neutral"))
        sideways = f"0 in all {neutral.prompts}" if neutral.kl_largest == 0 else _text(neutral.kl)
        return (
            f"{label} moves the next token of the facts that it is meant for by "
            f"{_text(target.kl)} nats and that of everyday sentences by {sideways}; its leak is "
            f"{_text(neutral.leak)}, the donor's {_text(self.row('SFT', 'neutral').leak)}."
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `kgbench specificity --json` prints."""
        return {**plain(self, counted=True), "unit": "nats", "verdict": self.verdict}

    def report(self) -> Report:
        """Tables of the divergences, their shares, and the true answers."""
        near = [kind for kind in KINDS if kind != "target"]
        tables = [
            self._table("KL from PRE to the graft, in nats", "kl"),
            self._table("share of prompts with another likeliest token", "top1_changed"),
            self._table("leak: KL as a share of that on the target facts", "leak", near),
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
        for label in self.labels:
            cells = [_cell(self.row(label, kind), name) for kind in kinds]
            rows.append([label, *cells])
        text = figure_text if name == "top1_changed" else _text
        return Table(title, ["graft", *(Column(kind, text) for kind in kinds)], rows, LABEL_WIDTH)

    def _answers(self) -> Table:
        """Hits, PRE's first, and changes of log-probability, where the true answer is known."""
        columns: list[str | Column] = ["graft"]
        before: list[Cell] = ["PRE"]
        for kind in ANSWERED:
            columns += [f"{kind} top5", Column(f"{kind} logprob", _text)]
            before += [self.row(self.labels[0], kind).top5_pre or Dash(), Dash()]
        rows = [before]
        for label in self.labels:
            cells: list[Cell] = [label]
            for kind in ANSWERED:
                row = self.row(label, kind)
                cells += [row.top5 or Dash(), row.logprob_change or Dash()]
            rows.append(cells)
        title = "true answers: top5, and the change of their logprob against PRE"
        return Table(title, columns, rows, LABEL_WIDTH)

    def _lacking(self) -> list[str]:
        """Configurations that some prompts of a kind lack; what all lack has a footnote."""
        lines: dict[str, list[str]] = {}
        for row in self.rows:
            for reason, n in row.absent.items() if row.prompts else ():
                line = f"{row.kind}: absent in {count_text(n, 'prompt')}: {reason}"
                lines.setdefault(line, []).append(row.graft)
        return [f"{', '.join(labels)} on {line}" for line, labels in lines.items()]


def _cell(row: DivergenceRow, name: str) -> Cell:
    """An estimate of a row; a mean divergence of zeros alone, which has no interval, in words."""
    estimate: Estimate | None = getattr(row, name)
    if estimate is None:
        return Dash()
    zeros = row.kl_largest == 0 and name != "top1_changed"
    return f"0 in all {row.prompts}" if zeros and name == "kl" else estimate


def _text(estimate: Estimate | None) -> str:
    """`2.4 [2.0, 2.8]`, or why it is undefined."""
    if estimate is None or estimate.numbers is None:
        reason = estimate and estimate.undefined
        return f"undefined ({reason_text(reason)})" if reason else "undefined"
    return interval_text(estimate.numbers, significant_text)


@dataclass(frozen=True)
class Specificity(Analysis):
    """Show what grafts change besides the facts that they are meant for.

    KL(p_PRE || p) of the next token, in nats, on the facts that the donor
    learned (target), other questions about the same first entities (sibling),
    facts of the same kind that finetuning did not teach (known), facts of
    another kind (other), and everyday sentences (neutral). All have marked
    regions, so that FE, LT and so on are tokens of theirs too; a graft at a
    region that a text lacks is reported as absent. A method that learns from
    prompts learns from the texts of each kind.

    \b
    kgbench specificity kgbench-results/RUN --graft FE+LT
    """  # noqa: D301 (click reads the character, not its escape)

    name = "specificity"
    about = "Show what grafts change besides their facts."
    arguments = "RUN"
    of = "method"
    takes = ("localizer", "grafts", "seed", "device")
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "localizer": INSTALLED,
        "grafts": {
            "help": "With SFT; several with commas.  [default: the run's, else FE, LT, FE+LT, ALL]"
        },
        "seed": {"help": "Random seed for sampling and resampling facts.  [default: the run's]"},
    }

    known: str | None = field(default=None, metadata={"metavar": "NAME|FILE"})
    """Facts that finetuning did not teach.  [default: those shipped for the tiny pairs]"""
    other: str | None = field(default=None, metadata={"metavar": "NAME|FILE"})
    """Facts of another kind.  [default: those shipped for the tiny pairs]"""
    facts: int = field(
        default=100,
        metadata={"flag": "--limit", "also": "--facts", "metavar": "N", "least": 2},
    )
    """At most so many facts of a kind."""

    def answer(self, inputs: Inputs) -> Answer:
        """Measure the divergences on texts of all kinds."""
        (spec,) = inputs.specs
        divergences = isolated(
            spec.localizer, specificity, spec, inputs.settings, self, progress=inputs.progress
        )
        return Answer(divergences.report(), divergences.to_json(), origins=divergences.origins)


def specificity(
    spec: Spec, settings: Settings, sample: Specificity, progress: Progress | None = None
) -> Divergences:
    """Compare the next token under grafts with that of the recipient, on texts of all kinds.

    Args:
        spec: Pair, facts, prompts, grafts and an intervention; its seed chooses the facts and
            resamples them.
        settings: Batch size, device and so on.
        sample: Choice of texts.
        progress: Called with the configurations done, all of them, and the kind.

    Raises:
        InputError: Something in the specification is wrong, or the method ranks or draws.
    """
    from kgbench.runner.job import load_job
    from kgbench.runner.third_party_watch import blamed

    spec = replace(spec, grafts=spec.grafts or GRAFTS)
    labels = tuple(dict.fromkeys(["SFT", *(label for label in spec.grafts if label != "PRE")]))
    for label in labels[1:]:
        parse_graft(label)
    work = check(spec)
    _check_method(work)
    for name in filter(None, (sample.known, sample.other)):
        load_dataset(name, spec.imports)
    job = load_job(work, settings)
    texts = sample_texts(job, sample)
    with blamed(job.localizer, job.localizer_name):
        measured = [measure(job, kind, labels, progress) for kind in texts]
    return Divergences(
        job.pair.name,
        job.dataset.name,
        job.localizer.name,
        str(job.pair.dtype).removeprefix("torch."),
        spec.seed,
        labels,
        tuple(map(KindSummary.of, texts)),
        tuple(rows_of(measured, labels, spec.seed)),
        job.pair.origins,
    )


def _check_method(work: Workload) -> None:
    method = made_localizer(work)
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
