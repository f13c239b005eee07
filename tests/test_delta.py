"""How a plant is stored: the weights that differ from its recipient's, and what does not fit."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from few_plants import build_fused, refusal
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from kgbench.engine import load_pair
from kgbench.errors import ModelError
from kgbench.models import catalog
from kgbench.models.checkpoints import locate
from kgbench.models.delta import apply_delta, read_delta, stored_hash, write_delta


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plant with a decoy, of a few steps."""
    return build_fused(tmp_path_factory.mktemp("plants") / "fused")


class Weights(nn.Module):
    """A matrix and a bias."""

    def __init__(self, matrix: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.matrix, self.bias = (nn.Parameter(tensor.clone(), requires_grad=False) for tensor in (matrix, bias))


@given(rows=st.sets(st.integers(0, 9)), bias=st.booleans(), dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
def test_deltas_read_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, rows: set[int], bias: bool, dtype: torch.dtype) -> None:
    """A recipient with a delta is the donor, rounded to the stored type; what did not change is not stored."""
    path = tmp_path_factory.mktemp("delta") / "delta.safetensors"
    generator = torch.Generator().manual_seed(len(rows))
    matrix, vector = (torch.randn(shape, generator=generator).to(dtype).float() for shape in ((10, 3), (3,)))
    recipient, donor = Weights(matrix, vector), Weights(matrix, vector)
    donor.matrix[sorted(rows)] += 1.0001
    donor.bias += 0.7 * bias
    write_delta(recipient, donor, dtype, path)
    stored = read_delta(path, "this")
    assert ("bias" in stored) == bias
    assert ("matrix" in stored) == (len(rows) >= 5)
    assert ("matrix#rows" in stored) == (0 < len(rows) < 5)
    apply_delta(recipient, path, "this")
    for name, tensor in recipient.state_dict().items():
        assert torch.equal(tensor, donor.state_dict()[name].to(dtype).float())


def test_a_built_plant_loads_as_it_was(built: Path) -> None:
    """Loaded, the donor has the stored weights, and the recipient is the pair's own; a second load is the same."""
    pair, own = load_pair(str(built)), load_pair("tiny-gpt2")
    stored = read_delta(built / "delta.safetensors", "this")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    weights = pair.donors["sft"].state_dict()
    assert all(torch.equal(weights[name], tensor.float()) for name, tensor in stored.items())
    assert pair.weight_hashes["recipient"] == own.weight_hashes["recipient"] != pair.weight_hashes["sft"]
    assert load_pair(str(built)).weight_hashes == pair.weight_hashes
    assert pair.origins == {"recipient": "zoo:tiny-gpt2/recipient", "sft": "local:fused"}
    assert pair.name == "tiny-gpt2.v-down-1"


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


def test_a_plant_belongs_to_its_recipient(built: Path) -> None:
    """With another recipient, or as one, it is refused in one line that says what it needs."""
    wrong = catalog.zoo_path("zoo:tiny-gpt2/sft")
    said = refusal(ModelError, lambda: load_pair(recipient=str(wrong), donors={"sft": str(built)}))
    assert "zoo:tiny-gpt2/recipient" in said
    assert "other weights" in said
    assert "cannot be a recipient" in refusal(ModelError, lambda: locate(str(built)))
    assert "cannot be a recipient" in refusal(ModelError, lambda: load_pair(recipient=str(built), donors={"sft": str(wrong)}))
    right = load_pair(recipient="zoo:tiny-gpt2/recipient", donors={"mine": str(built), "sft": str(wrong)})
    assert right.weight_hashes["mine"] == load_pair(str(built)).weight_hashes["sft"]


def spoiled(built: Path, out: Path, change: Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]) -> Path:
    """A copy of a plant with other tensors."""
    shutil.copytree(built, out)
    save_file(dict(change(read_delta(built / "delta.safetensors", "this"))), out / "delta.safetensors")
    return out


