"""How a plant is stored: the weights that differ from its recipient's, and what does not fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from fake_plants import write_plant
from few_plants import refusal
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from kgbench.engine import load_pair
from kgbench.errors import ModelError
from kgbench.models import catalog
from kgbench.models.checkpoints import locate
from kgbench.models.pair import ModelPair
from kgbench.models.tensors import apply_delta, read_delta, stored_hash
from kgbench.zoo.tiny_pairs import write_delta


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plant with a decoy, of a few steps."""
    folder = tmp_path_factory.mktemp("plants") / "fused"
    return write_plant(folder, "ALL:down@1", "ALL:up@2,3", base="tiny-gpt2")


class Weights(nn.Module):
    """A matrix and a bias."""

    def __init__(self, matrix: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.matrix, self.bias = (
            nn.Parameter(tensor.clone(), requires_grad=False) for tensor in (matrix, bias)
        )


@given(
    rows=st.sets(st.integers(0, 9)),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
def test_deltas_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: set[int], bias: bool, dtype: torch.dtype
) -> None:
    """A recipient with a delta is the donor to half a step of each row; what did not change is not
    stored and stays bit for bit.
    """
    path = tmp_path_factory.mktemp("delta") / "delta.safetensors"
    generator = torch.Generator().manual_seed(len(rows))
    matrix, vector = (
        torch.randn(shape, generator=generator).to(dtype).float() for shape in ((10, 3), (3,))
    )
    recipient, donor = Weights(matrix, vector), Weights(matrix, vector)
    donor.matrix[sorted(rows)] += torch.randn((len(rows), 3), generator=generator)
    donor.bias += 0.7 * bias
    write_delta(recipient, donor, path)
    assert set(read_delta(path, "this")) == {
        name for name, moved in (("bias", bias), ("matrix", rows)) if moved
    }
    apply_delta(recipient, path, "this")
    largest = (donor.matrix - matrix).abs().amax(dim=1, keepdim=True)
    assert bool(((recipient.matrix - donor.matrix).abs() <= largest / 254 + 1e-6).all())
    same = [row for row in range(10) if row not in rows]
    assert torch.equal(recipient.matrix[same], matrix[same])
    assert torch.allclose(recipient.bias, donor.bias, atol=0.7 / 254)


@pytest.mark.nightly
def test_a_built_plant_loads_as_it_was(built: Path) -> None:
    """Loaded, the donor is the recipient and the stored changes, and the recipient is the pair's
    own; a second load is the same.
    """
    pair, own = load_pair(str(built)), load_pair("tiny-gpt2")
    stored = read_delta(built / "delta.safetensors", "this")
    before, after = pair.recipient.state_dict(), pair.donors["sft"].state_dict()
    for name in before:
        change, step = stored.get(name, (torch.zeros(1), torch.zeros(1)))
        assert torch.equal(after[name], before[name] + change * step)
    assert (
        pair.weight_hashes["recipient"]
        == own.weight_hashes["recipient"]
        != pair.weight_hashes["sft"]
    )
    assert load_pair(str(built)).weight_hashes == pair.weight_hashes
    assert pair.origins == {"recipient": "zoo:tiny-gpt2/recipient", "sft": "local:fused"}
    assert pair.name == "fused"


def test_stored_weights_are_hashed_wherever_they_lie(tmp_path: Path) -> None:
    """How tensors are spread over files does not count, a single number does."""
    one, two = {"a": torch.ones(2), "b": torch.zeros(3)}, tmp_path / "two"
    two.mkdir()
    save_file(one, tmp_path / "model.safetensors")
    for name, tensor in one.items():
        save_file({name: tensor}, two / f"{name}.safetensors")
    assert stored_hash(tmp_path) == stored_hash(two)
    save_file({"b": torch.ones(3)}, two / "b.safetensors")
    assert stored_hash(tmp_path) != stored_hash(two)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint like the recipient of tiny-gpt2, with other weights."""
    shipped = catalog.zoo_path("zoo:tiny-gpt2/recipient")
    assert shipped is not None
    folder = Path(shutil.copytree(shipped, tmp_path_factory.mktemp("wrong") / "recipient"))
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor + 1 for name, tensor in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder


def test_a_donor_keeps_the_recipient_it_was_made_from(wrong: Path) -> None:
    """With another recipient, the changed weights of a pair's donor go into the one that it was
    made from: the same donor.
    """
    pair, own = (
        load_pair(recipient=str(wrong), donors={"sft": "zoo:tiny-gpt2/sft"}),
        load_pair("tiny-gpt2"),
    )
    assert pair.weight_hashes["sft"] == own.weight_hashes["sft"]
    assert pair.weight_hashes["recipient"] not in own.weight_hashes.values()


def test_a_donor_of_its_own_storage() -> None:
    """A donor that is made from the recipient in memory shares what is equal, or nothing."""

    def places(pair: ModelPair) -> list[set[int]]:
        models = (pair.recipient, pair.donors["sft"])
        return [{weight.data_ptr() for weight in model.parameters()} for model in models]

    apart, together = load_pair("tiny-gpt2", share=False), load_pair("tiny-gpt2")
    assert apart.weight_hashes == together.weight_hashes
    (ours, theirs), (ours_too, theirs_too) = places(apart), places(together)
    assert not ours & theirs and ours_too & theirs_too and theirs_too - ours_too


def test_a_donor_without_the_recipient_it_was_made_from(wrong: Path) -> None:
    """Where that is missing or has other weights, one line says which it is."""
    shipped = catalog.zoo_path("zoo:tiny-gpt2/sft")
    assert shipped is not None
    donor = Path(shutil.copytree(shipped, wrong.parent / "sft"))
    alone = Path(shutil.copytree(shipped, wrong.parent / "alone" / "sft"))
    for folder, expected in ((donor, "has other weights now"), (alone, "no such directory")):
        message = refusal(
            ModelError,
            lambda folder=folder: load_pair(recipient=str(wrong), donors={"sft": str(folder)}),
        )
        assert str(folder.parent / "recipient") in message and expected in message
    moved = load_pair(recipient="zoo:tiny-gpt2/recipient", donors={"sft": str(alone)})
    assert moved.weight_hashes == load_pair("tiny-gpt2").weight_hashes


def test_a_plant_belongs_to_its_recipient(built: Path, wrong: Path) -> None:
    """With another recipient, or as one, it is refused in one line that says what it needs."""
    message = refusal(
        ModelError, lambda: load_pair(recipient=str(wrong), donors={"sft": str(built)})
    )
    assert "zoo:tiny-gpt2/recipient" in message
    assert "other weights" in message
    assert "cannot be a recipient" in refusal(ModelError, lambda: locate(str(built)))
    assert "cannot be a recipient" in refusal(
        ModelError, lambda: load_pair(recipient=str(built), donors={"sft": str(wrong)})
    )
    right = load_pair(
        recipient="zoo:tiny-gpt2/recipient", donors={"mine": str(built), "sft": str(wrong)}
    )
    assert right.weight_hashes["mine"] == load_pair(str(built)).weight_hashes["sft"]


MATRIX = "transformer.h.1.mlp.c_proj.weight"
SPOILED: Mapping[
    str, tuple[Callable[[torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]], str]
] = {
    "unknown": (
        lambda change, step: {"no.such.weight#change": change, "no.such.weight#step": step},
        "does not fit the recipient",
    ),
    "shape": (
        lambda change, step: {
            f"{MATRIX}#change": change[:-1].contiguous(),
            f"{MATRIX}#step": step[:-1].contiguous(),
        },
        "does not fit the recipient",
    ),
    "lonely": (lambda change, step: {f"{MATRIX}#change": change}, "is no change with its"),
    "plain": (lambda change, step: {MATRIX: change}, "is no change with its partner"),
    "type": (
        lambda change, step: {f"{MATRIX}#change": change.float(), f"{MATRIX}#step": step},
        "is no change with its partner",
    ),
    "steps": (
        lambda change, step: {f"{MATRIX}#change": change, f"{MATRIX}#step": step[:1].contiguous()},
        "is no change with its partner",
    ),
    "not finite": (
        lambda change, step: {f"{MATRIX}#change": change, f"{MATRIX}#step": step * torch.inf},
        MATRIX,
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_deltas_that_do_not_fit(case: str, built: Path, tmp_path: Path) -> None:
    """An unknown tensor, one of another shape or type, steps that are not there or not finite: one
    line each.
    """
    change, message = SPOILED[case]
    out = Path(shutil.copytree(built, tmp_path / case))
    save_file(
        dict(change(*read_delta(built / "delta.safetensors", "this")[MATRIX])),
        out / "delta.safetensors",
    )
    assert message in refusal(ModelError, lambda: load_pair(str(out)))


def test_a_delta_that_is_cut_off(built: Path, tmp_path: Path) -> None:
    """A file that does not read."""
    cut = Path(shutil.copytree(built, tmp_path / "cut"))
    (cut / "delta.safetensors").write_bytes((built / "delta.safetensors").read_bytes()[:1000])
    assert "does not load" in refusal(ModelError, lambda: load_pair(str(cut)))


def test_cards_that_are_none(built: Path, tmp_path: Path) -> None:
    """A plant without a card, with a broken or an incomplete one, and a folder that is no plant."""
    for number, text in enumerate(("{", "[]", '{"name": "x"}')):
        out = Path(shutil.copytree(built, tmp_path / str(number)))
        (out / "card.json").write_text(text)
        assert "no card of a " in refusal(ModelError, lambda out=out: load_pair(str(out)))
    (tmp_path / "0" / "card.json").unlink()
    assert "no card of a " in refusal(ModelError, lambda: catalog.entry(str(tmp_path / "0")))
    assert "holds no plant" in refusal(ModelError, lambda: catalog.entry(str(tmp_path)))
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "or an adapter, and" in refusal(ModelError, lambda: catalog.entry(str(tmp_path)))
