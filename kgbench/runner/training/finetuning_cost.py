"""Cost of a finetuning before it is trained: from the checkpoint, or from the catalog."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kgbench.errors import ModelError
from kgbench.models import catalog
from kgbench.models.checkpoints import find_here
from kgbench.models.library import quiet_library
from kgbench.models.loading import DTYPES
from kgbench.models.placement import DeviceMap, usable_device
from kgbench.numbers import plain_text
from kgbench.runner.costs import Cost, assumed_seconds, download_bytes, room
from kgbench.runner.training.finetuning import Finetuning, donor_place
from kgbench.runner.training.finetuning_plan import (
    FinetuneSpec,
    FinetuningPlan,
    plan_finetuning,
    read_batches,
)
from kgbench.runner.training.model_setup import trainable_model, trained_parameters
from kgbench.runner.training.recipes import FinetuningRecipe
from kgbench.runner.training.stages import StageRun, Training, processor_threads

_KEPT = 2
"""Checkpoints on disk during a training."""
_CHARACTERS = 4
"""Characters per token where there is no tokenizer at hand; approximate for English."""
_MEASURED = 500_000_000
"""Largest recipient of which a step is measured on a CPU, where more would take minutes."""
_OPERATIONS = 6
"""Operations per weight and token in a step (arXiv 2001.08361)."""


def finetuning_cost(
    spec: FinetuneSpec,
    out: Path | None = None,
    *,
    device: str = "auto",
    device_map: DeviceMap | None = None,
) -> Cost:
    """Cost of a finetuning; nothing is downloaded or written.

    Args:
        spec: Which donor.
        out: Its folder.
        device: As for `finetune`.
        device_map: As for `finetune`.

    Raises:
        InputError: The input cannot be used.
        ModelError: The recipient is neither on this machine nor in the catalog.
    """
    plan, where = plan_finetuning(spec), usable_device(device)
    recipient = find_here(plan.source, spec.revision)
    if recipient is None:
        donor_place(plan, out)
        return _assumed_cost(plan, where, device_map)
    finetuning = Finetuning(plan, recipient, out, where, device_map)
    recipe, dtype, parameters = finetuning.recipe, finetuning.dtype, finetuning.parameters
    trained = trained_parameters(trainable_model(finetuning.empty, recipe, 0))
    if parameters <= _MEASURED or torch.device(where).type == "cuda":
        speed = _step_seconds(finetuning), "the checkpoint; a step measured here"
    else:
        each, basis = assumed_seconds(_OPERATIONS * parameters, where)
        speed = each, f"the checkpoint; no step was measured: {basis}"
    place = room(where, device_map, dtype)
    return _cost(
        finetuning.plan, recipe, (parameters, trained), finetuning.texts.tokens, speed, dtype, place
    )


def _step_seconds(finetuning: Finetuning) -> float:
    """Seconds per token of the second of two steps, which has texts of some length."""
    recipe, seed = finetuning.recipe, finetuning.plan.spec.seed
    batches, _ = read_batches(finetuning.texts, 1, recipe.batch_size, seed)
    model = trainable_model(finetuning.model(finetuning.dtype), recipe, seed)
    run = StageRun(Path(), seed, device=finetuning.device, half=finetuning.half)
    threads = processor_threads(1 if recipe.tiny else None)
    with quiet_library(), threads, torch.random.fork_rng(devices=[]):
        training = Training(model, recipe.stage, len(batches), run)
        for number in (0, len(batches) // 2):
            batch, started = batches[number], time.monotonic()
            training.step(batch)[0].item()  # waits for a GPU
            seconds = (time.monotonic() - started) / batch["input_ids"].numel()
    return seconds


def _assumed_cost(plan: FinetuningPlan, device: str, device_map: DeviceMap | None) -> Cost:
    """Cost of a catalog pair that is not on this machine."""
    entry = catalog.entry(plan.spec.model) if plan.spec.model else None
    if entry is None or entry.parameters is None or entry.layers is None:
        raise ModelError(
            f"{plan.source!r} is neither on this machine nor in the catalog, "
            "so that its size is unknown; download it first"
        )
    recipe, trained = plan.recipe(entry.parameters), entry.parameters
    if recipe.frozen:
        assert entry.vocabulary is not None and entry.width is not None
        trained -= entry.vocabulary * entry.width * (1 if entry.tied else 2)
    if recipe.rank is not None:
        # A layer has 12 squares of the width, as in GPT-2; an adapter adds a row and a column to
        # each of its projections.
        width = math.sqrt(entry.parameters / (12 * entry.layers))
        trained = round(18 * width * entry.layers * recipe.rank)
    tokens = sum(map(len, plan.wordings.trained)) // _CHARACTERS
    supplement = plan.supplement(recipe)
    for text in supplement.texts if supplement else ():
        tokens += min(len(text) // _CHARACTERS, recipe.max_length)
    each, basis = assumed_seconds(_OPERATIONS * entry.parameters, device)
    basis = (
        f"the catalog's number of parameters and {_CHARACTERS} characters a token, since "
        f"{plan.source} is not on this machine; no step was measured: {basis}"
    )
    name = plan.spec.dtype or "float32"
    dtype = DTYPES[str(entry.stored) if name == "auto" else name]
    place = room(device, device_map, dtype)
    parameters, speed, download = (entry.parameters, trained), (each, basis), download_bytes(entry)
    return _cost(plan, recipe, parameters, tokens, speed, dtype, place, download)


def _cost(
    plan: FinetuningPlan,
    recipe: FinetuningRecipe,
    parameters: tuple[int, int],
    tokens: int,
    speed: tuple[float, str],
    dtype: torch.dtype,
    place: Mapping[str, Any],
    download: int = 0,
) -> Cost:
    """Derive the figures.

    Args:
        plan: The plan.
        recipe: The recipe.
        parameters: Number of parameters, and of trained ones.
        tokens: Tokens of an epoch.
        speed: Seconds per token, and their basis.
        dtype: Type of the weights.
        place: As `room` gives it.
        download: Bytes of the recipient, where it is not here.
    """
    (total, trained), (each, basis) = parameters, speed
    texts, stored = len(plan.wordings.trained) + recipe.supplement_texts, dtype.itemsize * trained
    sized = " with values for tiny recipients" if recipe.tiny else ""
    rank = f", rank {recipe.rank}, alpha {recipe.alpha}" if recipe.rank else ""
    values = (
        f"learning rate {plain_text(recipe.learning_rate)}, batch {recipe.batch_size}, "
        f"weight decay {plain_text(recipe.weight_decay)}{rank}"
    )
    if recipe.rank is None:
        place = {**place, "savings": ("--recipe lora", *place["savings"])}
    return Cost(
        plan.name,
        each * tokens * recipe.epochs,
        f"the recipe {recipe.name}{sized} ({values}); {basis}; activations, which grow with "
        "the batch, are not counted",
        {
            "parameters": total,
            "trained_parameters": trained,
            "texts": texts,
            "epochs": recipe.epochs,
            "tokens": tokens * recipe.epochs,
            "steps": math.ceil(texts / recipe.batch_size) * recipe.epochs,
        },
        {
            "weights": dtype.itemsize * total + (0 if recipe.rank is None else stored),
            "gradients": stored,
            "AdamW": 2 * stored,
        },
        disk=stored + _KEPT * 3 * stored,  # the donor, and weights and moments of checkpoints
        download=download,
        **place,
    )
