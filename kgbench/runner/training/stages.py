"""Training steps that can be interrupted at any time and resumed exactly.

Invariant: a run that is killed and resumed ends with the same weights, bit for bit, as an unbroken
one. So a checkpoint holds everything that later steps depend on (trained weights and buffers,
optimizer, scheduler, gradient scaler, states of all random number generators), the order of steps
is fixed beforehand, and a checkpoint counts only once its second file has the hash of the first.

Invariant: no step waits for its device. Losses stay there until a validation or a checkpoint is
due, and a checkpoint is a copy that is written while the steps go on, where memory has room.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from kgbench.data.facts import hash_of
from kgbench.engine.out_of_memory import is_out_of_memory
from kgbench.errors import InputError, OutputError
from kgbench.models.library import quiet_library
from kgbench.models.placement import free_memory
from kgbench.records import write_whole
from kgbench.resources import file_hash
from kgbench.runner.training.recipes import Stage


class Steps(Protocol):
    """All steps of a run in order, each the tensors that the model is called with."""

    def __len__(self) -> int: ...

    def __getitem__(self, step: int, /) -> dict[str, Tensor]: ...


SAVE_EVERY = 50
"""Steps between checkpoints, at least."""
_HELD_SECONDS, _HELD_SHARE = 5.0, 0.03
"""How long checkpoints may hold up the steps, or for which share of the time where that is more;
one that would come sooner is left out.
"""
_TENSORS, _STATE = "tensors.safetensors", "state.json"
"""Files of a checkpoint: tensors of model, optimizer and random number generators; and, written
last, everything else, with the hashes of both. No pickles.
"""

_NOT_DECAYING = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
"""Names of weights without weight decay, as transformers' Trainer has them."""

_RANDOM = "random "
"""Begins the names of states of random number generators; a device follows."""

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

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        # Padding is on the right and attention is causal, so no attention mask is needed.
        rows, fillers = list(map(torch.tensor, self.rows[step])), (self.pad, IGNORED)
        ids, labels = (pad_sequence(rows, True, filler) for filler in fillers)
        return {"input_ids": ids, "labels": labels}


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
    """Steps between checkpoints, at least: they hold up a training for at most 3 % of its time."""
    on_step: Callable[[int], None] | None = None
    """Called with the number of steps done, after each and before a checkpoint that is due."""
    threads: int | None = 1
    """Processor threads; None leaves torch's choice.

    With one thread, sums do not depend on the number of cores.
    """
    held_out: tuple[Steps, int] | None = None
    """Texts to validate on before the first step, and whenever so many steps are taken.

    Where they are given, losses are logged, and a training that diverges ends.
    """
    device: str = "cpu"
    """A torch device, such as `cuda:1`."""
    half: torch.dtype | None = field(default_factory=lambda: half_type())
    """Type of products, where it is another than that of the weights."""
    adam_beta2: float = 0.98
    """Decay of AdamW's second moments."""


@dataclass(frozen=True)
class StageOutcome:
    """Results of a run besides the weights, including the parts before an interruption."""

    seconds: float
    """Duration of the steps."""
    log: Sequence[Mapping[str, Any]]
    """Logged rows in order; each has a `step`."""


def run_stage(model: nn.Module, batches: Steps, stage: Stage, run: StageRun) -> StageOutcome:
    """Train a model in place.

    Any exception, also one of `on_step`, or the end of the process interrupts the run; the same
    call resumes it from the last checkpoint. A loss that is no number ends it when losses are read,
    which is before the next checkpoint.

    Args:
        model: The model before the first step; called with the tensors of a step, it returns the
            loss.
        batches: All steps in order; an item holds the tensors of one step.
        stage: Hyperparameters.
        run: Checkpoints, seed, device and callbacks.

    Raises:
        InputError: The loss is no number.
        OSError: A checkpoint cannot be written.
        SafetensorError: The same, as on a full disk.
    """
    run.work.mkdir(parents=True, exist_ok=True)
    with quiet_library(), processor_threads(run.threads), torch.random.fork_rng(devices=[]):
        training = Training(model, stage, len(batches), run)
        try:
            for step in range(training.resume() + 1, len(batches) + 1):
                loss, rate = training.step(batches[step - 1])
                if run.on_step:
                    run.on_step(step)
                if run.held_out:
                    training.unread.append((step, loss, rate))
                    if step % run.held_out[1] == 0:
                        training.validate(step)
                if training.is_due(step) or step == len(batches):
                    training.save(step)
        finally:
            training.wait()
    return StageOutcome(training.seconds, tuple(training.log))


