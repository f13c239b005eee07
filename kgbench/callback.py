"""A callback for a `Trainer`: which grafts carry the finetuned behaviour, along training."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import AutoModelForCausalLM, TrainerCallback

from kgbench.api import Evaluation, evaluate
from kgbench.errors import InputError
from kgbench.models.lora import is_peft

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments


class GraftCallback(TrainerCallback):
    """Evaluates the model in training against its base whenever the trainer saves.

    It works with `transformers.Trainer` and its subclasses, such as those of TRL. What is evaluated
    are the weights of that step, by the forward pass of the model's class. The model is left as it
    is; each run is recorded under the donor `stepN`, so that `kgbench show` draws several.

    Args:
        dataset: Facts, as `kgbench.evaluate` takes them.
        base: The model before finetuning: a path, a Hub id, or the model itself. Not needed where
            an adapter of PEFT is trained, which has its base in it.
        every: Evaluate each time so many steps are done, instead of when the trainer saves.
        **options: Further options of `kgbench.evaluate`, such as `prompts`, `grafts` or `limit`.

    Attributes:
        runs: The evaluations, by step.
    """

    def __init__(
        self,
        dataset: object,
        base: str | os.PathLike[str] | nn.Module | None = None,
        *,
        every: int | None = None,
        **options: Any,
    ) -> None:
        if every is not None and every < 1:
            raise InputError(f"every must be a number of steps, 1 or more, got {every!r}")
        self.base, self.every = base, every
        self.options = {"progress": False, **options, "dataset": dataset}
        self.runs: dict[int, Evaluation] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> None:
        """Refuse a model without a base before it is trained.

        Raises:
            InputError: No base was given, and the model is no adapter's.
        """
        if self.base is None and not is_peft(of["model"]):
            raise InputError(
                f"GraftCallback: the model in training is a {type(of['model']).__name__}, without "
                "its base in it: give base, the model before finetuning"
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> None:
        """Evaluate, where no interval was given."""
        if self.every is None:
            self._evaluate(state, **of)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **of: Any
    ) -> None:
        """Evaluate after every so many steps."""
        if self.every is not None and state.global_step % self.every == 0:
            self._evaluate(state, **of)

    def _evaluate(
        self, state: TrainerState, model: Any = None, processing_class: Any = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        base = model if self.base is None else self.base
        if isinstance(base, str | os.PathLike):
            loaded = AutoModelForCausalLM.from_pretrained(
                base, dtype=model.dtype, trust_remote_code=False, use_safetensors=True
            )
            base = loaded.to(model.device)
        options = {"tokenizer": processing_class, **self.options}
        donors = {f"step{state.global_step}": model}
        with _own_forward(model):
            run = evaluate(recipient=base, donors=donors, **options)
        self.runs[state.global_step] = run
        logged: dict[str, float] = {"step": state.global_step}
        for row in run.record.rows:
            for name in (run.record.metric, "sufficiency"):
                estimate = row.estimate(name)
                if estimate is not None and estimate.value is not None:
                    logged[f"kgbench/{row.prompt}/{row.graft}/{name}"] = estimate.value
        state.log_history.append(logged)


@contextmanager
def _own_forward(model: Any) -> Iterator[None]:
    """Take away what a trainer has put around the forward pass of the model's class.

    Trainers of TRL do so, to compute the loss without the logits. Other replaced functions are
    refused as ever.
    """
    inner = model.get_base_model() if is_peft(model) else model
    around = vars(inner).get("forward")
    if getattr(around, "__wrapped__", None) is not type(inner).forward:
        yield
        return
    del inner.forward
    try:
        yield
    finally:
        inner.forward = around
