"""Finetune a donor: from its specification to a folder with its weights, its card and its log.

What is unfinished is in a folder next to the donor's place, where the donor appears complete. A
forecast is of what a training would take, without training or downloads.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from kgbench.data import Dataset
from kgbench.data.facts import hash_of
from kgbench.errors import InputError, OutputError
from kgbench.models.catalog import CARD, donors_folder
from kgbench.models.checkpoints import Checkpoint, locate
from kgbench.models.loading import read_tokenizer
from kgbench.models.placement import (
    DeviceMap,
    devices_of,
    free_memory,
    place,
    usable_device,
)
from kgbench.models.tensors import stored_hash
from kgbench.numbers import number_text, plain_text
from kgbench.progress import Progress
from kgbench.runner.training.finetuning_plan import (
    FinetuneSpec,
    FinetuningPlan,
    Supplement,
    TokenizedTexts,
    plan_finetuning,
    read_batches,
    tokenized_texts,
)
from kgbench.runner.training.hit_rates import SCORED, model_hits, scored_prompts
from kgbench.runner.training.model_setup import (
    family_of,
    load_recipient,
    meta_model,
    store_donor,
    trainable_model,
    trained_parameters,
    training_type,
)
from kgbench.runner.training.resumable_build import Build, versions, write_card
from kgbench.runner.training.stages import HELD_OUT_LOSS, SAVE_EVERY, StageOutcome, half_type

LOG = "log.jsonl"
"""File next to the card with the loss of every step."""
WORDING = "wording"
"""Name of the prompt that a training wording makes, where facts have no other."""
_LEARNED = 0.5
"""Share of the facts not known before that a donor has learned if it learned them."""

_COPIES = 4
"""Weights, gradients and two moments of AdamW, all of one type."""


# ---------------------------------------------------------------------------------------- training


def finetune(
    spec: FinetuneSpec,
    out: Path | None = None,
    *,
    device: str = "auto",
    device_map: DeviceMap | None = None,
    progress: Progress | None = None,
    save_every: int = SAVE_EVERY,
) -> Path:
    """Train a donor, or resume training it.

    Args:
        spec: Which donor.
        out: Its folder; by default its place in the donors' folder.
        device: `auto`, or a torch device such as `cpu`, `mps` or `cuda:1`.
        device_map: Over which devices the layers are spread, as for `read_pair`; `device` is then
            the main one.
        progress: Progress callback.
        save_every: Steps between checkpoints, at least.

    Returns:
        The folder.

    Raises:
        InputError: The input cannot be used; before anything is trained or written.
        OutputError: The folder holds something else, or cannot be written.
    """
    plan, where = plan_finetuning(spec), usable_device(device)
    finetuning = Finetuning(plan, locate(plan.source, spec.revision), out, where, device_map)
    out, about = finetuning.out, finetuning.about  # finds wrong input before anything is written
    build = Build(out, finetuning.work, "the donor", about, progress, save_every)
    build.run(lambda: finetuning.train(build))
    return out


def learned_little(card: Mapping[str, Any]) -> str | None:
    """Warn where on no prompt a donor answers half of the facts that its recipient did not.

    Args:
        card: The donor's.

    Returns:
        The warning; None where it learned the facts, or nothing was scored.
    """
    texts, little = [], bool(card["scores"])
    for prompt, row in card["scores"].items():
        before, after = row["PRE"], row["SFT"]
        little = little and after - before < _LEARNED * (1 - before)
        texts.append(f"{number_text(before)} → {number_text(after)} on {prompt}")
    if not little:
        return None
    recipe = card["recipe"]
    return (
        f"the donor learned little: top-5 {', '.join(texts)}; more epochs than {recipe['epochs']}, "
        f"or a learning rate above {plain_text(recipe['learning_rate'])}, teach it more"
    )


def donor_place(plan: FinetuningPlan, out: Path | None) -> Path:
    """Folder of a donor.

    Raises:
        OutputError: It holds something else.
    """
    folder = (donors_folder() / plan.name if out is None else out).absolute()
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not empty and not (folder / CARD).is_file():
        raise OutputError(
            f"{folder} holds something else than a trained donor; "
            "give a new folder with --output-dir"
        )
    return folder


class Finetuning:
    """One training."""

    def __init__(
        self,
        plan: FinetuningPlan,
        recipient: Checkpoint,
        out: Path | None,
        device: str,
        device_map: DeviceMap | None = None,
    ) -> None:
        if plan.spec.model is None:  # the name of a folder does not identify a recipient
            owner, _, donor = plan.name.partition("/")
            weights = stored_hash(recipient.directory)
            plan = replace(plan, name=f"{owner}-{weights[:8]}/{donor}")
        self.plan, self.recipient = plan, recipient
        self.out = donor_place(self.plan, out)
        self.device, self.device_map = device, device_map
        self.dtype = training_type(recipient, plan.spec.dtype)
        # Products of float32 weights alone are computed in half precision.
        self.half = half_type(device) if self.dtype == torch.float32 else None
        self.work = self.out.with_name(f".{self.out.name}.work")
        self.empty = meta_model(recipient)
        self.parameters = trained_parameters(self.empty)
        self.recipe = plan.recipe(self.parameters, str(recipient.config.get("model_type")))
        self.tokenizer = read_tokenizer(recipient)
        limit = getattr(self.empty.config, "max_position_embeddings", None)
        self.max_length = min(self.recipe.max_length, limit or self.recipe.max_length)

    @cached_property
    def texts(self) -> TokenizedTexts:
        """All tokens."""
        texts = self.supplement.texts if self.supplement else ()
        wordings, chat = self.plan.wordings, self.plan.spec.chat_template
        return tokenized_texts(self.tokenizer, wordings, texts, self.max_length, chat)

    @cached_property
    def questions(self) -> Dataset:
        """The facts with the prompts that score a donor; of none a wording up to its object."""
        facts, question = self.plan.facts, self.plan.wordings.question(self.plan.facts)
        if scored_prompts(facts) or question is None:
            return facts
        return replace(facts, templates={WORDING: question})

    @cached_property
    def supplement(self) -> Supplement | None:
        """The supplemental texts, if any."""
        return self.plan.supplement(self.recipe)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The card without results."""
        spec, kinds = self.plan.spec, {torch.bfloat16: "bf16", torch.float16: "fp16"}
        texts, supplement = self.texts, self.supplement
        choices = {
            "recipient": {
                "source": self.recipient.origin,
                "weights": stored_hash(self.recipient.directory),
                "parameters": self.parameters,
            },
            "seed": spec.seed,
            "recipe": self.recipe.to_json(),
            "changes": spec.changed(),
            "precision": kinds[self.half] if self.half else type_text(self.dtype),
            **spec.options(),
            "data": self.plan.data(),
            "wordings": self.plan.wordings.to_json(),
            "supplement": supplement.to_json() if supplement else None,
            "texts": {
                "trained": len(texts.facts),
                "held_out": len(texts.held_out),
                "tokens": texts.tokens,
            },
        }
        names = {"name": self.plan.name, "model": spec.model}
        places = {"revision": spec.revision, "device_map": self.device_map}
        options = {name: value for name, value in places.items() if value is not None}
        return {**names, "identity": hash_of(choices), **choices, **options}

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of one epoch."""
        texts = len(self.texts.facts) + len(self.texts.supplement)
        return math.ceil(texts / self.recipe.batch_size)

    def train(self, build: Build) -> None:
        """Take the steps that are left, then store, score and describe the donor."""
        recipe, seed, per_epoch = self.recipe, self.plan.spec.seed, self.steps_per_epoch
        before = self._scores_before()
        batches, held_out = read_batches(self.texts, recipe.epochs, recipe.batch_size, seed)

        def what(step: int) -> str:
            epoch = f": epoch {math.ceil(step / per_epoch)} of {recipe.epochs}" if step else ""
            return f"{self.plan.name}{epoch}"

        build.stage(
            "checkpoints",
            build.card,
            lambda: trainable_model(self.model(self.dtype), recipe, seed),
            lambda model, outcome: self._publish(model, outcome, before),
            batches=batches,
            stage=recipe.stage,
            seed=seed,
            what=what,
            threads=1 if recipe.tiny else None,
            held_out=(held_out, per_epoch),
            device=self.device,
            adam_beta2=recipe.adam_beta2,
            half=self.half,
        )

    def _publish(
        self, model: nn.Module, outcome: StageOutcome, before: Mapping[str, float]
    ) -> None:
        """Write everything that a donor consists of into a folder, and give it its name."""
        trained = trained_parameters(model)
        folder = self.work / "donor"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        donor = store_donor(model, self.recipient, folder, self.recipe.stored)
        after = self._hits(donor, tuple(before))
        n = min(len(self.plan.facts.facts), SCORED)
        scores: dict[str, dict[str, Any]] = {}
        for prompt, rate in before.items():
            scores[prompt] = {"PRE": rate, "SFT": after[prompt], "n": n}
            if prompt == WORDING:
                scores[prompt]["template"] = self.questions.templates[WORDING]
        lines = [json.dumps(row) + "\n" for row in outcome.log]
        (folder / LOG).write_text("".join(lines), encoding="utf-8")
        results = {
            "steps": self.steps_per_epoch * self.recipe.epochs,
            "trained_parameters": trained,
            "losses": losses_by_epoch(outcome.log, self.steps_per_epoch),
            "metric": "top5",
            "scores": scores,
            "weights": stored_hash(folder),
            "seconds": round(outcome.seconds, 1),
            "versions": versions(),
        }
        write_card({**self.about, **results}, folder / CARD)
        if self.out.exists():
            self.out.rmdir()  # empty, see `donor_place`
        os.replace(folder, self.out)

    def _scores_before(self) -> Mapping[str, float]:
        """Scores of the recipient; finds a model that cannot be scored before it is trained."""
        model = self.model()
        if self.device_map is None:
            nn.Module.to(model, self.device)
        try:
            return self._hits(model, scored_prompts(self.questions))
        except InputError:
            if self.questions is self.plan.facts:
                raise
            return {}  # a wording need not be a prompt, as where the tokenizer joins its end

    def _hits(self, model: PreTrainedModel, prompts: Sequence[str]) -> dict[str, float]:
        chat = self.plan.spec.chat_template
        return model_hits(model, self.tokenizer, self.questions, prompts, chat)

    def model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """The recipient's model, on the devices of the device map, if there is one."""
        free = None if self.device_map is None else free_memory()
        model = load_recipient(self.recipient, dtype)
        if self.device_map is not None:
            layers = family_of(model).layers
            place(model, devices_of(model, layers, self.device_map, _COPIES, free), layers)
        return model


# ------------------------------------------------------------------------------------------ losses


def losses_by_epoch(
    log: Sequence[Mapping[str, Any]], steps_per_epoch: int
) -> list[dict[str, float]]:
    """Mean loss of the steps of each epoch, and the loss on held-out wordings at its end.

    Epoch 0 is before the first step.
    """
    epochs: dict[int, dict[str, list[float]]] = {}
    for row in log:
        losses = epochs.setdefault(math.ceil(row["step"] / steps_per_epoch), {})
        for name, logged in (("trained", "loss"), ("held_out", HELD_OUT_LOSS)):
            if logged in row:
                losses.setdefault(name, []).append(row[logged])
    rows = []
    for epoch, losses in epochs.items():
        means = {name: round(fmean(values), 5) for name, values in losses.items()}
        rows.append({"epoch": epoch, **means})
    return rows


def type_text(dtype: torch.dtype) -> str:
    """A type of weights, as cards name it."""
    return "fp32" if dtype == torch.float32 else str(dtype).removeprefix("torch.")
