"""The texts that a graft is tried on: what it is meant for, what is near to it, and what is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from kgbench.data import Dataset, Fact, Prompt, hash_facts, load_dataset, load_prompts
from kgbench.data.builders.worlds import World
from kgbench.data.prompts import neutral_prompts, passing_templates, sibling_prompts
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.runner.job import Job
from kgbench.runner.spec import Spec
from kgbench.training.corpus import known_movies
from kgbench.training.recipes import recipe

__all__ = ["KINDS", "Asked", "Texts", "check_named", "texts_of"]

KINDS: Mapping[str, str] = {
    "target": "the facts that the donor learned",
    "sibling": "other questions about the same first entities",
    "known": "facts of the same kind that finetuning did not teach",
    "other": "facts of another kind",
    "neutral": "everyday sentences",
}
"""The kinds of texts, the one that a graft is meant for first."""

_ZOO = "zoo:"
_MOVIES = ("first_actor", "second_actor")
_REAL, _BATTLES, _INVENTED = "real_movies_real_actors", "battles", "fake_movies_fake_actors"
_MARGIN = 2
"""Movies are drawn so many times as often as they are asked for, since some may share a name with the facts."""


@dataclass(frozen=True)
class Asked:
    """Which texts are asked for."""

    facts: int = 100
    """At most so many of each kind."""
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
    """The texts of each kind for a job; a kind that cannot be had is there without prompts, and says why.

    Raises:
        InputError: A data set that is named does not exist or does not fit the prompts.
    """
    chosen = _drawn(job.dataset.facts, asked.facts, job.spec.seed)
    kept = {fact.id for fact in chosen}
    target = tuple(prompt for prompt in job.all_prompts if prompt.fact.id in kept)
    present = {prompt.fact.id for prompt in target}
    chosen = [fact for fact in chosen if fact.id in present]
    return [
        Texts(
            "target",
            f"{KINDS['target']} ({job.dataset.name}: {', '.join(job.prompts)})",
            target,
            True,
        ),
        Texts("sibling", KINDS["sibling"], tuple(sibling_prompts(job.dataset, chosen))),
        _known(job, asked),
        _other(job, asked),
        Texts("neutral", KINDS["neutral"], tuple(neutral_prompts())),
    ]


def check_named(spec: Spec, asked: Asked) -> None:
    """Look at the data sets that are named, before a model is loaded.

    Raises:
        InputError: One does not exist or does not read.
    """
    for name in filter(None, (asked.known, asked.other)):
        load_dataset(name, spec.imports)


def _drawn(facts: Sequence[Fact], n: int, seed: int) -> list[Fact]:
    """Some facts at random, in the order in which they stand."""
    places = sorted(Random(seed).sample(range(len(facts)), min(n, len(facts))))
    return [facts[place] for place in places]


def _known(job: Job, asked: Asked) -> Texts:
    templates = tuple(job.prompts)
    if asked.known is not None:
        return _filled(
            job,
            "known",
            (load_dataset(asked.known, job.spec.imports), asked.known),
            templates,
            asked.facts,
        )
    base = _tiny(job.spec)
    movies = (job.dataset.subject, job.dataset.object) == _MOVIES
    if base is not None and movies:
        rows = known_movies(recipe(base), _MARGIN * asked.facts)
        found = (
            _invented("known", rows, _MOVIES),
            f"movies that {base}'s recipient was pretrained on",
        )
    elif movies and not job.dataset.name.startswith(_REAL):
        found = load_dataset(_REAL), f"{_REAL}: what the recipient may know of real movies"
    else:
        return Texts(
            "known", "none is known of these facts; name such facts with --known NAME|FILE"
        )
    try:
        return _filled(job, "known", found, templates, asked.facts)
    except InputError as error:
        return Texts("known", f"{found[1]} do not fit: {error}")


def _other(job: Job, asked: Asked) -> Texts:
    if asked.other is not None:
        dataset = load_dataset(asked.other, job.spec.imports)
        return _filled(
            job,
            "other",
            (dataset, asked.other),
            tuple(dataset.templates) or ("headline",),
            asked.facts,
        )
    if _tiny(job.spec) is not None:
        movies = World("supplement").movies(_MARGIN * asked.facts)
        told = "where other invented movies were filmed, in wordings of pretraining"
        dataset = replace(
            _invented("passing", movies, ("movie_title", "city")),
            templates=dict(passing_templates()),
        )
        return _filled(job, "other", (dataset, told), tuple(dataset.templates), asked.facts)
    if job.dataset.subject == "battle":
        return _filled(
            job, "other", (load_dataset(_INVENTED), _INVENTED), ("headline", "qa"), asked.facts
        )
    dataset = load_dataset(_BATTLES)
    return _filled(job, "other", (dataset, _BATTLES), tuple(dataset.templates), asked.facts)


def _tiny(spec: Spec) -> str | None:
    """The tiny pair whose recipient a job has, by itself or under a plant."""
    if spec.model is None:
        return None
    source = catalog.entry(spec.model).recipient
    if not source.startswith(_ZOO) or spec.recipient not in (None, source):
        return None
    return source.removeprefix(_ZOO).partition("/")[0]


def _invented(name: str, rows: Sequence[Mapping[str, str]], ends: tuple[str, str]) -> Dataset:
    facts = tuple(Fact(f"{name}/{number}", dict(row)) for number, row in enumerate(rows, 1))
    return Dataset(name, facts, *ends, {}, {}, hash_facts(facts, *ends))


def _filled(
    job: Job, kind: str, found: tuple[Dataset, str], templates: Sequence[str], n: int
) -> Texts:
    """Facts that share neither subject nor object with those of the job, in templates."""
    dataset, about = found
    taken = {
        fact.fields[field]
        for fact in job.dataset.facts
        for field in (job.dataset.subject, job.dataset.object)
    }
    apart = [
        fact
        for fact in dataset.facts
        if taken.isdisjoint((fact.fields[dataset.subject], fact.fields[dataset.object]))
    ]
    if not apart:
        return Texts(
            kind,
            f"{about}: every fact shares its subject or object with the facts that the donor learned",
        )
    shared = len(dataset.facts) - len(apart)
    facts = tuple(_drawn(apart, n, job.spec.seed))
    own = (
        {**job.dataset.templates, **dataset.templates}
        if kind == "known"
        else dict(dataset.templates)
    )
    prompts = load_prompts(replace(dataset, facts=facts, templates=own), list(templates))
    told = (
        f"{about}; {shared} of {len(dataset.facts)} left out, since a name in them is in the facts too"
        if shared
        else about
    )
    return Texts(kind, told, tuple(prompts), kind == "known")
