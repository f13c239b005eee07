"""One training run that can be interrupted at any time and goes on where it was."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import logging as transformers_logging

from kgbench.errors import OutputError
from kgbench.training.recipes import Stage

__all__ = [
    "SAVE_EVERY",
    "OnStep",
    "Outcome",
    "Run",
    "arguments",
    "bf16_helps",
    "last_complete",
    "quiet",
    "run_steps",
    "train",
]

OnStep = Callable[[int], None]
"""Called with the number of steps done."""

SAVE_EVERY = 200
"""Steps between checkpoints; tens of seconds."""
_COMPLETE = "complete.json"
"""Written last: the seconds that were taken, and SHA-256 of each of the checkpoint's files."""
_WEIGHTS = "weights.safetensors"
_MOMENTS, _OPTIMIZER = "optimizer.safetensors", "optimizer.json"
"""Tensors of the optimizer; its settings, with the scheduler's and the scaler's state. Nothing is pickled."""
_RANDOM = "random.json"
"""States of the random number generators; bytes are in hexadecimal."""


@dataclass(frozen=True)
class Run:
    """How a stage is run."""

    work: Path
    """Folder for the checkpoints of this run alone."""
    seed: int
    """Of whatever the model draws, such as dropout."""
    save_every: int = SAVE_EVERY
    """Steps between checkpoints."""
    on_step: OnStep | None = None
    """Called after every step, before a checkpoint that is due."""
    threads: int | None = 1
    """Processor threads. Sums of one do not depend on the number of cores; None takes what torch takes."""
    callbacks: Sequence[TrainerCallback] = ()
    """Further ones, called after `on_step`; what they put into the log is kept with the checkpoints."""


@dataclass(frozen=True)
class Outcome:
    """What a run leaves beside the weights, parts before an interruption included."""

    seconds: float
    """Time of the steps."""
    log: Sequence[Mapping[str, Any]]
    """What was logged, in order; a row has a `step`."""


def train(
    model: nn.Module, batches: Dataset[dict[str, torch.Tensor]], stage: Stage, run: Run
) -> float:
    """Train a model in place, on a CPU.

    The run is interrupted by any exception, also one of `on_step`, or by the end of the process; called again with the same
    arguments it goes on from its last checkpoint, and ends with the weights that an unbroken run has.

    Args:
        model: The model, in fp32, as it is before the first step; called with the tensors of a step it gives the loss.
        batches: All steps, in order; an item is what a step needs.
        stage: Learning rate, warm-up and weight decay.
        run: Where the checkpoints go, and who is told.

    Returns:
        Seconds that the steps took, those before an interruption included.
    """
    return run_steps(
        model, batches, arguments(stage, run, use_cpu=True, bf16=bf16_helps(), adam_beta2=0.98), run
    ).seconds


