"""Training steps that can be interrupted at any time and resumed exactly.

Invariant: a run that is killed and resumed ends with the same weights, bit for bit, as an unbroken
one. So a checkpoint holds everything that later steps depend on (trained weights and buffers,
optimizer, scheduler, gradient scaler, states of all random number generators), the order of steps
is fixed beforehand, and a checkpoint counts only once `complete.json` lists the hash of every file.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kgbench.errors import InputError, OutputError
from kgbench.models.loading import quiet_library
from kgbench.records import write_whole
from kgbench.resources import file_hash
from kgbench.runner.training.recipes import Stage

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

OnStep = Callable[[int], None]
"""Called with the number of steps done."""


class Steps(Protocol):
    """All steps of a run in order, each the tensors that the model is called with."""

    def __len__(self) -> int: ...

    def __getitem__(self, step: int, /) -> dict[str, Tensor]: ...


SAVE_EVERY = 200
"""Steps between checkpoints; tens of seconds."""
_COMPLETE = "complete.json"
"""Written last: seconds of training so far, and SHA-256 of each file of the checkpoint."""
_WEIGHTS = "weights.safetensors"
_MOMENTS, _OPTIMIZER = "optimizer.safetensors", "optimizer.json"
"""Tensors of the optimizer; its settings, the scheduler's and the scaler's state. No pickles."""
_RANDOM = "random.json"
"""States of the random number generators; bytes in hexadecimal."""

IGNORED = -100
"""Label of a token that the loss ignores."""
HELD_OUT_LOSS = "held_out_loss"
"""Field of a logged row."""


@dataclass(frozen=True)
class Batches:
    """All steps of a run in order: padded token ids [text, token], and labels."""

    rows: Sequence[Sequence[Sequence[int]]]
    """Token ids by step and text."""
    pad: int

    def __len__(self) -> int:
        return len(self.rows)

    def size(self, step: int) -> int:
        """Tokens of a step, padding included."""
        return len(self.rows[step]) * max(map(len, self.rows[step]))

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        # Padding is on the right and attention is causal, so no attention mask is needed.
        ids, labels = (_even(self.rows[step], filler) for filler in (self.pad, IGNORED))
        return {"input_ids": ids, "labels": labels}


def _even(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def grouped(rows: Iterable[list[int]], size: int, rng: Random) -> list[list[list[int]]]:
    """The steps of one round: token ids in groups of like length, the groups shuffled."""
    ordered = list(rows)
    rng.shuffle(ordered)
    ordered.sort(key=len)
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    rng.shuffle(groups)
    return groups


@dataclass(frozen=True)
class StageRun:
    """Where and how a stage runs."""

    work: Path
    """Folder for the checkpoints of this run alone."""
    seed: int
    """Seed of dropout and of anything else that the model draws."""
    save_every: int = SAVE_EVERY
    """Steps between checkpoints."""
    on_step: OnStep | None = None
    """Called after every step, before a checkpoint that is due."""
    threads: int | None = 1
    """Processor threads; None leaves torch's choice.

    With one thread, sums do not depend on the number of cores.
    """
    held_out: tuple[Batches, int] | None = None
    """Texts to validate on before the first step, and whenever so many steps are taken.

    Where they are given, losses are logged, and a training that diverges ends.
    """


@dataclass(frozen=True)
class StageOutcome:
    """Results of a run besides the weights, including the parts before an interruption."""

    seconds: float
    """Duration of the steps."""
    log: Sequence[Mapping[str, Any]]
    """Logged rows in order; each has a `step`."""


def run_stage(
    model: nn.Module,
    batches: Steps,
    stage: Stage,
    run: StageRun,
    device: str = "cpu",
    **more: Any,
) -> StageOutcome:
    """Train a model in place.

    Any exception, also one of `on_step`, or the end of the process interrupts the run; the same
    call resumes it from the last checkpoint.

    Args:
        model: The model before the first step; called with the tensors of a step, it returns the
            loss.
        batches: All steps in order; an item holds the tensors of one step.
        stage: Hyperparameters.
        run: Checkpoints, seed and callbacks.
        device: A torch device, such as `cuda:1`.
        **more: Further arguments of the Trainer, such as `adam_beta2` (0.98 by default).
    """
    # Takes a second to import, and who only plans a training needs none of it.
    from transformers import PrinterCallback, Trainer, TrainerCallback

    how = arguments(stage, run, device, **{"adam_beta2": 0.98, **more})
    run.work.mkdir(parents=True, exist_ok=True)
    last = last_complete(run.work)
    before = json.loads((last / _COMPLETE).read_text("utf-8"))["seconds"] if last else 0.0
    watch = type("Watch", (_Watch, TrainerCallback), {})(run, before)
    here = torch.cuda.device(how.device) if how.device.type == "cuda" else nullcontext()
    with quiet_library(), processor_threads(run.threads), torch.random.fork_rng(devices=[]), here:
        trainer = type("Exact", (_Exact, Trainer), {})(
            model,
            how,
            data_collator=itemgetter(0),  # an item is a step
            train_dataset=batches,
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.accelerator.device_placement &= not _is_spread(model)
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    # In half precision accelerate puts an autocast forward pass in the place of the model's own,
    # with which everything measured later would be rounded.
    for patch in ("forward", "_original_forward"):
        vars(model).pop(patch, None)
    return StageOutcome(watch.seconds, tuple(trainer.state.log_history))


def arguments(stage: Stage, run: StageRun, device: str = "cpu", **more: Any) -> TrainingArguments:
    """Arguments of the Trainer for a stage.

    Args:
        stage: Hyperparameters.
        run: Seed, and how often a checkpoint is written.
        device: A torch device, such as `cuda:1`.
        **more: Further arguments, such as `adam_beta2`.
    """
    from transformers import TrainingArguments

    settings: dict[str, Any] = dict(
        output_dir=str(run.work),
        # One item of the data set is one step, and all rounds are one epoch: the order of steps is
        # that of the data set, and resuming only skips items.
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
        logging_strategy="no" if run.held_out is None else "steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=device == "cpu",
        **precision(device),
    )
    created = TrainingArguments(**{**settings, **more})
    created._n_gpu = min(created.n_gpu, 1)  # with several, the Trainer would use DataParallel
    where = torch.device(device)
    if where.type == "cuda" and where.index is not None:
        # The Trainer always takes the first GPU; this is its cached choice.
        vars(created)["_setup_devices"] = where
    return created


def precision(device: str) -> dict[str, bool]:
    """Half precision of products (weights stay fp32) where the hardware multiplies it."""
    kind = torch.device(device).type
    if kind == "cpu":
        supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        return {"bf16": bool(supported and supported())}  # halves the time of a step
    if kind == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return {"bf16": bf16, "fp16": not bf16}
    return {}


def last_complete(work: Path) -> Path | None:
    """The newest intact checkpoint; newer damaged ones are removed with a warning.

    Raises:
        OutputError: A checkpoint is of an earlier version, whose optimizer was pickled.
    """

    def step(folder: Path) -> int:
        return int(folder.name.rpartition("-")[2])

    for folder in sorted(work.glob("checkpoint-*"), key=step, reverse=True):
        if (folder / _COMPLETE).is_file():
            fault = _damaged_file(folder)
            if fault is None:
                return folder
            warnings.warn(
                f"a checkpoint of the training is skipped: {folder / fault} is damaged; "
                "the training resumes from the one before, or restarts where there is none",
                stacklevel=2,
            )
        shutil.rmtree(folder)
    return None


def _damaged_file(folder: Path) -> str | None:
    """The first file of a checkpoint that is not as it was written."""
    try:
        mark = json.loads((folder / _COMPLETE).read_text("utf-8"))
    except (ValueError, RecursionError):
        return _COMPLETE
    if isinstance(mark, dict) and set(mark) == {"seconds"}:
        raise OutputError(
            f"{folder} is a checkpoint of an earlier version of kgbench, with pickled parts, "
            "which are never loaded; finish the training with that version, or remove "
            f"{folder.parent} to restart"
        )
    if not isinstance(mark, dict) or mark != _mark(mark.get("seconds"), mark.get("files")):
        return _COMPLETE
    for name, digest in mark["files"].items():
        if not (folder / name).is_file() or file_hash(folder / name) != digest:
            return str(name)
    return None


def _mark(seconds: object, files: object) -> dict[str, object]:
    """Content of `complete.json`, protected by a hash of its own."""
    content = {"seconds": seconds, "files": files}
    text = json.dumps(content, sort_keys=True)
    return {**content, "hash": hashlib.sha256(text.encode()).hexdigest()}


@contextmanager
def processor_threads(wanted: int | None) -> Iterator[None]:
    """Limit the processor threads; the small matrices of tiny pairs gain little from several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(wanted or threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Exact:
    """Part of a Trainer: its checkpoints hold trained weights by module name, and no pickles.

    The library's own checkpoints use the names of published files, which differ from the modules'
    for some types (GPT-NeoX's head); it then silently fails to read those weights back.
    """

    model: nn.Module | None
    optimizer: Any
    lr_scheduler: Any
    accelerator: Any

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        if not _is_spread(model):
            trainer: Any = super()
            trainer._move_model_to_device(model, device)

    def _save(
        self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None
    ) -> None:
        assert output_dir is not None and self.model is not None
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {}
        for name, tensor in _trained(self.model).items():
            weights[name] = tensor.detach().contiguous()
        save_file(weights, folder / _WEIGHTS)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        assert self.model is not None
        stored = load_file(Path(resume_from_checkpoint) / _WEIGHTS)
        trained = _trained(self.model)
        assert stored.keys() == trained.keys(), f"{resume_from_checkpoint} is of another model"
        with torch.no_grad():
            for name, tensor in trained.items():
                tensor.copy_(stored[name])

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        assert self.optimizer is not None and self.lr_scheduler is not None
        state, scaler = self.optimizer.state_dict(), getattr(self.accelerator, "scaler", None)
        tensors: dict[str, Tensor] = {}
        for weight, values in state["state"].items():
            for key, tensor in values.items():
                tensors[f"{weight}.{key}"] = tensor.detach().contiguous()
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


def _is_spread(model: nn.Module) -> bool:
    """Whether a model is on several devices, where it stays."""
    return len({weight.device for weight in model.parameters()}) > 1


def _hex(state: Tensor) -> str:
    return bytes(state.cpu().numpy()).hex()


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8).clone()


