"""Which tasks kgbench ships: every data set times every prompt, built-in or its own, that it can fill, in each form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kgbench.data import Dataset, dataset_names, load_dataset, load_prompts, prompt_names
from kgbench.errors import InputError

__all__ = ["FORMS", "Entry", "shipped"]

FORMS: Mapping[str, str] = MappingProxyType(
    {"loglikelihood": "", "choices": "_choices", "effects": "_effects"}
)
"""The forms of a task, with what follows their names."""


@dataclass(frozen=True)
class Entry:
    """A shipped task."""

    name: str
    dataset: str
    prompt: str
    form: str
    """A key of `FORMS`."""
    tags: tuple[str, ...]
    """What else `--tasks` may call it by: all tasks of its form, and those of its data set."""
    documents: int


def shipped() -> tuple[Entry, ...]:
    """All shipped tasks, by data set, prompt and form."""
    datasets = [load_dataset(name) for name in dataset_names()]
    return tuple(
        _entry(data, prompt, form)
        for data in datasets
        for prompt in _prompts(data)
        for form in FORMS
    )


def _prompts(dataset: Dataset) -> tuple[str, ...]:
    return (*(prompt for prompt in prompt_names() if _fits(dataset, prompt)), *dataset.templates)


def _fits(dataset: Dataset, prompt: str) -> bool:
    """Whether the data set has the fields that a prompt needs."""
    try:
        load_prompts(dataset, [prompt], limit=1)
    except InputError:
        return False
    return True


def _entry(dataset: Dataset, prompt: str, form: str) -> Entry:
    ending = FORMS[form]
    tags = (f"kgbench{ending}", f"kgbench_{dataset.name}{ending}")
    return Entry(
        f"kgbench_{dataset.name}_{prompt}{ending}",
        dataset.name,
        prompt,
        form,
        tags,
        len(dataset.facts),
    )
