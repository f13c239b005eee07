"""What a finetuning would take, told before it begins; of a recipient that is not on this machine, as far as the catalog knows it."""

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
from kgbench.numbers import duration_text, plain_text
from kgbench.training import finetuning_models as models
from kgbench.training.finetuning import Finetuning, donor_place, keyed
from kgbench.training.finetuning_plan import FinetuneSpec, Plan, make_plan
from kgbench.training.finetuning_recipes import FinetuningRecipe
from kgbench.training.finetuning_supplement import is_file
from kgbench.training.finetuning_texts import read_batches

__all__ = ["FLOPS", "FinetuningForecast", "forecast"]

_WEIGHTS, _GRADIENTS, _MOMENTS = 4, 4, 8
"""Bytes a parameter, all in fp32; AdamW keeps two moments."""
_KEPT = 2
"""Checkpoints that are kept during a training."""
_CHARACTERS = 4
"""Of a token, where there is no tokenizer at hand; roughly so for English."""
_CUT = 512
"""Tokens of a supplemental text that is not read for a forecast: web pages are mostly longer than what is cut from them."""
FLOPS = {"cuda": 1e14, "mps": 5e12, "cpu": 1e11}
"""Operations a second that are assumed of a device where no step is measured."""
_MEASURED = 500_000_000
"""Largest recipient of which a step is taken on a processor, where more would take minutes."""


@dataclass(frozen=True)
class FinetuningForecast:
    """What a finetuning would take."""

    name: str
    recipe: Mapping[str, Any]
    parameters: int
    """Of the recipient."""
    trained_parameters: int
    texts: int
    """Of one epoch, supplemental ones among them."""
    tokens: int
    """Of all epochs."""
    steps: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    """Activations come on top; they grow with the batch."""
    disk_bytes: int
    """While it is trained: the donor and two checkpoints."""
    donor_bytes: int
    """What of it is kept: the donor."""
    seconds: float
    basis: str
    """Where the figures are from."""

    def rows(self) -> list[tuple[str, str]]:
        """What there is to say, for a table."""
        recipe, most = self.recipe, self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
        sized = ", values for tiny recipients" if recipe["tiny"] else ""
        rate, decay = plain_text(recipe["learning_rate"]), plain_text(recipe["weight_decay"])
        told = f"learning rate {rate}, batch {recipe['batch_size']}, weight decay {decay}"
        lora = f", rank {recipe['rank']}, alpha {recipe['alpha']}" if recipe["rank"] else ""
        parts = f"weights {_size(self.weights_bytes)}, gradients {_size(self.gradients_bytes)}, AdamW {_size(self.optimizer_bytes)}, fp32"
        return [
            ("donor", self.name),
            ("recipe", f"{recipe['name']}{sized}: {told}{lora}"),
            ("parameters", f"{self.parameters:,}, of which {self.trained_parameters:,} are trained")
            if not recipe["rank"]
            else (
                "parameters",
                f"{self.parameters:,}, and {self.trained_parameters:,} of the adapter, which are trained",
            ),
            ("texts", f"{self.texts:,} an epoch"),
            ("tokens", f"{self.tokens:,} in all"),
            ("steps", f"{self.steps:,} ({recipe['epochs']} × {self.steps // recipe['epochs']:,})"),
            ("memory", f"{_size(most)} ({parts}), and activations"),
            ("disk", f"{_size(self.disk_bytes)} while it is trained"),
            ("time", f"about {duration_text(self.seconds)}"),
            ("from", self.basis),
        ]

    def to_json(self) -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        return asdict(self)


def forecast(
    spec: FinetuneSpec, out: Path | None = None, *, device: str = "auto"
) -> FinetuningForecast:
    """Say what a finetuning would take; nothing is downloaded or written.

    Args:
        spec: Which donor.
        out: Its folder.
        device: As for `finetune`.

    Raises:
        InputError: Something is wrong with what was given.
        ModelError: The recipient is neither here nor in the catalog.
    """
    plan, where = make_plan(spec), models.usable_device(device)
    here = find_here(plan.source)
    plan = plan if here is None else keyed(plan, here)
    place = donor_place(plan, out)
    return _from_catalog(plan, where) if here is None else _measured(plan, here, place, where)


def _measured(plan: Plan, recipient: Checkpoint, place: Path, device: str) -> FinetuningForecast:
    begun = Finetuning(plan, recipient, place, device)
    unread = _on_hub(plan)
    if unread:
        begun.supplement = None
    recipe, reading = begun.recipe, begun.reading
    empty = models.empty_model(recipient)
    trained = models.trainable(models.adapted(empty, recipe, 0))
    tokens = reading.tokens + (recipe.supplement_texts * min(_CUT, begun.most) if unread else 0)
    if begun.parameters <= _MEASURED or device == "cuda":
        seconds_per_token, basis = _step_seconds(begun), "a step measured here"
    else:
        seconds_per_token, basis = _assumed(begun.parameters, device)
    return _forecast(
        plan,
        recipe,
        (begun.parameters, trained),
        (len(reading.facts), tokens),
        (seconds_per_token, f"the checkpoint; {basis}"),
    )


