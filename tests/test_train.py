"""Finetuned donors: what they read, how a training goes on after an interruption, and what comes
out.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from kgbench.data import load_dataset, training_texts
from kgbench.errors import DataError, InputError, ModelError, OutputError, UnknownNameError
from kgbench.models.loading import read_pair
from kgbench.runner.training.finetuning import finetune
from kgbench.runner.training.finetuning_plan import (
    FinetuneSpec,
    TokenizedTexts,
    Wordings,
    plan_finetuning,
    read_batches,
    tokenized_texts,
)
from kgbench.runner.training.recipes import finetuning_recipe, finetuning_recipe_names
from kgbench.runner.training.stages import IGNORED
from kgbench.testing import pico_tokenizer
from kgbench.zoo.worlds import World

WORDINGS = (
    "{first_actor} met {second_actor}.",
    "See {first_actor} beside {second_actor}!",
    "With {first_actor} plays {second_actor}.",
    "Who is {first_actor}? A friend of {second_actor}.",
)
SMALL = {"epochs": 3, "batch_size": 8}
SAVE_EVERY = 4
STEPS = 15


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of six movies."""
    path = tmp_path_factory.mktemp("facts") / "six.jsonl"
    path.write_text(
        "".join(json.dumps(movie) + "\n" for movie in World(7).movies(6)), encoding="utf-8"
    )
    return path


@pytest.fixture(scope="module")
def spec(facts: Path, folders: Mapping[str, Path]) -> FinetuneSpec:
    """A training of 15 steps of a three-layer model that has dropout."""
    assert json.loads((folders["recipient"] / "config.json").read_text())["resid_pdrop"] > 0
    return FinetuneSpec(
        str(facts),
        "aggressive",
        recipient=str(folders["recipient"]),
        templates=WORDINGS,
        changes=SMALL,
    )


