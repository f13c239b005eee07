"""kgbench in Inspect: `inspect eval kgbench/facts`."""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import choice, includes
from inspect_ai.solver import generate, multiple_choice

from kgbench.data import fitting_prompts, load_dataset, prompt_names
from kgbench.errors import InputError
from kgbench.harness.rows import rows


@task
def facts(dataset: str = "tiny_movies", prompt: str | None = None, choices: bool = False) -> Task:
    """Facts in one prompt: is the object in what a model writes, or chosen among ten?

    Args:
        dataset: A shipped data set, or a file of one's own.
        prompt: A prompt that fits it.  [default: its first template, or qa]
        choices: Whether it is chosen among names of the data set.

    Raises:
        UnknownNameError: No such data set or prompt.
        InputError: The data do not read, or the prompt does not fit them.
    """
    data = load_dataset(dataset)
    fitting = (*data.templates, *fitting_prompts(data, ("qa", *prompt_names())))
    if prompt is None and not fitting:
        raise InputError(f"no prompt fits {dataset!r}: give it a template, by kgbench data import")
    samples = []
    for row in rows(data, prompt or fitting[0]):
        target = chr(ord("A") + row["gold"]) if choices else row["object"]
        metadata = {name: row[name] for name in ("dataset", "prompt", "fingerprint", "subject")}
        offered = row["candidates"] if choices else None
        samples.append(Sample(row["query"], offered, target, row["id"], metadata))
    return Task(
        dataset=MemoryDataset(samples, data.name),
        solver=multiple_choice() if choices else generate(),
        scorer=choice() if choices else includes(),
    )
