"""A trainer that evaluates along training: what it records, and that training does not notice."""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import Trainer, TrainingArguments

import kgbench
from kgbench.errors import InputError

PAIR, GRAFTS = "tiny-gemma", ["LT", "ALL"]


def put_around(model: Any) -> None:
    """A forward pass around that of the model's class, as trainers of TRL put it."""
    own = model.forward

    @functools.wraps(type(model).forward)
    def around(self: Any, *args: Any, fused: bool = False, **options: Any) -> Any:
        assert not fused
        return own(*args, **options)

    model.forward = types.MethodType(around, model)


def trained(
    folder: Path, callbacks: list[Any], adapter: bool = False, change: Any = None
) -> torch.nn.Module:
    """A tiny model after four steps on three sentences; it saves after the second and fourth."""
    torch.manual_seed(0)
    pair = kgbench.load_pair(PAIR, share=False)
    model: Any = pair.recipient
    model.model.layers.requires_grad_(True)
    if change is not None:
        change(model)
    if adapter:
        model = get_peft_model(model, LoraConfig(target_modules="all-linear", lora_dropout=0.1))
    prompts = kgbench.load_prompts("tiny_movies", ["headline"], 3)
    texts = [f"{prompt.text} {prompt.target}" for prompt in prompts]
    rows = [{"input_ids": ids, "labels": ids} for ids in pair.tokenizer(texts).input_ids]
    options = TrainingArguments(
        str(folder),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=1,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(
        model, options, train_dataset=rows, processing_class=pair.tokenizer, callbacks=callbacks
    ).train()
    return model


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # of PEFT
@pytest.mark.parametrize("adapter", [False, True])
def test_training_is_the_same_with_it(tmp_path: Path, adapter: bool) -> None:
    """Weights after training are equal bit for bit; every save has a run, in which grafting
    everything gives the model of that step.
    """
    graft = kgbench.GraftCallback(
        "tiny_movies",
        None if adapter else kgbench.load_pair(PAIR, share=False).recipient,
        prompts="headline",
        grafts=GRAFTS,
        limit=12,
        metric="logprob",
        output_dir=tmp_path / "runs",
    )
    alone = trained(tmp_path / "alone", [], adapter)
    model = trained(tmp_path / "with", [graft], adapter)
    for one, other in zip(alone.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert model.training and list(graft.runs) == [2, 4]
    rows = [
        {row.graft: row.logprob.value for row in run.record.rows} for run in graft.runs.values()
    ]
    for (step, run), row in zip(graft.runs.items(), rows, strict=True):
        assert run.record.identity.weights.donors.keys() == {f"step{step}"}
        assert row["ALL"] == pytest.approx(row["SFT"], abs=1e-5)
    assert rows[0]["PRE"] == rows[1]["PRE"] and rows[0]["SFT"] != rows[1]["SFT"]


def test_every_so_many_steps_and_from_a_folder(tmp_path: Path) -> None:
    """The base may be a folder; figures are in the trainer's history."""
    kgbench.load_pair(PAIR, share=False).recipient.save_pretrained(tmp_path / "base")
    graft = kgbench.GraftCallback(
        "tiny_movies",
        tmp_path / "base",
        every=3,
        prompts="headline",
        grafts=GRAFTS,
        limit=12,
        metric="logprob",
        output_dir=tmp_path / "runs",
    )
    trained(tmp_path / "trainer", [graft])
    assert list(graft.runs) == [3]
    state = (tmp_path / "trainer/checkpoint-4/trainer_state.json").read_text("utf-8")
    assert '"kgbench/headline/LT/logprob"' in state
    with pytest.raises(InputError, match="1 or more"):
        kgbench.GraftCallback("tiny_movies", every=0)
    with pytest.raises(InputError, match="give base"):
        trained(tmp_path / "none", [kgbench.GraftCallback("tiny_movies")])


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # of PEFT
def test_a_trainer_s_forward_is_no_part_of_the_model(tmp_path: Path) -> None:
    """One around the class's is as if it were not there, and is in its place afterwards; one instead
    of the class's is refused.
    """
    found = {}
    for name, change in (("own", None), ("around", put_around)):
        options = dict(prompts="headline", grafts=GRAFTS, limit=12, metric="logprob")
        graft = kgbench.GraftCallback("tiny_movies", **options, output_dir=tmp_path / "runs" / name)
        model: Any = trained(tmp_path / name, [graft], True, change)
        found[name] = [run.record.id for run in graft.runs.values()]
        assert ("forward" in vars(model.get_base_model())) is (change is not None)
    assert found["own"] == found["around"] and len(found["own"]) == 2

    def replace(model: Any) -> None:
        own = model.forward

        def other(input_ids: Any, attention_mask: Any = None, labels: Any = None, **_: Any) -> Any:
            return own(input_ids=input_ids, attention_mask=attention_mask, labels=labels)

        model.forward = other

    with pytest.raises(InputError, match="replaced functions"):
        trained(tmp_path / "other", [kgbench.GraftCallback("tiny_movies")], True, replace)
