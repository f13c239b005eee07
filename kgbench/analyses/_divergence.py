"""Texts of each kind, and the divergence of their next token under grafts from the recipient's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import groupby

import numpy as np
import torch
from jaxtyping import Float

from kgbench.analyses import sampled
from kgbench.analyses.specificity import KINDS, MeasuredTexts, Moved, Specificity, Texts
from kgbench.data import Dataset, Fact, Prompt, hash_facts, load_dataset, load_prompts
from kgbench.data.prompts import neutral_prompts, passing_templates, sibling_prompts
from kgbench.engine.edits import Treatment
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.errors import InputError, NotApplicableError, RegionError
from kgbench.localizers import InterventionLocalizer
from kgbench.localizers._base import asked as asked_prompts
from kgbench.metrics import require_finite, worst_rank
from kgbench.models import catalog
from kgbench.progress import Progress
from kgbench.runner.job import Job
from kgbench.runner.measure import GROUP, treated
from kgbench.runner.spec import Spec
from kgbench.runner.training.recipes import recipe
from kgbench.sites import Graft
from kgbench.zoo.tiny_pairs import known_movies
from kgbench.zoo.worlds import World

TOP = 5
"""Hits are answers among so many likeliest tokens."""

SMALL = 1e-3
"""Below this difference of log-probabilities a series is more exact than a difference."""

MOVIES = ("first_actor", "second_actor")
REAL, BATTLES, INVENTED = "real_movies_real_actors", "battles", "fake_movies_fake_actors"
MARGIN = 2
"""Movies drawn per fact asked for, since some may share a name with the facts."""


def sample_texts(job: Job, sample: Specificity) -> list[Texts]:
    """The texts of each kind; a kind that cannot be had has no prompts and the reason.

    Raises:
        InputError: A named data set does not exist or does not fit the prompts.
    """
    chosen = sampled(job.dataset.facts, sample.facts, job.spec.seed)
    kept = {fact.id for fact in chosen}
    target = tuple(prompt for prompt in job.all_prompts if prompt.fact.id in kept)
    present = {prompt.fact.id for prompt in target}
    chosen = [fact for fact in chosen if fact.id in present]
    about = f"{KINDS['target']} ({job.dataset.name}: {', '.join(job.prompts)})"
    return [
        Texts("target", about, target, True),
        Texts("sibling", KINDS["sibling"], tuple(sibling_prompts(job.dataset, chosen))),
        _known(job, sample),
        _other(job, sample),
        Texts("neutral", KINDS["neutral"], tuple(neutral_prompts())),
    ]


def _known(job: Job, sample: Specificity) -> Texts:
    templates = tuple(job.prompts)
    if sample.known is not None:
        dataset = load_dataset(sample.known, job.spec.imports)
        return _filled(job, "known", dataset, sample.known, templates, sample.facts)
    base = _tiny_pair(job.spec)
    movies = (job.dataset.subject, job.dataset.object) == MOVIES
    if base is not None and movies:
        rows = known_movies(recipe(base), MARGIN * sample.facts)
        dataset = _world_facts("known", rows, MOVIES)
        about = f"movies that {base}'s recipient was pretrained on"
    elif movies and not job.dataset.name.startswith(REAL):
        dataset = load_dataset(REAL)
        about = f"{REAL}: what the recipient may know of real movies"
    else:
        about = "none is known of these facts; name such facts with --known NAME|FILE"
        return Texts("known", about)
    try:
        return _filled(job, "known", dataset, about, templates, sample.facts)
    except InputError as error:
        return Texts("known", f"{about} do not fit: {error}")


def _other(job: Job, sample: Specificity) -> Texts:
    templates: tuple[str, ...] = ()
    if sample.other is not None:
        dataset, about = load_dataset(sample.other, job.spec.imports), sample.other
        templates = tuple(dataset.templates) or ("headline",)
    elif _tiny_pair(job.spec) is not None:
        movies = World("supplement").movies(MARGIN * sample.facts)
        dataset = _world_facts("passing", movies, ("movie_title", "city"))
        dataset = replace(dataset, templates=dict(passing_templates()))
        about = "where other invented movies were filmed, in wordings of pretraining"
    elif job.dataset.subject == "battle":
        dataset, about, templates = load_dataset(INVENTED), INVENTED, ("headline", "qa")
    else:
        dataset, about = load_dataset(BATTLES), BATTLES
    templates = templates or tuple(dataset.templates)
    return _filled(job, "other", dataset, about, templates, sample.facts)


def _tiny_pair(spec: Spec) -> str | None:
    """The tiny pair whose recipient a job has, by itself or below a plant."""
    if spec.model is None:
        return None
    source = catalog.entry(spec.model).recipient
    folder = catalog.zoo_path(source)
    if folder is None or spec.recipient not in (None, source):
        return None
    return folder.parent.name


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
    apart = []
    for fact in dataset.facts:
        if taken.isdisjoint({fact.fields[dataset.subject], fact.fields[dataset.object]}):
            apart.append(fact)
    if not apart:
        reason = "every fact shares its subject or object with the facts that the donor learned"
        return Texts(kind, f"{about}: {reason}")
    if shared := len(dataset.facts) - len(apart):
        reason = "left out, since a name in them is in the facts too"
        about = f"{about}; {shared} of {len(dataset.facts)} {reason}"
    facts = tuple(sampled(apart, n, job.spec.seed))
    wordings = dict(dataset.templates)
    if kind == "known":
        wordings = {**job.dataset.templates, **wordings}
    prompts = load_prompts(replace(dataset, facts=facts, templates=wordings), list(templates))
    return Texts(kind, about, tuple(prompts), kind == "known")


def measure(
    job: Job, texts: Texts, labels: Sequence[str], progress: Progress | None = None
) -> MeasuredTexts:
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
        cells = []
        for label in shared:
            cells.append([treatments[label][place] for place in places])
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
    return MeasuredTexts(texts, moved, absent, unread)


def _readable(job: Job, prompts: Sequence[Prompt]) -> tuple[list[Prompt], dict[str, int]]:
    """Prompts that split into regions, and reasons why others are left out."""
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
    method = job.localizer
    assert isinstance(method, InterventionLocalizer)
    unfit: NotApplicableError | None = None
    try:
        if prompts:
            method = method.fitted(job.pair, asked_prompts(method, job.pair, prompts))
    except NotApplicableError as error:
        unfit = error
    treatments: dict[str, dict[int, Sequence[Treatment]]] = {}
    absent: dict[str, dict[str, int]] = {}
    for label in labels:
        configuration = parse_configuration(label)
        reasons: Counter[str] = Counter()
        by_place = treatments[label] = {}
        for place, prompt in enumerate(prompts):
            try:
                if not isinstance(configuration, Graft):
                    by_place[place] = graft_treatments(job.pair, [prompt], configuration)[0]
                elif unfit is not None:
                    raise unfit
                else:
                    by_place[place] = treated(method, job.pair, [prompt], configuration)[0]
            except NotApplicableError as error:
                reasons[str(error)] += 1
            except RegionError as error:  # its cause is the same for all prompts of a kind
                reasons[str(error.__cause__ or error)] += 1
        if reasons:
            absent[label] = dict(reasons)
    return treatments, absent


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
    prompts: list[tuple[str, str]] = []
    for part in parts:
        prompts += part.prompts
    columns = []
    for column in fields(Moved)[1:]:
        columns.append(np.concatenate([getattr(part, column.name) for part in parts]))
    return Moved(tuple(prompts), *columns)


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