def _step_seconds(begun: Finetuning) -> float:
    """Seconds a token of the second of two steps, that of texts of middling length."""
    recipe = begun.recipe
    batches, _, _ = read_batches(begun.reading, 1, recipe.batch_size, begun.plan.spec.seed)
    model = (
        models.adapted(models.load_recipient(begun.recipient), recipe, 0).to(begun.device).train()
    )
    optimizer = torch.optim.AdamW(
        [weight for weight in model.parameters() if weight.requires_grad], lr=0.0
    )
    by_size = sorted(range(len(batches)), key=lambda step: batches[step]["input_ids"].numel())
    seconds, threads = 0.0, torch.get_num_threads()
    torch.set_num_threads(1 if recipe.tiny else threads)
    half = torch.bfloat16 if begun.machine.get("bf16") else torch.float16
    for step in (by_size[0], by_size[len(by_size) // 2]):
        batch = {name: tensor.to(begun.device) for name, tensor in batches[step].items()}
        started = time.monotonic()
        with torch.autocast(
            begun.device, half, enabled=bool(begun.machine.get("bf16") or begun.machine.get("fp16"))
        ):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for a GPU
        seconds = (time.monotonic() - started) / batch["input_ids"].numel()
    torch.set_num_threads(threads)
    return seconds


def _from_catalog(plan: Plan, device: str) -> FinetuningForecast:
    entry = catalog.entry(plan.spec.model) if plan.spec.model else None
    if entry is None or entry.parameters is None or entry.layers is None:
        raise ModelError(
            f"{plan.source!r} is neither on this machine nor in the catalog, so that its size is unknown; download it first"
        )
    recipe = plan.recipe(entry.parameters)
    # A layer of twelve squares of the width, as in GPT-2; an adapter adds a row and a column to each of its projections.
    width = sqrt(entry.parameters / (12 * entry.layers))
    trained = (
        entry.parameters if recipe.rank is None else round(18 * width * entry.layers * recipe.rank)
    )
    tokens = sum(len(text) for text in plan.wordings.trained) // _CHARACTERS + _supplement_tokens(
        plan, recipe
    )
    seconds, basis = _assumed(entry.parameters, device)
    told = f"the catalog's number of parameters and {_CHARACTERS} characters a token, since {plan.source} is not on this machine; {basis}"
    return _forecast(
        plan,
        recipe,
        (entry.parameters, trained),
        (len(plan.wordings.trained), tokens),
        (seconds, told),
    )


def _on_hub(plan: Plan) -> bool:
    """Whether the supplement is a data set on the Hub, of which nothing is read for a forecast."""
    return plan.spec.supplement is not None and not is_file(plan.spec.supplement)


def _supplement_tokens(plan: Plan, recipe: FinetuningRecipe) -> int:
    """Tokens of the supplemental texts, where there is no tokenizer at hand."""
    if _on_hub(plan):
        return recipe.supplement_texts * min(_CUT, recipe.max_length)
    found = plan.supplement(recipe)
    return (
        sum(min(len(text) // _CHARACTERS, recipe.max_length) for text in found.texts)
        if found
        else 0
    )


def _assumed(parameters: int, device: str) -> tuple[float, str]:
    """Seconds a token, and the assumption behind them: six operations a parameter and token (arXiv 2001.08361)."""
    return 6 * parameters / FLOPS[
        device
    ], f"no step was measured: {FLOPS[device] / 1e12:g} Tflop/s assumed on {device}"


def _forecast(
    plan: Plan,
    recipe: FinetuningRecipe,
    parameters: tuple[int, int],
    texts: tuple[int, int],
    time: tuple[float, str],
) -> FinetuningForecast:
    """Args: parameters in all and trained; texts of the facts, and tokens of an epoch; seconds a token, and where figures are from."""
    total, trained = parameters
    read = texts[0] + recipe.supplement_texts
    stored = _WEIGHTS * trained
    cut = (
        f"; supplemental texts taken at {min(_CUT, recipe.max_length)} tokens"
        if _on_hub(plan)
        else ""
    )
    return FinetuningForecast(
        name=plan.name,
        recipe=asdict(recipe),
        parameters=total,
        trained_parameters=trained,
        texts=read,
        tokens=texts[1] * recipe.epochs,
        steps=ceil(read / recipe.batch_size) * recipe.epochs,
        weights_bytes=_WEIGHTS * total + (0 if recipe.rank is None else _WEIGHTS * trained),
        gradients_bytes=_GRADIENTS * trained,
        optimizer_bytes=_MOMENTS * trained,
        disk_bytes=stored + _KEPT * (stored + _MOMENTS * trained),
        donor_bytes=stored,
        seconds=time[0] * texts[1] * recipe.epochs,
        basis=time[1] + cut,
    )


def _size(n: int) -> str:
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"
