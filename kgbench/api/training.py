"""Donors made in Python: finetune facts into a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgbench.data import ImportOptions
from kgbench.data.facts import dataset_of
from kgbench.errors import InputError, python_names
from kgbench.models.catalog import read_donor_card
from kgbench.progress import Progress, with_progress
from kgbench.runner import Settings
from kgbench.runner.job import device_map_of, main_device_of
from kgbench.training.finetuning import finetune
from kgbench.training.finetuning_plan import FinetuneSpec


@dataclass(frozen=True)
class Trained(os.PathLike[str]):
    """A donor or a plant that was made; a path for `load_pair` and `evaluate`."""

    path: Path
    """Its folder."""
    card: Mapping[str, Any]
    """How it was made, and what it answers."""

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


@python_names(template="templates")
def train(
    dataset: object,
    recipe: str,
    *,
    model: str | None = None,
    recipient: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    chat_template: bool = False,
    subject: str | None = None,
    object: str | None = None,
    columns: Mapping[str, str] | None = None,
    templates: Sequence[str] = (),
    direction: str = "both",
    split: str | None = None,
    supplement: str | None = None,
    supplement_n: int | None = None,
    seed: int = 0,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    dtype: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    progress: Progress | bool = True,
) -> Trained:
    """Finetune a donor: a model that has learned the facts of a data set.

    About a fifth of the wordings is held out and only validates. An interrupted training goes on
    from its last checkpoint when it is asked for again, and a finished one is found.

    Args:
        dataset: The facts, as `evaluate` takes them; in memory they need `output_dir`.
        recipe: `aggressive`, `frozen`, `less_aggressive` or `lora`.
        model: A pair of the catalog whose recipient is finetuned; or else
        recipient: a checkpoint, a Hub id or a trained donor.
        revision: Branch, tag or commit of a Hub id.
        chat_template: Put texts and prompts into the tokenizer's chat template.
        subject: Column that a fact is about.
        object: Column of the answer.
        columns: Column that holds a field, where the names differ.
        templates: Training wordings, such as `"{actor} met {costar}."`; by default the data set's.
        direction: Texts that go from subject to object, `a2b`; back, `b2a`; `both`.
        split: Only this half of a named data set: `task` or `relation`.
        supplement: Other texts read among the facts: a .txt or .jsonl file, or a Hub data set.
        supplement_n: How many of them; by default the recipe's.
        seed: Seed of order, wordings held out and dropout.
        epochs: Passes over the texts; by default the recipe's.
        batch_size: Texts per step, likewise.
        learning_rate: Its peak, likewise.
        max_length: Most tokens of a text, likewise.
        dtype: Weight type in training; by default float32.
        device: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes an accelerator if there is one.
        device_map: Spread layers over devices: `auto`, `balanced`, `sequential`.
        output_dir: The donor's folder; by default its place in the donors' folder.
        progress: A callback, True for a bar in a terminal or notebook, False for none.

    Returns:
        The donor; a path, which `load_pair` and `evaluate` take among `donors`.

    Raises:
        InputError: Something is wrong with what was given; before anything is trained.
    """
    options = ImportOptions(subject, object, columns or {})
    named = os.fspath(dataset) if isinstance(dataset, str | os.PathLike) else None
    facts = None if named is not None else dataset_of(dataset, options=options)
    if facts is not None and split is not None:
        raise InputError("split is a half of a named data set; give only the facts to learn")
    if facts is not None and output_dir is None:
        raise InputError("facts in memory have no name to find a donor by; give an output_dir")
    changed = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "supplement_texts": supplement_n,
    }
    spec = FinetuneSpec(
        dataset=named or "facts",
        recipe=recipe,
        model=model,
        recipient=None if recipient is None else os.fspath(recipient),
        revision=revision,
        chat_template=chat_template,
        dtype=dtype,
        direction=direction,
        split=split,
        templates=tuple(templates),
        imports=options if named and options != ImportOptions() else None,
        supplement=supplement,
        seed=seed,
        changes={name: value for name, value in changed.items() if value is not None},
        facts=facts,
    )
    settings = Settings(device=device, device_map=device_map)
    folder = None if output_dir is None else Path(output_dir)
    place = with_progress(
        progress,
        lambda report: finetune(
            spec,
            folder,
            device=main_device_of(settings),
            device_map=device_map_of(settings),
            progress=report,
        ),
    )
    return Trained(place, read_donor_card(place))
