"""Running what an audit needs: a record of each wording under each seed, found or computed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgbench.audit.figures import Part
from kgbench.data import Dataset, builtin_prompts, load_prompts
from kgbench.errors import InputError
from kgbench.records import read_record
from kgbench.runner import Forecast, Pairs, Settings, Spec, check, dry_run, run_job
from kgbench.runner.ranking import Progress
from kgbench.runner.third_party import method_of
from kgbench.runner.workload import job_dataset

__all__ = ["GRAFTS", "SEEDS", "Plan", "forecast", "planned", "run", "wordings_of"]

GRAFTS = ("FE", "LT", "FE+LT")
"""Of methods that intervene, unless told otherwise; their complements are run too."""

SEEDS = 3
"""Of methods that draw, unless told otherwise."""


@dataclass(frozen=True)
class Plan:
    """What is run of one method."""

    spec: Spec
    """Without prompts and seed."""
    wordings: tuple[str, ...]
    seeds: int
    why: str
    """Why so many seeds."""

    @property
    def specs(self) -> list[Spec]:
        """A specification per wording and seed; a method is fitted on that wording alone."""
        return [
            replace(self.spec, prompts=(wording,), seed=seed)
            for seed in range(self.seeds)
            for wording in self.wordings
        ]


def planned(spec: Spec, seeds: int | None = None) -> Plan:
    """Find the wordings and seeds of a method, and check what can be checked without loading a model.

    Args:
        spec: Pair, facts and method; its prompts are the wordings, by default all that ask the data
            set's question.
        seeds: How many; by default 3 where a seed has a part in the method's answers, else 1.

    Raises:
        InputError: Something in the specification is wrong.
    """
    check(replace(spec, prompts=()))
    wordings = spec.prompts or wordings_of(job_dataset(spec))
    method = method_of(spec)
    own, ranks = "seed" in method.parameters, method.kind == "scoring"
    fixed = own and "seed" in spec.localizer_args
    if ranks:
        why = (
            "a seed splits the facts in two, to rank sites by and to try them "
            f"on{', and the method draws' * (own and not fixed)}"
        )
    elif fixed:
        why = f"the method's seed is fixed by --localizer-arg seed={spec.localizer_args['seed']}"
    else:
        why = (
            "the method draws at random"
            if own
            else "the method draws nothing at random, so that another seed gives the same"
        )
    if not spec.grafts and not ranks:
        spec = replace(spec, grafts=GRAFTS)
    plan = Plan(spec, tuple(wordings), seeds or (SEEDS if ranks or (own and not fixed) else 1), why)
    check(plan.specs[0])
    for wording in plan.wordings:
        check(replace(plan.spec, prompts=(wording,)))
    return plan


def run(plans: Sequence[Plan], settings: Settings, progress: Progress | None = None) -> list[Part]:
    """Find or compute the records; what is interrupted goes on where it was.

    Args:
        plans: Of each method.
        settings: How.
        progress: Told of the progress.

    Raises:
        InputError: Something in a specification is wrong.
    """
    specs, pairs, parts = [spec for plan in plans for spec in plan.specs], Pairs(), []
    for number, spec in enumerate(specs, 1):
        found = run_job(spec, settings, _part(progress, number, len(specs)), pairs)
        parts.append(Part(found.record, read_record(found.path).facts()))
    return parts


def forecast(plan: Plan, settings: Settings, pairs: Pairs) -> list[Forecast]:
    """What each wording would take under one seed.

    Raises:
        InputError: Something in the specification is wrong.
    """
    return [
        dry_run(replace(plan.spec, prompts=(wording,)), settings, pairs)
        for wording in plan.wordings
    ]


def _part(progress: Progress | None, number: int, parts: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, total, text: progress(done, total, f"{number} of {parts}: {text}")


_SUPERSEDED = re.compile(r"(.+)_v\d+")
"""Names of earlier states of another prompt, the same wording but for a slip."""


def wordings_of(dataset: Dataset) -> tuple[str, ...]:
    """Names of all evaluation prompts that ask a data set's question: for its object, given its subject.

    Those are its own templates and the built-in prompts that its fields fill, but for earlier
    versions of one of these, which are no other wordings.

    Args:
        dataset: The facts.

    Raises:
        InputError: There is none.
    """
    names = (*dataset.templates, *builtin_prompts())
    earlier = {
        name
        for name in names
        if (found := _SUPERSEDED.fullmatch(name)) is not None and found[1] in names
    }
    fitting = tuple(
        name for name in dict.fromkeys(names) if name not in earlier and _fits(name, dataset)
    )
    if not fitting:
        raise InputError(
            f"no prompt asks for {dataset.object!r} of data set {dataset.name!r}: give wordings "
            "with --template NAME=TEXT"
        )
    return fitting


def _fits(name: str, dataset: Dataset) -> bool:
    if name in dataset.templates:
        return True  # what is wrong with one of its own is to be told
    try:
        load_prompts(dataset, [name], 1)
    except InputError:
        return False
    return True