def half_type(device: str = "cpu") -> torch.dtype | None:
    """Half precision of products (weights stay fp32) where the hardware multiplies it."""
    kind = torch.device(device).type
    if kind == "cpu":
        supported = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
        return torch.bfloat16 if supported and supported() else None  # halves the time of a step
    if kind == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if bf16 else torch.float16
    return None


class Training:
    """A model that is trained, with its optimizer, learning rate and log.

    Checkpoints hold weights by module name, since names in published files differ for some types
    (GPT-NeoX's head), and no pickles.
    """

    def __init__(self, model: nn.Module, stage: Stage, n_steps: int, run: StageRun) -> None:
        """Prepare the first step; random numbers start from the seed.

        Args:
            model: Moved to the device, unless it is on several.
            stage: Hyperparameters.
            n_steps: Number of steps in all.
            run: As for `run_stage`.
        """
        # Takes a second to import, and who only plans a training needs none of it.
        from transformers import get_linear_schedule_with_warmup
        from transformers.trainer_pt_utils import get_parameter_names

        torch.manual_seed(run.seed)
        # The data loader of earlier versions drew once; so dropout is what it was with them.
        torch.empty((), dtype=torch.int64).random_()
        self.model, self.run = model, run
        self.log: list[dict[str, Any]] = []
        self.unread: list[tuple[int, Tensor, float]] = []
        """Step, loss and learning rate of the steps since the log was written."""
        self.writing: Future[None] | None = None
        """The checkpoint that is being written."""
        self.held = 0.0
        """Seconds for which checkpoints held up the steps, since the training was begun or resumed."""
        self.device = torch.device(run.device)
        if len({weight.device for weight in model.parameters()}) == 1:
            model.to(self.device)
        devices = {str(weight.device) for weight in model.parameters()}
        self.accelerators = sorted(name for name in devices if name.startswith("cuda"))
        weights = {n: w for n, w in model.named_parameters() if w.requires_grad}
        decaying = set(get_parameter_names(model, [nn.LayerNorm], _NOT_DECAYING))
        groups = []
        for decays, decay in ((True, stage.weight_decay), (False, 0.0)):
            params = [weight for name, weight in weights.items() if (name in decaying) == decays]
            groups.append({"params": params, "weight_decay": decay})
        # One kernel per group of weights, which also looks by itself whether half precision
        # overflowed. On a processor it rounds otherwise than the loop that earlier donors took.
        fused = True if self.device.type == "cuda" else None
        self.optimizer = torch.optim.AdamW(
            groups, stage.learning_rate, (0.9, run.adam_beta2), fused=fused
        )
        self.rate = get_linear_schedule_with_warmup(self.optimizer, stage.warmup_steps, n_steps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=run.half == torch.float16)
        # Weights, and buffers that are stored; a tied head is listed as the embeddings.
        stored = model.state_dict().keys()
        self.tensors = {**weights, **{n: b for n, b in model.named_buffers() if n in stored}}
        self.recomputes = False
        """Whether gradients are taken of activations that are computed a second time."""
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Duration of the steps, including those before an interruption."""
        return time.monotonic() - self.start

    def step(self, batch: Mapping[str, Tensor]) -> tuple[Tensor, float]:
        """Take a step; gives its loss and its learning rate."""
        self.model.train()
        counted = {}
        if getattr(self.model, "loss_type", None) is None:
            # As the Trainer of transformers does, whose weights these are: the loss of types that
            # it does not know, such as GPT-2, is divided by all tokens, the first ones among them.
            counted["num_items_in_batch"] = (batch["labels"] != IGNORED).sum()
        loss, learning_rate = self._backward({**batch, **counted}), self.rate.get_last_lr()[0]
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.rate.step()  # after a step that overflowed too: to look at that waits for the device
        self.optimizer.zero_grad()
        return loss, learning_rate

    def _backward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Accumulate gradients, with activations computed twice once they found no room; the loss.

        What the attempt without room drew for dropout is drawn again.
        """
        try:
            loss = self._loss(batch)
            torch.autograd.backward(self.scaler.scale(loss))
            return loss.detach()
        except RuntimeError as error:
            if self.recomputes or not is_out_of_memory(error):
                raise
        self.recomputes = True
        self.optimizer.zero_grad()
        model: Any = self.model
        with warnings.catch_warnings():
            # Renamed in transformers 5.23; the first releases of 5 have this name alone.
            warnings.simplefilter("ignore", FutureWarning)
            model.gradient_checkpointing_enable({"use_reentrant": False})
        warnings.warn(
            f"the device {str(self.device)!r} ran out of memory: activations are computed a second "
            "time for the gradients from here on, so that a step takes about a third longer",
            stacklevel=2,
        )
        return self._backward(batch)

    def _loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean loss per token, in nats."""
        half = self.run.half
        with nullcontext() if half is None else torch.autocast(self.device.type, half):
            inputs = {name: self._moved(tensor) for name, tensor in batch.items()}
            loss: Tensor = self.model(**inputs, use_cache=False).loss
        return loss

    def _moved(self, tensor: Tensor) -> Tensor:
        """A tensor of a batch on the device."""
        if self.device.type != "cuda":
            return tensor.to(self.device)
        # From other memory, the copy waits for all that the device has to do.
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def read(self) -> None:
        """Log the losses since the last time; waits for the device.

        Raises:
            InputError: One is no number.
        """
        unread, self.unread = self.unread, []
        losses = torch.stack([loss for _, loss, _ in unread]).tolist() if unread else []
        for (step, _, rate), loss in zip(unread, losses, strict=True):
            self.log.append({"step": step, "loss": loss, "learning_rate": rate})
            if not math.isfinite(loss):
                raise InputError(
                    f"the loss is no number after step {step}: "
                    "give a smaller --learning-rate, and another --output-dir"
                )

    def validate(self, step: int) -> None:
        """Log the loss on held-out texts, if any; model and random states do not change."""
        self.read()
        batches: Steps = self.run.held_out[0] if self.run.held_out else []
        losses, tokens, total = [], [], 0.0
        self.model.eval()
        with torch.no_grad():
            for number in range(len(batches)):
                batch = batches[number]
                losses.append(self._loss(batch))
                tokens.append(int((batch["labels"][:, 1:] != IGNORED).sum()))
        for loss, n in zip(torch.stack(losses).tolist() if losses else [], tokens, strict=True):
            total += loss * n
        if sum(tokens):
            self.log.append({"step": step, HELD_OUT_LOSS: total / sum(tokens)})

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after a step."""
        most = max(_HELD_SECONDS, _HELD_SHARE * self.seconds)
        return step % self.run.save_every == 0 and self.held <= most

    def save(self, step: int) -> None:
        """Begin to write a checkpoint, once the one before is written.

        It is a copy where that takes at most half of the free memory, else the steps wait for it.

        Raises:
            InputError: A loss is no number.
            OSError: It, or the one before, was not written.
            SafetensorError: The same.
        """
        self.read()
        for device in self.accelerators:
            torch.cuda.synchronize(device)  # so that what follows is the checkpoint's time alone
        started = time.monotonic()
        self.wait()
        optimizer = self.optimizer.state_dict()
        tensors = {f"weight {name}": tensor for name, tensor in self.tensors.items()}
        for number, moments in optimizer["state"].items():
            tensors |= {f"{number} {key}": tensor for key, tensor in moments.items()}
        tensors[f"{_RANDOM}cpu"] = torch.random.get_rng_state()
        for device in self.accelerators:
            tensors[f"{_RANDOM}{device}"] = torch.cuda.random.get_rng_state(device)
        copied = sum(tensor.nbytes for tensor in tensors.values()) <= free_memory()["cpu"] / 2
        written = {}
        for name, tensor in tensors.items():
            part = tensor.detach().to("cpu", copy=True) if copied else tensor.detach()
            written[name] = part.contiguous()
        state = {
            "groups": optimizer["param_groups"],
            "rate": self.rate.state_dict(),
            "scaler": self.scaler.state_dict(),
            "log": list(self.log),
            "seconds": round(self.seconds, 1),
        }
        writer = ThreadPoolExecutor(1)
        folder = self.run.work / f"checkpoint-{step}"
        self.writing = writer.submit(_write_checkpoint, folder, written, state)
        writer.shutdown(wait=False)
        if not copied:
            self.wait()  # what is written must not change meanwhile
        self.held += time.monotonic() - started

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, if any; raises what it failed with."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def resume(self) -> int:
        """Restore the newest intact checkpoint, if any; gives the number of steps taken."""
        folder = last_complete(self.run.work)
        if folder is None:
            self.validate(0)
            return 0
        state = json.loads((folder / _STATE).read_text("utf-8"))["state"]
        tensors = load_file(folder / _TENSORS)
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(tensors.pop(f"weight {name}"))
        for name in [name for name in tensors if name.startswith(_RANDOM)]:
            numbers, device = tensors.pop(name), name.removeprefix(_RANDOM)
            if device == "cpu":
                torch.random.set_rng_state(numbers)
            elif device in self.accelerators:  # else it goes on elsewhere
                torch.cuda.random.set_rng_state(numbers, device)
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            weight, key = name.split()
            moments.setdefault(int(weight), {})[key] = tensor
        self.optimizer.load_state_dict({"state": moments, "param_groups": state["groups"]})
        self.rate.load_state_dict(state["rate"])
        self.scaler.load_state_dict(state["scaler"])
        self.log, self.start = state["log"], self.start - state["seconds"]
        return _step_of(folder)


