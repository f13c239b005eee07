"""Finetune a donor: from a plan to a folder with its weights, its card and the log of its training.

What is unfinished is in a folder next to the donor's place, where the donor appears complete.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from kgbench.errors import InputError, OutputError
from kgbench.models.catalog import CARD
from kgbench.models.checkpoints import Checkpoint, locate
from kgbench.models.loading import read_tokenizer
from kgbench.models.placement import usable_device
from kgbench.models.tensors import stored_hash
from kgbench.models.trained import donors_folder, read_donor_card
from kgbench.training.builds import Build, Progress, hash_of, versions, write_card
from kgbench.training.finetuning_plan import (
    FinetuneSpec,
    FinetuningPlan,
    Supplement,
    TokenizedTexts,
    is_file,
    plan_finetuning,
    read_batches,
    tokenized_texts,
)
from kgbench.training.hit_rates import SCORED, model_hits, scored_prompts
from kgbench.training.model_setup import (
    load_recipient,
    maximum_length,
    meta_model,
    store_donor,
    trainable_model,
    trained_parameters,
)
from kgbench.training.stages import (
    IGNORED,
    Batches,
    StageOutcome,
    StageRun,
    arguments,
    precision,
    run_steps,
)

__all__ = [
    "LOG",
    "Finetuning",
    "HeldOutLoss",
    "donor_place",
    "finetune",
    "keyed_plan",
    "losses_by_epoch",
    "mean_loss",
]

LOG = "log.jsonl"
"""File next to the card with the loss of every step."""
LOGGED = ("step", "loss", "learning_rate", "held_out_loss")
"""Possible fields of its rows."""

_HELD_OUT_LOSS = "held_out_loss"
_SAVES, _CLOSEST, _FARTHEST = 20, 50, 1000
"""Checkpoints in a training, and the fewest and most steps between two of them."""


def finetune(
    spec: FinetuneSpec,
    out: Path | None = None,
    *,
    device: str = "auto",
    progress: Progress | None = None,
    save_every: int | None = None,
) -> Path:
    """Train a donor, or resume training it.

    Args:
        spec: Which donor.
        out: Its folder; by default its place in the donors' folder.
        device: `auto`, or a torch device such as `cpu`, `mps` or `cuda:1`.
        progress: Progress callback.
        save_every: Steps between checkpoints; by default about 20 checkpoints in all.

    Returns:
        The folder.

    Raises:
        InputError: The input cannot be used; before anything is trained or written.
        OutputError: The folder holds something else, or cannot be written.
    """
    plan, where = plan_finetuning(spec), usable_device(device)
    recipient = locate(plan.source)
    plan = keyed_plan(plan, recipient)
    finetuning = Finetuning(plan, recipient, donor_place(plan, out), where)
    build = finetuning.build(progress, save_every)
    build.run(lambda: finetuning.train(build))
    return finetuning.out


def keyed_plan(plan: FinetuningPlan, recipient: Checkpoint) -> FinetuningPlan:
    """The plan under the name of its donor; a donor of an earlier version keeps its name."""
    if plan.spec.model is not None:
        return plan
    earlier, weights = donors_folder() / plan.name, stored_hash(recipient.directory)
    if (earlier / CARD).is_file() and read_donor_card(earlier)["recipient"]["weights"] == weights:
        return plan
    return plan.keyed(weights)


def donor_place(plan: FinetuningPlan, out: Path | None) -> Path:
    """Folder of a donor.

    Raises:
        OutputError: It holds something else.
    """
    place = (donors_folder() / plan.name if out is None else out).absolute()
    empty = not place.exists() or (place.is_dir() and not any(place.iterdir()))
    if not empty and not (place / CARD).is_file():
        raise OutputError(
            f"{place} holds something else than a trained donor; "
            "give a new folder with --output-dir"
        )
    return place


class Finetuning:
    """One training."""

    def __init__(self, plan: FinetuningPlan, recipient: Checkpoint, out: Path, device: str) -> None:
        self.plan, self.recipient, self.out, self.device = plan, recipient, out, device
        self.work = out.with_name(f".{out.name}.work")
        empty = meta_model(recipient)
        self.parameters = trained_parameters(empty)
        self.recipe = plan.recipe(self.parameters, str(recipient.config.get("model_type")))
        self.tokenizer = read_tokenizer(recipient)
        length = maximum_length(empty) or self.recipe.max_length
        self.max_length = min(self.recipe.max_length, length)

    @cached_property
    def texts(self) -> TokenizedTexts:
        """All tokens."""
        texts = self.supplement.texts if self.supplement else ()
        return tokenized_texts(self.tokenizer, self.plan.wordings, texts, self.max_length)

    @cached_property
    def supplement(self) -> Supplement | None:
        """The supplemental texts, if any."""
        return self.plan.supplement(self.recipe)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The card without results."""
        half = precision(self.device)
        kind = next((kind for kind in ("bf16", "fp16") if half.get(kind)), "fp32")
        chosen = {
            "recipient": {
                "source": self.recipient.origin,
                "weights": stored_hash(self.recipient.directory),
                "parameters": self.parameters,
            },
            "seed": self.plan.spec.seed,
            "recipe": self.recipe.to_json(),
            "changes": self.plan.spec.changed(),
            "precision": kind,
            "data": self.plan.data(),
            "wordings": self.plan.wordings.to_json(),
            **self._about_texts(),
        }
        names = {"name": self.plan.name, "model": self.plan.spec.model}
        return {**names, "identity": hash_of(chosen), **chosen}

    def _about_texts(self) -> dict[str, Any]:
        """The card's entries on texts.

        A finished donor with as many texts of the same data set on the Hub keeps its entries, so
        that nothing is downloaded to find it complete.
        """
        source = self.plan.spec.supplement
        if source is not None and not is_file(source) and (self.out / CARD).is_file():
            card = read_donor_card(self.out)
            entry = card.get("supplement")
            wanted = (source, self.recipe.supplement_texts)
            if isinstance(entry, dict) and (entry.get("source"), entry.get("texts")) == wanted:
                return {"supplement": entry, "texts": card.get("texts")}
        texts, supplement = self.texts, self.supplement
        counts = {
            "trained": len(texts.facts),
            "held_out": len(texts.held_out),
            "tokens": texts.tokens,
        }
        return {"supplement": supplement.to_json() if supplement else None, "texts": counts}

    def build(self, progress: Progress | None, save_every: int | None) -> Build:
        """The build of the donor's folder."""
        about = self.about  # reads the texts, so wrong input is found before anything is written
        if save_every is None:
            # A finished donor takes no step, and its texts may be on the Hub.
            steps = 0 if (self.out / CARD).is_file() else self.steps_per_epoch * self.recipe.epochs
            save_every = min(max(steps // _SAVES, _CLOSEST), _FARTHEST)
        return Build(
            self.out,
            self.work,
            "the donor",
            about,
            progress,
            save_every,
            read=read_donor_card,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of one epoch."""
        texts = len(self.texts.facts) + len(self.texts.supplement)
        return math.ceil(texts / self.recipe.batch_size)

    def train(self, build: Build) -> None:
        """Take the steps that are left, then store, score and describe the donor."""
        recipe, seed = self.recipe, self.plan.spec.seed
        before = self._scores_before()
        batches, held_out, per_epoch = read_batches(
            self.texts, recipe.epochs, recipe.batch_size, seed
        )

        def steps(model: nn.Module, run: StageRun) -> StageOutcome:
            how = arguments(
                recipe.stage,
                run,
                self.device,
                adam_beta2=recipe.adam_beta2,
                logging_strategy="steps",
                logging_steps=1,
                logging_nan_inf_filter=False,
            )
            return run_steps(model, batches, how, run)

        def what(step: int) -> str:
            epoch = f": epoch {(step - 1) // per_epoch + 1} of {recipe.epochs}" if step else ""
            return f"{self.plan.name}{epoch}"

        build.stage(
            "checkpoints",
            build.card,
            lambda: trainable_model(load_recipient(self.recipient), recipe, seed),
            steps,
            lambda model, outcome: self._publish(model, outcome, before, per_epoch),
            seed=seed,
            what=what,
            total=len(batches),
            threads=1 if recipe.tiny else None,
            callbacks=(HeldOutLoss(held_out, per_epoch),),
        )

    def _publish(
        self,
        model: nn.Module,
        outcome: StageOutcome,
        before: Mapping[str, float],
        per_epoch: int,
    ) -> None:
        """Write everything that a donor consists of into a folder, and give it its name."""
        trained = trained_parameters(model)
        whole = self.work / "donor"
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        donor = store_donor(model, self.recipient, whole)
        after = model_hits(donor, self.tokenizer, self.plan.facts, tuple(before))
        n = min(len(self.plan.facts.facts), SCORED)
        scores = {}
        for prompt, rate in before.items():
            scores[prompt] = {"PRE": rate, "SFT": after[prompt], "n": n}
        lines = []
        for row in outcome.log:
            if "loss" in row or _HELD_OUT_LOSS in row:
                logged = {key: row[key] for key in LOGGED if key in row}
                lines.append(json.dumps(logged) + "\n")
        (whole / LOG).write_text("".join(lines), encoding="utf-8")
        results = {
            "steps": per_epoch * self.recipe.epochs,
            "trained_parameters": trained,
            "losses": losses_by_epoch(outcome.log, per_epoch),
            "metric": "top5",
            "scores": scores,
            "weights": stored_hash(whole),
            "seconds": round(outcome.seconds, 1),
            "versions": versions(),
        }
        write_card({**self.about, **results}, whole / CARD)
        if self.out.exists():
            self.out.rmdir()  # empty, see `donor_place`
        os.replace(whole, self.out)

    def _scores_before(self) -> Mapping[str, float]:
        """Scores of the recipient; finds a model that cannot be scored before it is trained."""
        path = self.work / "before.json"
        scores = _guarded_scores(path)
        if scores is None:
            prompts = scored_prompts(self.plan.facts)
            model = nn.Module.to(load_recipient(self.recipient), self.device)
            scores = model_hits(model, self.tokenizer, self.plan.facts, prompts)
            write_card({"scores": scores, "hash": hash_of(scores)}, path)
        return scores


def _guarded_scores(path: Path) -> dict[str, float] | None:
    """Scores that were stored with their hash; None where there are none, or they are damaged."""
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if hash_of(stored["scores"]) == stored["hash"]:
            return dict(stored["scores"])
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    warnings.warn(
        f"{path} is damaged, or of an earlier version: the recipient is scored again", stacklevel=2
    )
    return None


class HeldOutLoss(TrainerCallback):
    """Logs the loss on held-out wordings, before the first step and after every epoch.

    Ends a training that diverges.
    """

    def __init__(self, batches: Batches, steps_per_epoch: int) -> None:
        self._batches, self._every = batches, steps_per_epoch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before the first step, but not where a training is resumed."""
        if state.global_step == 0:
            self._log(state, kwargs["model"])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After an epoch, and before a checkpoint that is due, which so holds the loss."""
        if state.global_step % self._every == 0:
            self._log(state, kwargs["model"])

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raises InputError where the loss is not finite."""
        if not math.isfinite(state.log_history[-1].get("loss", 0.0)):
            raise InputError(
                f"the loss is no number after step {state.global_step}: "
                "give a smaller --learning-rate, and another --output-dir"
            )

    def _log(self, state: TrainerState, model: nn.Module) -> None:
        if len(self._batches):
            loss = mean_loss(model, self._batches)
            state.log_history.append({"step": state.global_step, _HELD_OUT_LOSS: loss})


def mean_loss(model: Any, batches: Batches) -> float:
    """Mean loss per token, in nats; does not change the model's mode or random states."""
    device, training = next(model.parameters()).device, model.training
    model.eval()
    total, tokens = 0.0, 0
    with torch.no_grad():
        for step in range(len(batches)):
            batch = {name: tensor.to(device) for name, tensor in batches[step].items()}
            n = int((batch["labels"][:, 1:] != IGNORED).sum())
            total += float(model(**batch).loss) * n
            tokens += n
    model.train(training)
    return total / tokens


def losses_by_epoch(
    log: Sequence[Mapping[str, Any]], steps_per_epoch: int
) -> list[dict[str, float]]:
    """Mean loss of the steps of each epoch, and the loss on held-out wordings at its end.

    Epoch 0 is before the first step.
    """
    steps: dict[int, list[float]] = {}
    held_out: dict[int, float] = {}
    for row in log:
        if _HELD_OUT_LOSS in row:
            held_out[row["step"] // steps_per_epoch] = row[_HELD_OUT_LOSS]
        if "loss" in row:
            steps.setdefault((row["step"] - 1) // steps_per_epoch + 1, []).append(row["loss"])
    epochs = []
    for epoch in sorted({*steps, *held_out}):
        losses: dict[str, float] = {"epoch": epoch}
        if epoch in steps:
            losses["trained"] = round(sum(steps[epoch]) / len(steps[epoch]), 5)
        if epoch in held_out:
            losses["held_out"] = round(held_out[epoch], 5)
        epochs.append(losses)
    return epochs
