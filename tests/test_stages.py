"""A training that is taken up goes on exactly, whatever the model calls its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import TINY, random_model, tiny_config
from torch import nn

from kgbench.training.recipes import Stage
from kgbench.training.stages import Run, last_complete, train

STEPS = 4


def steps() -> list[dict[str, torch.Tensor]]:
    drawn = torch.randint(3, 300, (STEPS, 2, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids} for ids in drawn]


def trained(model: nn.Module, work: Path, stop: int | None = None) -> dict[str, torch.Tensor]:
    def interrupt(done: int) -> None:
        if done == stop:
            raise KeyboardInterrupt

    stage = Stage(learning_rate=0.01, warmup_steps=0, weight_decay=0.01, rounds=1, batch_size=2)
    train(model, steps(), stage, Run(work, seed=0, save_every=1, on_step=interrupt))  # type: ignore[arg-type]  # a list is a data set
    return model.state_dict()


@pytest.mark.parametrize(("family", "variant"), [(family, variant) for family, variants in TINY.items() for variant in variants])
def test_taken_up_it_ends_as_if_unbroken(family: str, variant: str, tmp_path: Path) -> None:
    """Models of every type, tied or not; checkpoints hold names of modules, which those of published files are not always."""

    def fresh() -> nn.Module:
        model: nn.Module = random_model(tiny_config(family, variant), None, 0, torch.float32)
        return model.train().requires_grad_()

    whole = trained(fresh(), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(fresh(), tmp_path / "parts", stop=3)
    last = last_complete(tmp_path / "parts")
    assert last is not None and last.name == "checkpoint-2"
    parts = trained(fresh(), tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
