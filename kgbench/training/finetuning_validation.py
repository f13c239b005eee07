"""What a finetuning is watched by: the loss on wordings that are never trained on, after every epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from kgbench.errors import InputError
from kgbench.training.corpus import IGNORED, Batches

__all__ = ["HeldOut", "losses_by_epoch", "mean_loss"]

_KEY = "held_out_loss"


class HeldOut(TrainerCallback):
    """Puts the loss on held-out wordings into the log, before the first step and after every epoch; ends a training that diverges."""

    def __init__(self, batches: Batches, steps_per_epoch: int) -> None:
        self._batches, self._every = batches, steps_per_epoch

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Before the first step, but not where a training is taken up again."""
        if state.global_step == 0:
            self._look(state, kwargs["model"])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """After an epoch, and before the checkpoint that may be due, so that it holds what was found."""
        if state.global_step % self._every == 0:
            self._look(state, kwargs["model"])

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Raises InputError where the loss is no number."""
        if not math.isfinite(state.log_history[-1].get("loss", 0.0)):
            raise InputError(
                f"the loss is no number after step {state.global_step}: give a smaller --learning-rate, and another --output-dir"
            )

    def _look(self, state: TrainerState, model: torch.nn.Module) -> None:
        if len(self._batches):
            state.log_history.append(
                {"step": state.global_step, _KEY: mean_loss(model, self._batches)}
            )


def mean_loss(model: Any, batches: Batches) -> float:
    """Mean loss per token, in nats; the model's mode and the random numbers are as before."""
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
    """Mean loss of the steps of each epoch, and the loss on held-out wordings at its end; epoch 0 is before the first step."""
    held_out = {row["step"] // steps_per_epoch: row[_KEY] for row in log if _KEY in row}
    steps: dict[int, list[float]] = {}
    for row in log:
        if "loss" in row:
            steps.setdefault((row["step"] - 1) // steps_per_epoch + 1, []).append(row["loss"])
    trained = {epoch: sum(losses) / len(losses) for epoch, losses in steps.items()}
    return [
        {
            "epoch": epoch,
            **{
                name: round(part[epoch], 5)
                for name, part in (("trained", trained), ("held_out", held_out))
                if epoch in part
            },
        }
        for epoch in sorted({*trained, *held_out})
    ]
