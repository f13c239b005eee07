"""Documents of lm-eval tasks: facts in one prompt, with character spans and candidates."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgbench.data import Dataset, Prompt, dataset_names, load_dataset, load_prompts, prompt_hash
from kgbench.errors import InputError

if TYPE_CHECKING:
    import datasets

CANDIDATES = 10
"""Names to choose from: the right one and others of the data set; fewer where it has fewer."""

LOADED: dict[tuple[str, str], tuple[str, str, str]] = {}
"""Data set's name, prompt and fingerprint of what this process loaded last, by source and prompt.

A source is a shipped data set or a file.
"""


def identity(doc: Mapping[str, Any]) -> tuple[str, str, str]:
    """Data set's name, prompt and fingerprint of a row."""
    return doc["dataset"], doc["prompt"], doc["fingerprint"]


def load(
    kgbench_dataset: str, kgbench_prompt: str, config_source: str | None = None, **_: Any
) -> dict[str, datasets.Dataset]:
    """Load the documents of a task; the function that its `custom_dataset` names.

    Args:
        kgbench_dataset: A shipped data set, or a user's file; a relative path starts at the folder
            of the task's YAML.
        kgbench_prompt: A built-in prompt, or one of the data set's own.
        config_source: The task's YAML, given by lm-eval.
        **_: Arguments of the model, which lm-eval passes to tasks as well.

    Returns:
        The documents, as the split ``test``.

    Raises:
        UnknownNameError: No such data set or prompt.
        InputError: The data do not read, or the prompt does not fit them.
    """
    from datasets import Dataset as Table

    source = kgbench_dataset
    if source not in dataset_names() and config_source:
        file = Path(config_source).parent / source
        source = str(file) if file.is_file() else source
    documents = rows(load_dataset(source), kgbench_prompt)
    LOADED[source, kgbench_prompt] = identity(documents[0])
    return {"test": Table.from_list(documents)}


def rows(dataset: Dataset, prompt: str) -> list[dict[str, Any]]:
    """The documents of one data set and one prompt, in the order of the facts.

    Returns:
        Per fact `id`, `dataset`, `prompt`, `fingerprint`, `subject`, `object`, `query` (the
        prompt's text), `target` (a blank and the object), `spans` (per region its [start, end)
        characters in the query), `candidates` and `gold` (index of the object in them).

    Raises:
        UnknownNameError: No such prompt.
        InputError: The prompt does not fit the data set.
    """
    objects = dataset.answers
    mark = data_fingerprint(dataset, prompt)
    prompts = load_prompts(dataset, [prompt])
    if any(filled.messages for filled in prompts):
        raise InputError(
            f"prompt {prompt!r} of data set {dataset.name!r} has messages, and a task of lm-eval "
            "asks one text; evaluate it by kgbench eval --chat-template"
        )
    return [_row(filled, dataset, mark, objects) for filled in prompts]


def data_fingerprint(dataset: Dataset, prompt: str) -> str:
    """SHA-256, in hexadecimal, over the content of a data set and the text of a prompt.

    Raises:
        UnknownNameError: No such prompt.
    """
    return hashlib.sha256(
        f"{dataset.content_hash} {prompt_hash(prompt, dataset)}".encode()
    ).hexdigest()


def gold(doc: Mapping[str, Any]) -> int:
    """Index of the right candidate: a number, since lm-eval takes a name of digits for an index."""
    return int(doc["gold"])


def _row(prompt: Prompt, dataset: Dataset, mark: str, objects: Sequence[str]) -> dict[str, Any]:
    # The right object among others, drawn and ordered by the fact's id alone.
    generator = random.Random(prompt.fact.id)
    drawn = generator.sample(objects, min(CANDIDATES, len(objects)))
    candidates = [name for name in drawn if name != prompt.target][: CANDIDATES - 1]
    candidates.insert(generator.randrange(len(candidates) + 1), prompt.target)
    return {
        "id": prompt.fact.id,
        "dataset": dataset.name,
        "prompt": prompt.name,
        "fingerprint": mark,
        "subject": prompt.fact.fields.get(dataset.subject, ""),
        "object": prompt.target,
        "query": prompt.text,
        "target": f" {prompt.target}",
        "spans": {region: list(span) for region, span in prompt.spans.items()},
        "candidates": candidates,
        "gold": candidates.index(prompt.target),
    }