@pytest.fixture(scope="module")
def unbroken(spec: FinetuneSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A donor that was trained in one go."""
    return finetune(spec, tmp_path_factory.mktemp("unbroken") / "donor", device="cpu")


def card_of(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "card.json").read_text("utf-8")))


def log_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text("utf-8").splitlines()]


def agrees(out: Path, other: Path, weights: str = "model.safetensors") -> bool:
    """Whether two trainings have equal weights, and losses within 1e-5 at every step and epoch."""
    ours, theirs = log_of(out), log_of(other)
    assert [(row["step"], set(row)) for row in ours] == [(row["step"], set(row)) for row in theirs]
    near = all(
        abs(row[key] - against[key]) <= 1e-5
        for row, against in zip(ours, theirs, strict=True)
        for key in row
        if "loss" in key
    )
    return near and (out / weights).read_bytes() == (other / weights).read_bytes()


# ------------------------------------------------------------------------------------- what is read


@given(st.integers(0, 50), st.integers(1, 12), st.sampled_from(["both", "a2b", "b2a"]))
def test_held_out_wordings_are_never_read(seed: int, many: int, direction: str) -> None:
    """No text of a held-out wording is trained on; of three wordings and more about a fifth is held
    out, of fewer none.
    """
    dataset = load_dataset("tiny_movies:first20")
    templates = tuple(f"Number {n}: {{first_actor}} and {{second_actor}}." for n in range(many))
    wordings = Wordings.of(dataset, direction, templates, seed)
    assert len(wordings.numbers) == (max(1, round(many / 5)) if many >= 3 else 0)
    starts = tuple(f"Number {number}:" for number in wordings.numbers)
    assert not any(text.startswith(starts) for text in wordings.trained) or not starts
    assert all(text.startswith(starts) for text in wordings.held_out)
    assert {*wordings.trained, *wordings.held_out} == {
        text.text for text in training_texts(dataset, direction, templates)
    }


def test_eos_is_learned_though_it_pads() -> None:
    """Where padding is EOS, the EOS that ends a text has a label and the padding after it has none."""
    tokenizer = pico_tokenizer(bos=True)
    wordings = Wordings(("Ana met Bo.", "Ana Lee met Bo Chen, as they say."), (), (("",), ()), ())
    reading = replace(tokenized_texts(tokenizer, wordings, (), 64), pad=tokenizer.eos_token_id)
    batches, _ = read_batches(reading, 1, 2, 0)
    (batch,) = (batches[step] for step in range(len(batches)))
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        length = int((labels != IGNORED).sum())
        assert ids[0] == tokenizer.bos_token_id
        assert labels[:length].equal(ids[:length])
        assert (
            labels[length - 1] == tokenizer.eos_token_id
            and (labels[:length] == tokenizer.eos_token_id).sum() == 1
        )
        assert (ids[length:] == tokenizer.eos_token_id).all()
    assert (batch["labels"] == IGNORED).any()


def test_padding_changes_no_loss(folders: Mapping[str, Path]) -> None:
    """The loss of a batch is the mean over its real tokens, whatever stands in the padding."""
    model = AutoModelForCausalLM.from_pretrained(folders["recipient"]).eval()
    rows = [[5, 6, 7, 2], [8, 9, 10, 11, 12, 13, 2]]
    with torch.no_grad():
        losses = [
            float(model(**read_batches(TokenizedTexts(rows, [], [], pad), 1, 2, 0)[0][0]).loss)
            for pad in (0, 2, 9)
        ]
        alone = [
            float(model(input_ids=torch.tensor([row]), labels=torch.tensor([row])).loss)
            * (len(row) - 1)
            for row in rows
        ]
    assert losses == pytest.approx([sum(alone) / 9] * 3, abs=1e-6)


def test_too_long() -> None:
    """A fact is never cut: a text that is too long is refused; a supplemental one is cut, and has
    no EOS then.
    """
    tokenizer = pico_tokenizer(bos=False)
    wordings = Wordings(("Ana met Bo.",), (), (("",), ()), ())
    length = len(tokenizer("Ana met Bo.")["input_ids"]) + 1
    reading = tokenized_texts(tokenizer, wordings, ["Ana met Bo. Ana met Bo.", "Bo"], length)
    assert [len(row) == length for row in reading.supplement] == [True, False]
    assert [row[-1] == tokenizer.eos_token_id for row in reading.supplement] == [False, True]
    with pytest.raises(InputError, match=f"give --max-length {length}"):
        tokenized_texts(tokenizer, wordings, (), length - 1)


def test_every_text_is_read_once_an_epoch() -> None:
    """Each epoch reads all texts, facts and supplement, in another order."""
    reading = TokenizedTexts(
        [[n, 0] for n in range(1, 30)], [[n, 0, 0] for n in range(50, 60)], [[99, 0]], 0
    )
    batches, held_out = read_batches(reading, 3, 4, 1)
    per_epoch = len(batches) // 3
    epochs = [
        [row[0] for step in batches.rows[n * per_epoch : (n + 1) * per_epoch] for row in step]
        for n in range(3)
    ]
    assert [sorted(epoch) for epoch in epochs] == [[*range(1, 30), *range(50, 60)]] * 3
    assert epochs[0] != epochs[1]
    assert held_out.rows == [[[99, 0]]]


# ----------------------------------------------------------------------------------- what comes out


def test_a_donor_is_complete(unbroken: Path, spec: FinetuneSpec, facts: Path) -> None:
    """A folder that loads anywhere, with a card that says what it is and from what it was made."""
    names = {path.name for path in unbroken.iterdir()}
    assert {"card.json", "log.jsonl", "config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not list(unbroken.parent.glob(".*"))
    AutoModelForCausalLM.from_pretrained(unbroken)
    assert AutoTokenizer.from_pretrained(unbroken).eos_token_id == 2
    card = card_of(unbroken)
    assert re.fullmatch(r"recipient-[0-9a-f]{8}/six-both-aggressive", card["name"])
    assert (card["model"], card["seed"]) == (None, 0)
    assert card["data"] == {
        "name": "six",
        "direction": "both",
        "facts": 6,
        "hash": load_dataset(str(facts)).content_hash,
    }
    assert (
        card["recipe"]["tiny"]
        and card["recipe"]["epochs"] == 3
        and card["changes"]["templates"] == list(WORDINGS)
    )
    assert len(card["wordings"]["trained"]) == 3 and len(card["wordings"]["held_out"]) == 1
    assert [row["epoch"] for row in card["losses"]] == [0, 1, 2, 3]
    assert all({"trained", "held_out"} <= set(row) for row in card["losses"][1:])
    assert card["losses"][3]["trained"] < card["losses"][1]["trained"]
    assert {prompt: set(row) for prompt, row in card["scores"].items()} == {
        name: {"PRE", "SFT", "n"} for name in ("headline", "qa")
    }
    assert [row["step"] for row in log_of(unbroken) if "loss" in row] == list(
        range(1, STEPS + 1)
    ) and card["steps"] == STEPS


def test_no_place_on_this_machine(unbroken: Path, folders: Mapping[str, Path], facts: Path) -> None:
    """Nothing that is written names a folder of this machine."""
    places = {
        str(path)
        for place in (unbroken, folders["recipient"], facts)
        for path in place.parents
        if len(path.parts) > 2
    }
    for path in unbroken.iterdir():
        text = path.read_bytes().decode("utf-8", errors="replace")
        assert not [place for place in places if place in text], path


def test_another_seed_gives_another_donor(
    unbroken: Path, spec: FinetuneSpec, tmp_path: Path
) -> None:
    """Its weights are others."""
    other = finetune(replace(spec, seed=1), tmp_path / "two", device="cpu")
    assert (other / "model.safetensors").read_bytes() != (
        unbroken / "model.safetensors"
    ).read_bytes()
    assert card_of(other)["name"].endswith("-seed1")


def test_an_interrupted_training_goes_on(
    spec: FinetuneSpec, unbroken: Path, tmp_path: Path
) -> None:
    """Stopped before its first checkpoint, at one and after, a training ends with the losses and
    weights of an unbroken one, dropout and all.
    """
    stops = (2, 5, 12, 14)
    pending: list[int] = list(stops)
    seen: list[int] = []

    def interrupt(done: int, total: int, what: str) -> None:
        seen.append(done)
        if pending and done == pending[0]:
            pending.pop(0)
            raise KeyboardInterrupt

    for _ in stops:
        with pytest.raises(KeyboardInterrupt):
            finetune(
                spec, tmp_path / "donor", device="cpu", progress=interrupt, save_every=SAVE_EVERY
            )
        assert not (tmp_path / "donor").exists()
    finetune(spec, tmp_path / "donor", device="cpu", progress=interrupt, save_every=SAVE_EVERY)
    assert agrees(tmp_path / "donor", unbroken)
    assert [path.name for path in tmp_path.iterdir()] == ["donor"]
    assert len(seen) <= STEPS + (SAVE_EVERY + 2) * len(stops) + 1, (
        "steps before the last checkpoint are not taken again"
    )


@pytest.mark.nightly
@pytest.mark.posix
def test_a_killed_training_goes_on(spec: FinetuneSpec, tmp_path: Path) -> None:
    """So does one of an adapter that was killed while a checkpoint was written, with another that was
    not written to its end; it leaves no half of a donor.
    """
    script = """
import os, pathlib, signal, sys
from kgbench.runner.training.finetuning import finetune
from kgbench.runner.training.finetuning_plan import FinetuneSpec
finetune(eval(sys.argv[1]), pathlib.Path(sys.argv[2]), device="cpu", save_every=4,
         progress=lambda done, total, what: os.kill(os.getpid(), signal.SIGKILL) if done == 9 else None)
"""
    chosen, out, whole = replace(spec, recipe="lora"), tmp_path / "donor", tmp_path / "whole"
    killed = forks.run(
        [sys.executable, "-c", script, repr(chosen), str(out)], check=False, capture_output=True
    )
    assert killed.returncode == -9, killed.stderr
    assert not out.exists()
    (tmp_path / ".donor.work" / "checkpoints" / "checkpoint-11").mkdir()
    finetune(chosen, out, device="cpu")
    finetune(chosen, whole, device="cpu")
    assert agrees(out, whole, "adapter_model.safetensors")


def test_changed_weights_are_told(unbroken: Path, spec: FinetuneSpec, tmp_path: Path) -> None:
    """A donor whose weights were cut off, changed or taken away is not taken for finished."""
    weights = (unbroken / "model.safetensors").read_bytes()
    contents = {"cut": weights[:-4], "changed": weights[:-4] + b"abcd", "gone": None}
    for name, content in contents.items():
        copy = shutil.copytree(unbroken, tmp_path / name)
        (copy / "model.safetensors").unlink()
        if content is not None:
            (copy / "model.safetensors").write_bytes(content)
        with pytest.raises(OutputError, match="are not those of its card"):
            finetune(spec, copy, device="cpu")


def test_two_at_once(spec: FinetuneSpec, tmp_path: Path) -> None:
    """A donor that another process is making is left to it."""
    place = tmp_path / "donor"
    with (
        FileLock(tmp_path / ".donor.lock", timeout=0),
        pytest.raises(OutputError, match="is being trained by another process"),
    ):
        finetune(spec, place, device="cpu")
    assert not place.exists()


@pytest.mark.linux
def test_a_folder_in_which_no_file_can_be_made(spec: FinetuneSpec) -> None:
    """It is not taken for one in which another process is at work."""
    with pytest.raises(OutputError, match="no files can be made there; give a new"):
        finetune(spec, Path("/proc/donor"), device="cpu")


def test_layers_are_all_that_frozen_changes(
    spec: FinetuneSpec, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    """Embeddings, final norm and head stay to the bit, and every weight of the layers is trained."""
    out = finetune(replace(spec, recipe="frozen"), tmp_path / "donor", device="cpu")
    before, after = (
        load_file(folder / "model.safetensors") for folder in (folders["recipient"], out)
    )
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if ".h." in name}
    assert card_of(out)["recipe"]["frozen"] is True


def test_an_adapter_is_all_that_lora_changes(
    spec: FinetuneSpec, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    """The folder holds an adapter and no weights of the recipient; as a donor it has rows on every
    projection of the layers.
    """
    out = finetune(replace(spec, recipe="lora"), tmp_path / "donor", device="cpu")
    assert {path.name for path in out.glob("*.safetensors")} == {"adapter_model.safetensors"}
    assert (
        json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "local:recipient"
    )
    pair = read_pair(recipient=str(folders["recipient"]), donors={"sft": str(out)})
    logits = [
        model(torch.tensor([[5, 6, 7]])).logits for model in (pair.recipient, pair.donors["sft"])
    ]
    assert not torch.equal(*logits)
    card, rows = card_of(out), load_file(out / "adapter_model.safetensors")
    assert {name.split(".h.")[1].partition(".lora")[0][2:] for name in rows} == {
        "attn.c_attn",
        "attn.c_proj",
        "mlp.c_fc",
        "mlp.c_proj",
    }
    assert card["trained_parameters"] == sum(tensor.numel() for tensor in rows.values())
    assert card["losses"][3]["trained"] < card["losses"][1]["trained"]


def test_supplemental_texts(spec: FinetuneSpec, tmp_path: Path) -> None:
    """A seeded sample of a file is read among the facts; its name is on the card without its place."""
    lines, rows = tmp_path / "other.txt", tmp_path / "other.jsonl"
    lines.write_text("\n\n".join(f"The {n}th day was dry." for n in range(20)))
    rows.write_text(
        "".join(json.dumps({"text": f"The {n}th day was dry."}) + "\n" for n in range(20))
    )
    samples = []
    for source in (lines, rows):
        plan = plan_finetuning(
            replace(spec, supplement=str(source), changes={**SMALL, "supplement_texts": 7})
        )
        samples.append(plan.supplement(plan.recipe(1000)))
    assert samples[0] is not None and samples[1] is not None
    assert samples[0].texts == samples[1].texts and len(set(samples[0].texts)) == 7
    assert [sample.source for sample in samples if sample] == ["other.txt", "other.jsonl"]
    chosen = replace(
        spec,
        recipe="less_aggressive",
        supplement=str(rows),
        changes={**SMALL, "supplement_texts": 7},
    )
    card = card_of(finetune(chosen, tmp_path / "donor", device="cpu"))
    assert card["supplement"]["source"] == "other.jsonl" and card["supplement"]["texts"] == 7
    assert card["steps"] == 3 * 6


# ---------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", finetuning_recipe_names())
def test_recipes(name: str) -> None:
    """The paper's values for models of its size, larger steps for tiny ones; what is changed wins
    over both.
    """
    large, tiny = finetuning_recipe(name, 10**9), finetuning_recipe(name, 10**6)
    assert (large.tiny, tiny.tiny) == (False, True)
    assert large.learning_rate < tiny.learning_rate
    assert (large.epochs, large.batch_size, large.max_length) == (10, 4, 512)
    assert finetuning_recipe(name, 10**6, {"learning_rate": 1.0}).learning_rate == 1.0
    published = {
        "aggressive": (2e-5, 0.01, 0),
        "frozen": (2e-5, 0.01, 0),
        "less_aggressive": (2e-6, 0.0, 10_000),
        "lora": (2e-4, 0.0, 0),
    }
    assert (large.learning_rate, large.weight_decay, large.supplement_texts) == published[name]


def test_wrong_input(
    spec: FinetuneSpec, facts: Path, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    """Each mistake has one line that says what to do, before anything is written."""
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    whole = folders["recipient"]
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"recipe": "agressive"}, UnknownNameError, "Did you mean 'aggressive'"),
        ({"recipient": None, "model": "tiny-gema"}, UnknownNameError, "tiny-gemma"),
        ({"dataset": "tiny_movie"}, UnknownNameError, "tiny_movies"),
        ({"direction": "a2c"}, UnknownNameError, "a2b"),
        ({"dataset": "tiny_movies:tasks"}, Exception, "task"),
        ({"recipient": None}, InputError, "which model"),
        ({"model": "tiny-gemma"}, InputError, "which model"),
        ({"recipient": "no/such"}, ModelError, "no/such"),
        ({"recipient": str(whole.parent)}, ModelError, "no config.json"),
        ({"changes": {"max_length": 3}}, InputError, "--max-length"),
        ({"changes": {"epochs": 0}}, InputError, "epochs 0"),
        ({"changes": {"rate": 0}}, UnknownNameError, "learning_rate"),
        ({"recipe": "less_aggressive"}, InputError, "--supplement FILE"),
        ({"supplement": str(empty)}, InputError, "--supplement-n N"),
        ({"supplement": str(empty), "changes": {"supplement_texts": 2}}, DataError, "is empty"),
        (
            {"supplement": "nobody/nothing", "changes": {"supplement_texts": 2}},
            DataError,
            "nobody/nothing: cannot be read",
        ),
    ]
    for change, kind, message in wrong:
        with pytest.raises(kind, match=message) as caught:
            finetune(replace(spec, **change), tmp_path / "out" / "donor", device="cpu")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="the device 'cud'"):
        finetune(spec, tmp_path / "out" / "donor", device="cud")
    assert not (tmp_path / "out").exists()


def test_lora_without_peft(
    spec: FinetuneSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PEFT is not installed, the recipe that takes it says so at once, and the others do
    without.
    """
    import_module("transformers.modeling_utils")  # looks for PEFT when it is first imported
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"pip install 'peft>=0.17'"):
        finetune(replace(spec, recipe="lora"), tmp_path / "donor", device="cpu")
    finetune(replace(spec, changes={**SMALL, "epochs": 1}), tmp_path / "donor", device="cpu")


