"""A training that is taken up goes on exactly, whatever the model calls its weights."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import random_model, tiny_config
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kgbench.errors import OutputError
from kgbench.models import placement
from kgbench.runner.training.recipes import Stage
from kgbench.runner.training.stages import Batches, StageRun, Training, last_complete, run_stage

STEPS = 4
STAGE = Stage(learning_rate=0.01, warmup_steps=0, weight_decay=0.01, rounds=1, batch_size=2)


def steps() -> list[dict[str, torch.Tensor]]:
    drawn = torch.randint(3, 300, (STEPS, 2, 8), generator=torch.Generator().manual_seed(0))
    return [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids} for ids in drawn
    ]


def trained(model: nn.Module, work: Path, stop: int | None = None) -> dict[str, torch.Tensor]:
    def interrupt(done: int) -> None:
        if done == stop:
            raise KeyboardInterrupt

    run_stage(model, steps(), STAGE, StageRun(work, seed=0, save_every=1, on_step=interrupt))
    return model.state_dict()


def fresh(family: str = "gpt2", variant: str = "tied") -> nn.Module:
    """A small model; the default one has dropout, so that what is drawn counts."""
    model: nn.Module = random_model(tiny_config(family, variant), None, 0, torch.float32)
    return model.train().requires_grad_()


@pytest.mark.parametrize(
    ("family", "variant"),
    [("gpt2", "tied"), ("llama", "untied, biases"), ("gpt_neox", "sequential, no biases")],
    ids=["tied, with dropout", "untied", "a head of another name in published files"],
)
def test_taken_up_it_ends_as_if_unbroken(family: str, variant: str, tmp_path: Path) -> None:
    """After the last step but one, whether the head is tied or not; checkpoints hold names of
    modules, which those of published files are not always.
    """
    whole = trained(fresh(family, variant), tmp_path)
    shutil.rmtree(tmp_path / f"checkpoint-{STEPS}")
    last = last_complete(tmp_path)
    assert last is not None and last.name == f"checkpoint-{STEPS - 1}"
    assert equal(trained(fresh(family, variant), tmp_path), whole)


def begun(work: Path) -> None:
    """A training that was interrupted in its last step."""
    with pytest.raises(KeyboardInterrupt):
        trained(fresh(), work, stop=STEPS)


class Copies(TorchDispatchMode):
    """Counts copies from one device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, call: Any, types: Any, given: Sequence[Any] = (), options: Mapping[str, Any] = {}
    ) -> Any:
        result = call(*given, **options)
        if call.overloadpacket is torch.ops.aten._to_copy:
            self.count += given[0].device != result.device
        return result


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_nothing_is_pickled(tmp_path: Path) -> None:
    """A checkpoint holds safetensors and JSON alone."""
    begun(tmp_path)
    folder, *_ = tmp_path.glob("checkpoint-*")
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}