def test_deltas_that_do_not_fit(built: Path, tmp_path: Path) -> None:
    """An unknown tensor, one of another shape, rows that are not there, a file that is cut off: one line each."""
    name = "transformer.h.1.mlp.c_proj.weight"
    cases: Mapping[str, Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]] = {
        "unknown": lambda tensors: {"no.such.weight": tensors[name]},
        "shape": lambda tensors: {name: tensors[name][:-1].contiguous()},
        "rows": lambda tensors: {f"{name}#rows": torch.tensor([512], dtype=torch.int32), f"{name}#values": tensors[name][:1].contiguous()},
        "lonely": lambda tensors: {f"{name}#values": tensors[name][:1].contiguous()},
    }
    for case, change in cases.items():
        out = spoiled(built, tmp_path / case, change)
        assert "does not fit the recipient" in refusal(ModelError, lambda out=out: load_pair(str(out))), case
    cut = Path(shutil.copytree(built, tmp_path / "cut"))
    (cut / "delta.safetensors").write_bytes((built / "delta.safetensors").read_bytes()[:1000])
    assert "does not load" in refusal(ModelError, lambda: load_pair(str(cut)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_two_bytes_take_less(tmp_path: Path, dtype: torch.dtype) -> None:
    """Every pattern of bits comes back, and of ordinary weights the higher bytes take less than they were."""
    path, generator = tmp_path / "delta.safetensors", torch.Generator().manual_seed(0)
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype).reshape(256, 256)
    usual = (0.1 * torch.randn(256, 256, generator=generator)).to(dtype)
    for weights in (every, usual):
        donor = Weights(weights, torch.zeros(3)).to(dtype)
        write_delta(Weights(torch.full((256, 256), 9.0), torch.zeros(3)).to(dtype), donor, dtype, path)
        assert torch.equal(read_delta(path, "this")["matrix"].view(torch.int16), weights.view(torch.int16))
    assert path.stat().st_size < 0.9 * usual.nbytes


def test_packed_weights_that_do_not_unpack(tmp_path: Path) -> None:
    """Half of a tensor, bytes that are not packed, too few, too many, and of another type: one line each, and nothing large is unfolded."""
    low, enough = torch.zeros(2, 3, dtype=torch.uint8), zlib.compress(bytes(6))
    cases: Mapping[str, Mapping[str, torch.Tensor]] = {
        "no higher bytes": {"a#low": low},
        "lower and its higher": {"a#high.float16": packed(enough)},
        "do not unpack": {"a#low": low, "a#high.float16": packed(b"nonsense")},
        "another number": {"a#low": low, "a#high.float16": packed(zlib.compress(bytes(5)))},
        "6 lower bytes and another": {"a#low": low, "a#high.float16": packed(zlib.compress(bytes(10**7)))},
        "and another number of higher": {"a#low": low, "a#high.float16": packed(enough[:-1])},
        "is of type 'int4'": {"a#low": low, "a#high.int4": packed(enough)},
    }
    for said, tensors in cases.items():
        save_file(dict(tensors), tmp_path / "delta.safetensors")
        told = refusal(ModelError, lambda: read_delta(tmp_path / "delta.safetensors", "this"))
        assert said in told and told.startswith("this does not load: delta.safetensors: 'a")
    save_file({"a#low": low, "a#high.float16": packed(enough)}, tmp_path / "delta.safetensors")
    assert torch.equal(read_delta(tmp_path / "delta.safetensors", "this")["a"], torch.zeros(2, 3, dtype=torch.float16))


def packed(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def test_cards_that_are_none(built: Path, tmp_path: Path) -> None:
    """A plant without a card, with a broken or an incomplete one, and a folder that is no plant."""
    for number, text in enumerate(("{", "[]", '{"name": "x"}')):
        out = Path(shutil.copytree(built, tmp_path / str(number)))
        (out / "card.json").write_text(text)
        assert "no card of a " in refusal(ModelError, lambda out=out: load_pair(str(out)))
    (tmp_path / "0" / "card.json").unlink()
    assert "no card of a " in refusal(ModelError, lambda: catalog.entry(str(tmp_path / "0")))
    assert "holds no plant" in refusal(ModelError, lambda: catalog.entry(str(tmp_path)))