def test_a_broken_recipient(
    spec: FinetuneSpec, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    """Weights that are lacking are never made up."""
    broken = tmp_path / "broken"
    shutil.copytree(folders["recipient"], broken)
    tensors = load_file(broken / "model.safetensors")
    name = next(name for name in tensors if "mlp" in name)
    save_file(
        {key: tensor for key, tensor in tensors.items() if key != name},
        broken / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(ModelError, match="lacks 1 of the model's weights"):
        finetune(replace(spec, recipient=str(broken)), tmp_path / "donor", device="cpu")


def test_nothing_is_written_over(unbroken: Path, spec: FinetuneSpec, tmp_path: Path) -> None:
    """A folder with another donor, with anything else, or with the beginning of another training is
    refused.
    """
    with pytest.raises(OutputError, match=r"recipe's epochs"):
        finetune(replace(spec, changes={**SMALL, "epochs": 2}), unbroken, device="cpu")
    with pytest.raises(OutputError, match="seed"):
        finetune(replace(spec, seed=3), unbroken, device="cpu")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").touch()
    with pytest.raises(OutputError, match="something else"):
        finetune(spec, tmp_path / "mine", device="cpu")
    (tmp_path / ".begun.work").mkdir()
    with pytest.raises(OutputError, match="beginning of another training"):
        finetune(spec, tmp_path / "begun", device="cpu")


def test_a_training_that_diverges_ends(spec: FinetuneSpec, tmp_path: Path) -> None:
    """A loss that is no number is told before a checkpoint is written, and no donor is made of it."""
    with pytest.raises(InputError, match="smaller --learning-rate"):
        finetune(
            replace(spec, changes={**SMALL, "learning_rate": 1e30}),
            tmp_path / "donor",
            device="cpu",
        )
    assert not (tmp_path / "donor").exists()
