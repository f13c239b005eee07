"""A training that is taken up goes on exactly, whatever the model calls its weights."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest
import torch
from tiny import random_model, tiny_config
from torch import nn

from kgbench.errors import OutputError
from kgbench.runner.training.recipes import Stage
from kgbench.runner.training.stages import StageRun, last_complete, run_stage

STEPS = 4


def steps() -> list[dict[str, torch.Tensor]]:
    drawn = torch.randint(3, 300, (STEPS, 2, 8), generator=torch.Generator().manual_seed(0))
    return [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids} for ids in drawn
    ]


def trained(model: nn.Module, work: Path, stop: int | None = None) -> dict[str, torch.Tensor]:
    def interrupt(done: int) -> None:
        if done == stop:
            raise KeyboardInterrupt

    stage = Stage(learning_rate=0.01, warmup_steps=0, weight_decay=0.01, rounds=1, batch_size=2)
    run_stage(model, steps(), stage, StageRun(work, seed=0, save_every=1, on_step=interrupt))
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
    stage = Stage(learning_rate=0.01, warmup_steps=0, weight_decay=0.01, rounds=1, batch_size=2)
    run_stage(model, steps(), stage, StageRun(tmp_path, seed=0, half=torch.bfloat16))
    other = fresh()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        ours, theirs = (each.eval()(input_ids=ids).logits for each in (model, other))
    assert torch.equal(ours, theirs)
    assert torch.equal(copy.deepcopy(model)(input_ids=ids).logits, ours)