def run_steps(
    model: nn.Module, batches: Dataset[dict[str, torch.Tensor]], how: TrainingArguments, run: Run
) -> Outcome:
    """Train a model in place, interrupted and taken up as `train` is.

    Args:
        model: As for `train`.
        batches: As for `train`.
        how: As `arguments` gives it.
        run: As for `train`.
    """
    run.work.mkdir(parents=True, exist_ok=True)
    last = last_complete(run.work)
    watch = _Watch(
        run, json.loads((last / _COMPLETE).read_text(encoding="utf-8"))["seconds"] if last else 0.0
    )
    with quiet(), _threads(run.threads), torch.random.fork_rng(devices=[]):
        trainer = _Exact(
            model,
            how,
            data_collator=_only,
            train_dataset=batches,
            callbacks=[watch, *run.callbacks],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    return Outcome(watch.seconds, tuple(trainer.state.log_history))


def arguments(stage: Stage, run: Run, **more: Any) -> TrainingArguments:
    """A stage in the Trainer's words.

    Args:
        stage: Learning rate, warm-up and weight decay.
        run: Seed, and how often a checkpoint is written.
        **more: Further arguments, such as `adam_beta2`, and those on which device and in which precision.
    """
    settings: dict[str, Any] = dict(
        output_dir=str(run.work),
        # A batch is one item of the data set; all rounds are one epoch, so that order and resuming are exact.
        per_device_train_batch_size=1,
        num_train_epochs=1,
        train_sampling_strategy="sequential",
        optim="adamw_torch",
        learning_rate=stage.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=stage.warmup_steps,
        weight_decay=stage.weight_decay,
        max_grad_norm=1.0,
        seed=run.seed,
        save_strategy="steps",
        save_steps=run.save_every,
        save_total_limit=2,
        logging_strategy="no",
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    found = TrainingArguments(**{**settings, **more})
    found._n_gpu = min(found.n_gpu, 1)  # of several, the Trainer would spread each step over all
    return found


def _only(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    (item,) = items
    return item


def bf16_helps() -> bool:
    """Whether this processor multiplies bf16 itself; it halves the time of a step."""
    supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(supported and supported())


def last_complete(work: Path) -> Path | None:
    """The newest intact checkpoint; newer ones are removed, of damaged ones with a warning.

    Raises:
        OutputError: A checkpoint is of an earlier version, whose optimizer was pickled.
    """
    found = sorted(
        work.glob("checkpoint-*"), key=lambda folder: int(folder.name.rpartition("-")[2])
    )
    for folder in reversed(found):
        if (folder / _COMPLETE).is_file():
            wrong = _damaged(folder)
            if wrong is None:
                return folder
            warnings.warn(
                f"a checkpoint of the training is left out: {folder / wrong} is damaged; "
                "the training goes on from the one before, or begins anew where there is none",
                stacklevel=2,
            )
        shutil.rmtree(folder)
    return None


def _damaged(folder: Path) -> str | None:
    """The first file of a checkpoint that is not as it was written."""
    try:
        said = json.loads((folder / _COMPLETE).read_text("utf-8"))
    except (ValueError, RecursionError):
        return _COMPLETE
    if isinstance(said, dict) and set(said) == {"seconds"}:
        raise OutputError(
            f"{folder} is a checkpoint of an earlier version of kgbench, with pickled parts, which are never loaded; "
            f"end the training with that version, or remove {folder.parent} to begin anew"
        )
    if not isinstance(said, dict) or said != _mark(said.get("seconds"), said.get("files")):
        return _COMPLETE
    for name, before in said["files"].items():
        if not (folder / name).is_file() or _file_hash(folder / name) != before:
            return str(name)
    return None


def _mark(seconds: object, files: object) -> dict[str, object]:
    """What is written into a complete checkpoint, guarded by a hash of its own."""
    content = {"seconds": seconds, "files": files}
    text = json.dumps(content, sort_keys=True)
    return {**content, "hash": hashlib.sha256(text.encode()).hexdigest()}


def _file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars of its own and from advice that does not apply, such as to mask padding."""
    bars, verbosity = (
        transformers_logging.is_progress_bar_enabled(),
        transformers_logging.get_verbosity(),
    )
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


@contextmanager
def _threads(wanted: int | None) -> Iterator[None]:
    """Compute with so many threads; matrices as small as those of the tiny pairs gain little from more than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(wanted or threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Exact(Trainer):
    """A Trainer whose checkpoints hold what is trained, under the names of the model's own modules, and nothing pickled.

    The library's hold it under the names that published files have, which are others for some types (GPT-NeoX's head), and it reads nothing
    back that it does not find under a module's own name.
    """

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        assert output_dir is not None and self.model is not None
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: tensor.detach().contiguous() for name, tensor in _trained(self.model).items()},
            folder / _WEIGHTS,
        )

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        assert self.model is not None
        stored, trained = load_file(Path(resume_from_checkpoint) / _WEIGHTS), _trained(self.model)
        assert stored.keys() == trained.keys(), f"{resume_from_checkpoint} is of another model"
        with torch.no_grad():
            for name, tensor in trained.items():
                tensor.copy_(stored[name])

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        assert self.optimizer is not None and self.lr_scheduler is not None
        state, scaler = self.optimizer.state_dict(), getattr(self.accelerator, "scaler", None)
        tensors: dict[str, Tensor] = {}
        for weight, values in state["state"].items():
            tensors.update(
                {f"{weight}.{key}": tensor.detach().contiguous() for key, tensor in values.items()}
            )
        settings = {
            "groups": state["param_groups"],
            "scheduler": self.lr_scheduler.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        save_file(tensors, Path(output_dir) / _MOMENTS)
        (Path(output_dir) / _OPTIMIZER).write_text(json.dumps(settings), encoding="utf-8")

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        assert self.optimizer is not None and self.lr_scheduler is not None
        settings = json.loads((Path(checkpoint) / _OPTIMIZER).read_text("utf-8"))
        values: dict[int, dict[str, Tensor]] = {}
        for name, tensor in load_file(Path(checkpoint) / _MOMENTS).items():
            weight, _, key = name.partition(".")
            values.setdefault(int(weight), {})[key] = tensor
        groups = [{**group, "betas": tuple(group["betas"])} for group in settings["groups"]]
        self.optimizer.load_state_dict({"state": values, "param_groups": groups})
        self.lr_scheduler.load_state_dict(settings["scheduler"])
        if settings["scaler"] is not None:
            self.accelerator.scaler.load_state_dict(settings["scaler"])

    def _save_scaler(self, output_dir: str) -> None:
        """Written with the optimizer."""

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Read with the optimizer."""

    def _save_rng_state(self, output_dir: str) -> None:
        kind, keys, *rest = np.random.get_state()  # what a model may draw from
        states = {
            "python": random.getstate(),
            "numpy": [kind, np.asarray(keys).tolist(), *rest],
            "torch": _hex(torch.random.get_rng_state()),
            "cuda": _hex(torch.cuda.random.get_rng_state()) if torch.cuda.is_available() else None,
        }
        (Path(output_dir) / _RANDOM).write_text(json.dumps(states), encoding="utf-8")

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        states = json.loads((Path(checkpoint) / _RANDOM).read_text("utf-8"))
        version, words, gauss = states["python"]
        random.setstate((version, tuple(words), gauss))
        kind, keys, *rest = states["numpy"]
        np.random.set_state((kind, np.array(keys, np.uint32), *rest))
        torch.random.set_rng_state(_from_hex(states["torch"]))
        if states["cuda"] is not None and torch.cuda.is_available():
            torch.cuda.random.set_rng_state(_from_hex(states["cuda"]))


def _hex(state: Tensor) -> str:
    return bytes(state.cpu().numpy()).hex()


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).clone()


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """Trained weights and all buffers by name, each tensor once: a head that is tied to the embeddings is the embeddings."""
    frozen = {
        name
        for name, weight in model.named_parameters(remove_duplicate=False)
        if not weight.requires_grad
    }
    found = {
        tensor.data_ptr(): (name, tensor)
        for name, tensor in reversed(model.state_dict().items())
        if name not in frozen
    }
    return dict(reversed(found.values()))


class _Watch(TrainerCallback):
    """Counts steps and seconds, and marks the checkpoints that are complete."""

    def __init__(self, run: Run, before: float) -> None:
        self._run = run
        self._start = time.monotonic() - before

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self._run.on_step:
            self._run.on_step(state.global_step)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        mark = self._run.work / f"checkpoint-{state.global_step}" / _COMPLETE
        partial = mark.with_suffix(".partial")
        files = {
            path.name: _file_hash(path) for path in sorted(mark.parent.iterdir()) if path != partial
        }
        partial.write_text(json.dumps(_mark(round(self.seconds, 1), files)), encoding="utf-8")
        os.replace(partial, mark)