def _write_checkpoint(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint, and remove all but the newest two."""
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / _TENSORS)
    state["tensors"] = file_hash(folder / _TENSORS)
    content = json.dumps({"state": state, "hash": hash_of(state)})
    write_whole(folder / _STATE, content.encode())
    for older in _checkpoints(folder.parent)[2:]:
        shutil.rmtree(older)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _checkpoints(work: Path) -> list[Path]:
    """Folders of checkpoints, the newest first."""
    return sorted(work.glob("checkpoint-*"), key=_step_of, reverse=True)


def last_complete(work: Path) -> Path | None:
    """The newest intact checkpoint; newer damaged ones are removed with a warning.

    Raises:
        OutputError: A checkpoint is of an earlier version.
    """
    for folder in _checkpoints(work):
        if (folder / "complete.json").exists():
            raise OutputError(
                f"{folder} is a checkpoint of an earlier version of kgbench; finish the training "
                f"with that version, or remove {work} to restart"
            )
        if (folder / _STATE).is_file():
            damaged = _damaged_file(folder)
            if damaged is None:
                return folder
            warnings.warn(
                f"a checkpoint of the training is skipped: {folder / damaged} is damaged; "
                "the training resumes from the one before, or restarts where there is none",
                stacklevel=2,
            )
        shutil.rmtree(folder)
    return None


def _damaged_file(folder: Path) -> str | None:
    """The first file of a checkpoint that is not as it was written."""
    try:
        content = json.loads((folder / _STATE).read_text("utf-8"))
        state = content["state"]
        if content["hash"] != hash_of(state):
            return _STATE
    except (ValueError, RecursionError, LookupError, TypeError):
        return _STATE
    path = folder / _TENSORS
    return None if path.is_file() and file_hash(path) == state["tensors"] else _TENSORS


@contextmanager
def processor_threads(limit: int | None) -> Iterator[None]:
    """Limit the processor threads; the small matrices of tiny pairs gain little from several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(limit or threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
