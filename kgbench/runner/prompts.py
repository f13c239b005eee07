"""The facts and prompts of a job."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from kgbench import data
from kgbench.data import Dataset, Prompt, load_dataset
from kgbench.data.fitting import giveaways, refuse_leaks
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.runner.spec import Spec
from kgbench.runner.suites import load_suite

__all__ = ["job_dataset", "job_prompts", "load_prompts"]


def load_prompts(
    dataset: str | Dataset, names: Sequence[str], limit: int | None = None
) -> list[Prompt]:
    """Facts filled into evaluation templates.

    Args:
        dataset: A data set, its name or file, or the name of a model pair for the facts its donor learned.
        names: Prompts by name.
        limit: Only the first so many facts.

    Returns:
        Prompts in the order of `names`, then of the facts.

    Raises:
        UnknownNameError: There is no such data set, pair or prompt.
        DataError: A file does not read, or lacks a field that a prompt needs.
    """
    own = (
        _own_facts(dataset) if isinstance(dataset, str) and dataset in catalog.names() else dataset
    )
    return data.load_prompts(own, names, limit)


def _own_facts(model: str) -> Dataset:
    """The facts that the donor of a pair of the catalog learned."""
    entry = catalog.entry(model)
    dataset = load_dataset(entry.dataset)
    return dataset if entry.facts is None else dataset.subset(entry.facts)


def job_dataset(spec: Spec) -> Dataset:
    """The facts of a job.

    Raises:
        InputError: No data set is named, and the checkpoints are not a pair of the catalog, which would name one.
    """
    if spec.dataset is not None:
        return load_dataset(spec.dataset, spec.imports)
    if spec.model is None:
        raise InputError(
            "which facts did the donor learn? Give --dataset NAME or --dataset FILE.jsonl"
        )
    return _own_facts(spec.model)


def job_prompts(spec: Spec, dataset: Dataset) -> dict[str, list[Prompt]]:
    """The prompts of a job by name: those asked for, else the data set's own, else the suite's."""
    names = spec.prompts or tuple(dataset.templates) or load_suite(spec.suite).prompts
    found = {name: data.load_prompts(dataset, [name], spec.limit) for name in dict.fromkeys(names)}
    if spec.dataset is not None and not data.is_shipped(spec.dataset):
        _check_giveaways(dataset, found)
    return found


def _check_giveaways(dataset: Dataset, prompts: Mapping[str, Sequence[Prompt]]) -> None:
    """Refuse prompts of somebody's own facts that hold most of the answers, and warn of those that hold some, as an import does."""
    for name, some in prompts.items():
        given_away = giveaways(dataset, some)
        refuse_leaks(f"data set {dataset.name}", {name: given_away}, len(some))
        if given_away.by_field:
            share = f"{len(given_away.by_field)} of {len(some)} facts"
            warnings.warn(
                f"data set {dataset.name}: prompt {name!r} holds the answer already in {share}, where a model only has to copy it",
                stacklevel=2,
            )
