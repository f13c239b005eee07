"""Forecast of a finetuning: steps, tokens, memory, time and disk, without training or downloads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from pathlib import Path
from typing import Any

import torch

from kgbench.errors import ModelError
from kgbench.models import catalog
from kgbench.models.checkpoints import Checkpoint, find_here
from kgbench.models.placement import FLOPS, usable_device
from kgbench.numbers import duration_text, plain_text
from kgbench.training.finetuning import Finetuning, donor_place, keyed_plan
from kgbench.training.finetuning_plan import (
    FinetuneSpec,
    FinetuningPlan,
    is_file,
    plan_finetuning,
    read_batches,
)
from kgbench.training.model_setup import (
    load_recipient,
    meta_model,
    trainable_model,
    trained_parameters,
)
from kgbench.training.recipes import FinetuningRecipe
from kgbench.training.stages import precision

__all__ = ["FinetuningForecast", "forecast_finetuning"]

_WEIGHTS, _GRADIENTS, _MOMENTS = 4, 4, 8
"""Bytes per parameter, all in fp32; AdamW has two moments."""
_KEPT = 2
"""Checkpoints on disk during a training."""
_CHARACTERS = 4
"""Characters per token where there is no tokenizer at hand; approximate for English."""
_CUT = 512
"""Assumed tokens of a supplemental text on the Hub: web pages are mostly longer, and cut."""
_MEASURED = 500_000_000
"""Largest recipient of which a step is measured on a CPU, where more would take minutes."""


@dataclass(frozen=True)
class FinetuningForecast:
    """What a finetuning would take."""

    name: str
    recipe: Mapping[str, Any]
    parameters: int
    """Number of the recipient's weights."""
    trained_parameters: int
    texts: int
    """Texts of one epoch, including supplemental ones."""
    tokens: int
    """Tokens of all epochs."""
    steps: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    """Activations come on top; they grow with the batch."""
    disk_bytes: int
    """During the training: the donor and two checkpoints."""
    donor_bytes: int
    """After the training: the donor."""
    seconds: float
    basis: str
    """Source of the figures."""

    def rows(self) -> list[tuple[str, str]]:
        """Rows of a table."""
        recipe, rank = self.recipe, self.recipe["rank"]
        memory = self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        sized = ", values for tiny recipients" if recipe["tiny"] else ""
        settings = (
            f"learning rate {plain_text(recipe['learning_rate'])}, batch {recipe['batch_size']}, "
            f"weight decay {plain_text(recipe['weight_decay'])}"
        )
        lora = f", rank {rank}, alpha {recipe['alpha']}" if rank else ""
        trained = (
            f"and {self.trained_parameters:,} of the adapter, which are trained"
            if rank
            else f"of which {self.trained_parameters:,} are trained"
        )
        parts = (
            f"weights {_size(self.weights_bytes)}, gradients {_size(self.gradients_bytes)}, "
            f"AdamW {_size(self.optimizer_bytes)}, fp32"
        )
        return [
            ("donor", self.name),
            ("recipe", f"{recipe['name']}{sized}: {settings}{lora}"),
            ("parameters", f"{self.parameters:,}, {trained}"),
            ("texts", f"{self.texts:,} an epoch"),
            ("tokens", f"{self.tokens:,} in all"),
            ("steps", f"{self.steps:,} ({recipe['epochs']} × {self.steps // recipe['epochs']:,})"),
            ("memory", f"{_size(memory)} ({parts}), and activations"),
            ("disk", f"{_size(self.disk_bytes)} while it is trained"),
            ("time", f"about {duration_text(self.seconds)}"),
            ("from", self.basis),
        ]

    def to_json(self) -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        return asdict(self)


def forecast_finetuning(
    spec: FinetuneSpec, out: Path | None = None, *, device: str = "auto"
) -> FinetuningForecast:
    """Forecast a finetuning; nothing is downloaded or written.

    Args:
        spec: Which donor.
        out: Its folder.
        device: As for `finetune`.

    Raises:
        InputError: The input cannot be used.
        ModelError: The recipient is neither on this machine nor in the catalog.
    """
    plan, where = plan_finetuning(spec), usable_device(device)
    recipient = find_here(plan.source)
    if recipient is None:
        donor_place(plan, out)
        return _from_catalog(plan, where)
    plan = keyed_plan(plan, recipient)
    return _from_checkpoint(plan, recipient, donor_place(plan, out), where)


def _from_checkpoint(
    plan: FinetuningPlan, recipient: Checkpoint, place: Path, device: str
) -> FinetuningForecast:
    finetuning = Finetuning(plan, recipient, place, device)
    recipe, on_hub = finetuning.recipe, _is_on_hub(plan)
    if on_hub:
        finetuning.supplement = None  # its texts are not downloaded for a forecast
    texts = finetuning.texts
    trained = trained_parameters(trainable_model(meta_model(recipient), recipe, 0))
    tokens = texts.tokens
    if on_hub:
        tokens += recipe.supplement_texts * min(_CUT, finetuning.max_length)
    if finetuning.parameters <= _MEASURED or torch.device(device).type == "cuda":
        seconds, basis = _step_seconds(finetuning), "a step measured here"
    else:
        seconds, basis = _assumed_seconds(finetuning.parameters, device)
    return _forecast(
        plan,
        recipe,
        (finetuning.parameters, trained),
        (len(texts.facts), tokens),
        (seconds, f"the checkpoint; {basis}"),
    )


