"""Documents of lm-eval tasks: the facts of a data set filled into one prompt, with character spans and candidates."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgbench.data import Dataset, Prompt, dataset_names, load_dataset, load_prompts, prompt_hash

if TYPE_CHECKING:
    import datasets

__all__ = ["CANDIDATES", "LOADED", "fingerprint", "gold", "load", "rows"]

CANDIDATES = 10
"""How many names a document offers to choose from: the right one, and others of the data set; fewer where it has fewer."""

LOADED: dict[tuple[str, str], tuple[str, str]] = {}
"""Of what this process has loaded last from each data set or file and with each prompt, the data set's name and the fingerprint."""


def load(
    kgbench_dataset: str, kgbench_prompt: str, config_source: str | None = None, **_: Any
) -> dict[str, datasets.Dataset]:
    """What a task's `custom_dataset` names; the two names stand in its `dataset_kwargs`.

    Args:
        kgbench_dataset: A shipped data set, or a user's file; a relative path starts at the folder of the task's YAML.
        kgbench_prompt: A built-in prompt, or one of the data set's own.
        config_source: The task's YAML; lm-eval says so.
        **_: The model's arguments, which lm-eval hands to tasks as well.

    Returns:
        The documents, as the split ``test``.

    Raises:
        UnknownNameError: No such data set or prompt.
        InputError: The data do not read, or the prompt does not fit them.
    """
    from datasets import Dataset as Table

    name = kgbench_dataset
    if (
        name not in dataset_names()
        and config_source
        and (beside := Path(config_source).parent / name).is_file()
    ):
        name = str(beside)
    made = rows(load_dataset(name), kgbench_prompt)
    LOADED[name, kgbench_prompt] = made[0]["dataset"], made[0]["fingerprint"]
    return {"test": Table.from_list(made)}


def rows(dataset: Dataset, prompt: str) -> list[dict[str, Any]]:
    """The documents of one data set and one prompt, in the order of the facts.

    Returns:
        Per fact `id`, `dataset`, `prompt`, `fingerprint`, `subject`, `object`, `query` (the prompt's text), `target` (a blank and the
        object), `spans` (per region its [start, end) characters in the query), `candidates` and `gold` (index of the object in them).

    Raises:
        UnknownNameError: No such prompt.
        InputError: The prompt does not fit the data set.
    """
    objects = list(dict.fromkeys(fact.fields[dataset.object] for fact in dataset.facts))
    mark = fingerprint(dataset, prompt)
    return [_row(filled, dataset, mark, objects) for filled in load_prompts(dataset, [prompt])]


def fingerprint(dataset: Dataset, prompt: str) -> str:
    """SHA-256, in hexadecimal, over the content of a data set and the text of a prompt.

    Raises:
        UnknownNameError: No such prompt.
    """
    return hashlib.sha256(
        f"{dataset.content_hash} {prompt_hash(prompt, dataset)}".encode()
    ).hexdigest()


def gold(doc: Mapping[str, Any]) -> int:
    """A document's right answer by its place among the candidates: a number, so that no name of digits can be taken for one."""
    return int(doc["gold"])


def _row(prompt: Prompt, dataset: Dataset, mark: str, objects: Sequence[str]) -> dict[str, Any]:
    candidates = _candidates(prompt.fact.id, prompt.target, objects)
    return {
        "id": prompt.fact.id,
        "dataset": dataset.name,
        "prompt": prompt.name,
        "fingerprint": mark,
        "subject": prompt.fact.fields[dataset.subject],
        "object": prompt.target,
        "query": prompt.text,
        "target": f" {prompt.target}",
        "spans": {region: list(span) for region, span in prompt.spans.items()},
        "candidates": candidates,
        "gold": candidates.index(prompt.target),
    }


def _candidates(identifier: str, right: str, objects: Sequence[str]) -> list[str]:
    """The right object among others, drawn and ordered by the fact's id alone."""
    generator = random.Random(identifier)
    drawn = generator.sample(objects, min(CANDIDATES, len(objects)))
    others = [name for name in drawn if name != right][: CANDIDATES - 1]
    others.insert(generator.randrange(len(others) + 1), right)
    return others