def _trained(model: nn.Module) -> dict[str, Tensor]:
    """Trained weights and all stored buffers by name, each tensor once.

    A head that is tied to the embeddings is listed as the embeddings.
    """
    trained: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            trained[name] = weight
    stored = model.state_dict().keys()
    for name, buffer in model.named_buffers():
        if name in stored:
            trained[name] = buffer
    return trained


class _Watch:
    """Part of a callback: counts steps and seconds, validates, and marks finished checkpoints."""

    def __init__(self, run: StageRun, before: float) -> None:
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
        if self._run.held_out and state.global_step % self._run.held_out[1] == 0:
            self._validate(state, kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step == 0:  # not where a training is resumed
            self._validate(state, kwargs["model"])

    def _validate(self, state: TrainerState, model: nn.Module) -> None:
        """Log the mean loss per token, in nats; model and random states do not change."""
        if self._run.held_out is None or not len(self._run.held_out[0]):
            return
        batches, device = self._run.held_out[0], next(model.parameters()).device
        training, total, tokens = model.training, 0.0, 0
        model.eval()
        with torch.no_grad():
            for step in range(len(batches)):
                batch = {name: tensor.to(device) for name, tensor in batches[step].items()}
                n = int((batch["labels"][:, 1:] != IGNORED).sum())
                total += float(model(**batch).loss) * n
                tokens += n
        model.train(training)
        state.log_history.append({"step": state.global_step, HELD_OUT_LOSS: total / tokens})

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not math.isfinite(state.log_history[-1].get("loss", 0.0)):
            raise InputError(
                f"the loss is no number after step {state.global_step}: "
                "give a smaller --learning-rate, and another --output-dir"
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        mark = self._run.work / f"checkpoint-{state.global_step}" / _COMPLETE
        files = {path.name: file_hash(path) for path in sorted(mark.parent.iterdir())}
        write_whole(mark, json.dumps(_mark(round(self.seconds, 1), files)).encode())