def _step_seconds(finetuning: Finetuning) -> float:
    """Seconds per token of the second of two steps, one with texts of median length."""
    recipe, device = finetuning.recipe, finetuning.device
    batches, _, _ = read_batches(finetuning.texts, 1, recipe.batch_size, finetuning.plan.spec.seed)
    model = trainable_model(load_recipient(finetuning.recipient), recipe, 0).to(device).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0)
    by_size = sorted(range(len(batches)), key=lambda step: batches[step]["input_ids"].numel())
    seconds, threads = 0.0, torch.get_num_threads()
    torch.set_num_threads(1 if recipe.tiny else threads)
    half = precision(device)
    kind = torch.bfloat16 if half.get("bf16") else torch.float16
    for step in (by_size[0], by_size[len(by_size) // 2]):
        batch = {name: tensor.to(device) for name, tensor in batches[step].items()}
        started = time.monotonic()
        with torch.autocast(torch.device(device).type, kind, enabled=any(half.values())):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for a GPU
        seconds = (time.monotonic() - started) / batch["input_ids"].numel()
    torch.set_num_threads(threads)
    return seconds


def _from_catalog(plan: FinetuningPlan, device: str) -> FinetuningForecast:
    entry = catalog.entry(plan.spec.model) if plan.spec.model else None
    if entry is None or entry.parameters is None or entry.layers is None:
        raise ModelError(
            f"{plan.source!r} is neither on this machine nor in the catalog, "
            "so that its size is unknown; download it first"
        )
    recipe, trained = plan.recipe(entry.parameters), entry.parameters
    if recipe.rank is not None:
        # A layer has 12 squares of the width, as in GPT-2; an adapter adds a row and a column to
        # each of its projections.
        width = sqrt(entry.parameters / (12 * entry.layers))
        trained = round(18 * width * entry.layers * recipe.rank)
    tokens = sum(map(len, plan.wordings.trained)) // _CHARACTERS + _supplement_tokens(plan, recipe)
    seconds, basis = _assumed_seconds(entry.parameters, device)
    return _forecast(
        plan,
        recipe,
        (entry.parameters, trained),
        (len(plan.wordings.trained), tokens),
        (
            seconds,
            f"the catalog's number of parameters and {_CHARACTERS} characters a token, "
            f"since {plan.source} is not on this machine; {basis}",
        ),
    )


def _is_on_hub(plan: FinetuningPlan) -> bool:
    """Whether the supplement is a data set on the Hub."""
    return plan.spec.supplement is not None and not is_file(plan.spec.supplement)


def _supplement_tokens(plan: FinetuningPlan, recipe: FinetuningRecipe) -> int:
    """Tokens of the supplemental texts, where there is no tokenizer at hand."""
    if _is_on_hub(plan):
        return recipe.supplement_texts * min(_CUT, recipe.max_length)
    supplement, tokens = plan.supplement(recipe), 0
    for text in supplement.texts if supplement else ():
        tokens += min(len(text) // _CHARACTERS, recipe.max_length)
    return tokens


def _assumed_seconds(parameters: int, device: str) -> tuple[float, str]:
    """Seconds per token at 6 operations per parameter and token (arXiv 2001.08361)."""
    kind = torch.device(device).type
    basis = f"no step was measured: {FLOPS[kind] / 1e12:g} Tflop/s assumed on {kind}"
    return 6 * parameters / FLOPS[kind], basis


def _forecast(
    plan: FinetuningPlan,
    recipe: FinetuningRecipe,
    parameters: tuple[int, int],
    texts: tuple[int, int],
    time: tuple[float, str],
) -> FinetuningForecast:
    """Derive the figures.

    Args:
        plan: The plan.
        recipe: The recipe.
        parameters: Number of parameters, and of trained ones.
        texts: Texts of the facts, and tokens of an epoch.
        time: Seconds per token, and their basis.
    """
    total, trained = parameters
    stored, steps_texts = _WEIGHTS * trained, texts[0] + recipe.supplement_texts
    seconds, basis = time
    if _is_on_hub(plan):
        basis += f"; supplemental texts taken at {min(_CUT, recipe.max_length)} tokens"
    return FinetuningForecast(
        name=plan.name,
        recipe=asdict(recipe),
        parameters=total,
        trained_parameters=trained,
        texts=steps_texts,
        tokens=texts[1] * recipe.epochs,
        steps=ceil(steps_texts / recipe.batch_size) * recipe.epochs,
        weights_bytes=_WEIGHTS * total + (0 if recipe.rank is None else stored),
        gradients_bytes=_GRADIENTS * trained,
        optimizer_bytes=_MOMENTS * trained,
        disk_bytes=stored + _KEPT * (stored + _MOMENTS * trained),
        donor_bytes=stored,
        seconds=seconds * texts[1] * recipe.epochs,
        basis=basis,
    )


def _size(n: int) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"