def test_a_damaged_checkpoint_is_never_used(tmp_path: Path) -> None:
    """A bit that turns over in any file of the newest checkpoint: it is told, and the one before
    leads to the same weights.
    """
    whole = trained(fresh(), tmp_path / "whole")
    begun(tmp_path / "begun")
    names = sorted(path.name for path in (tmp_path / "begun" / "checkpoint-3").iterdir())
    assert names == ["state.json", "tensors.safetensors"]
    for name in names:
        work = shutil.copytree(tmp_path / "begun", tmp_path / name)
        content = bytearray((work / "checkpoint-3" / name).read_bytes())
        content[len(content) // 2] ^= 4
        (work / "checkpoint-3" / name).write_bytes(content)
        with pytest.warns(
            UserWarning,
            match=rf"checkpoint-3/{name} is damaged; the training resumes from the one before",
        ):
            last = last_complete(work)
        assert last is not None and last.name == "checkpoint-2"
        assert equal(trained(fresh(), work), whole)


def test_a_training_without_an_intact_checkpoint_begins_anew(tmp_path: Path) -> None:
    """Where all checkpoints are damaged, the training begins anew and ends with the same weights."""
    whole = trained(fresh(), tmp_path / "whole")
    begun(tmp_path / "begun")
    for folder in (tmp_path / "begun").glob("checkpoint-*"):
        (folder / "tensors.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="tensors.safetensors is damaged"):
        assert equal(trained(fresh(), tmp_path / "begun"), whole)


def test_a_checkpoint_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    """One of other files, such as a pickled optimizer, is refused and left as it is."""
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    (folder / "complete.json").write_text('{"seconds": 1.5}')
    (folder / "optimizer.pt").write_bytes(b"pickled")
    with pytest.raises(OutputError, match="is a checkpoint of an earlier version of kgbench"):
        last_complete(tmp_path)
    assert (folder / "optimizer.pt").exists()


def test_half_precision_ends_with_the_training(tmp_path: Path) -> None:
    """What is measured of a trained model is what its saved weights answer, in full precision."""
    model, ids = fresh(), steps()[0]["input_ids"]
    run_stage(model, steps(), STAGE, StageRun(tmp_path, seed=0, half=torch.bfloat16))
    other = fresh()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        ours, theirs = (each.eval()(input_ids=ids).logits for each in (model, other))
    assert torch.equal(ours, theirs)
    assert torch.equal(copy.deepcopy(model)(input_ids=ids).logits, ours)


def masked() -> list[dict[str, torch.Tensor]]:
    """The steps with masks of four dimensions, without which transformers itself waits once in a
    forward, to see whether texts are packed.
    """
    return [{**batch, "attention_mask": torch.zeros(2, 1, 8, 8)} for batch in steps()]


def test_no_step_waits_for_its_device(tmp_path: Path) -> None:
    """On the device `meta`, whatever asks for a value raises: no step does, nor does what a training
    does between checkpoints, and a step moves its tensors alone.
    """

    def interrupt(done: int) -> None:
        if done == STEPS - 1:
            raise KeyboardInterrupt

    nothing = Batches([], 0), 10**6
    run = StageRun(
        tmp_path, 0, 10**6, on_step=interrupt, held_out=nothing, device="meta", half=None
    )
    model = fresh().to("meta")
    with Copies() as copies, pytest.raises(KeyboardInterrupt):
        run_stage(model, masked(), STAGE, run)
    moved = ("input_ids", "attention_mask", "labels", "num_items_in_batch")
    assert copies.count == len(moved) * (STEPS - 1)


def test_activations_without_room_are_computed_twice(tmp_path: Path) -> None:
    """The weights are those of a device with room, but for rounding."""
    limited, free = (fresh("llama", "untied, biases") for _ in range(2))
    kept = [0]

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[0] += tensor.numel()
        if kept[0] > 50_000:
            kept[0] = 0
            raise torch.OutOfMemoryError("out of memory")
        return tensor

    training = Training(limited, STAGE, STEPS, StageRun(tmp_path, 0))
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        pytest.warns(UserWarning, match="'cpu' ran out of memory: activations are computed"),
    ):
        for batch in steps():
            kept[0] = 0
            training.step(batch)
    other = Training(free, STAGE, STEPS, StageRun(tmp_path, 0))
    for batch in steps():
        other.step(batch)
    for name, weight in free.state_dict().items():
        torch.testing.assert_close(limited.state_dict()[name], weight, atol=1e-5, rtol=1e-5)


def test_held_out_losses_are_read_once(tmp_path: Path) -> None:
    """A validation computes all of its batches before it waits for the first."""
    model, forwards = fresh().to("meta"), list[int]()
    model.register_forward_hook(lambda *_: forwards.append(1))
    run = StageRun(tmp_path, 0, held_out=(masked(), 1), device="meta", half=None)
    training = Training(model, STAGE, STEPS, run)
    with pytest.raises(NotImplementedError, match="meta"):
        training.validate(0)
    assert len(forwards) == STEPS


@pytest.mark.parametrize("free", [None, 0])
def test_a_checkpoint_is_what_the_weights_were(
    free: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written while the weights change already, once the one before is; where memory has no
    room for a copy, before they change.
    """
    if free is not None:
        memory = SimpleNamespace(available=free)
        monkeypatch.setattr(placement.psutil, "virtual_memory", lambda: memory)
    model = nn.Linear(2048, 2048)
    training = Training(model, STAGE, STEPS, StageRun(tmp_path, 0, half=None))
    for number in (1, 2):
        nn.init.constant_(model.weight, number)
        training.save(number)
        nn.init.constant_(model.weight, -1)
        assert number == 1 or (tmp_path / "checkpoint-1" / "state.json").is_file()
    training.wait()
    for number in (1, 2):
        tensors = load_file(tmp_path / f"checkpoint-{number}" / "tensors.safetensors")
        assert tensors["weight weight"].eq(number).all()
    last = last_complete(tmp_path)
    assert last is not None and last.name == "checkpoint-2"


@pytest.mark.parametrize(("number", "stop"), [(2, None), (STEPS, None), (2, 3)])
def test_a_checkpoint_that_cannot_be_written_ends_the_training(
    number: int, stop: int | None, tmp_path: Path
) -> None:
    """Whether it is the last one or an earlier one, and where the training is interrupted too."""

    def interrupt(done: int) -> None:
        if done == number:
            (tmp_path / f"checkpoint-{number}").touch()  # where the folder would be
        if done == stop:
            raise KeyboardInterrupt

    run = StageRun(tmp_path, seed=0, save_every=1, on_step=interrupt)
    with pytest.raises(FileExistsError, match=f"checkpoint-{number}"):
        run_stage(fresh(), steps(), STAGE, run)


def test_checkpoints_hold_up_a_training_little(tmp_path: Path) -> None:
    """For five seconds, or 3 % of the time where that is more, but for the last one of them."""
    training = Training(fresh(), STAGE, STEPS, StageRun(tmp_path, 0, save_every=2))
    assert training.is_due(2) and not training.is_due(3)
    training.held = 6.0
    assert not training.is_due(2)
    training.start -= 201
    assert training.is_due(2)
