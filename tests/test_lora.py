"""LoRA donors: grafted as they are, they do what PEFT's merged model does, and take no more memory
than their rows.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch
from adapters import ADAPTERS, Made, adapter_pair, maker, respoil, rewrite
from interventions import logits
from laws import EXACT, EXECUTORS, alone, distance, executors, pool
from safetensors.torch import load_file
from torch import nn

from kgbench.engine import grafted_logits, load_pair
from kgbench.engine.weights import changed, numel, tensors
from kgbench.localizers import create
from kgbench.models.loading import UnconfirmedBaseWarning, read_pair
from kgbench.models.lora import LowRank, plain_names
from kgbench.models.pair import ModelPair, weights_hash
from kgbench.models.tensors import share_equal, shared_copy
from kgbench.testing.laws import laws_of
from kgbench.testing.trial import Trial

pytestmark = pytest.mark.usefixtures("exact")

every = pytest.mark.parametrize("family", ADAPTERS)
kinds = pytest.mark.parametrize("family", ["gpt2", "gemma"])
"""Conv1D, and an adapted head beside modules that are replaced as a whole."""
GRAFTS = ("SFT", "FE", "LT:q+down; R:all@1", "ALL:attn+head", "FE+LT^C:emb+ln+k+o")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Pairs by family, each made once; every test leaves them as they are."""
    return maker(tmp_path_factory)


def storages(*models: nn.Module) -> int:
    """Bytes of all parameters, what is held once counted once."""
    found = [p.untyped_storage() for model in models for p in model.parameters()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in found}.values())


# --------------------------------------------------------------------------------- what it computes


@pytest.mark.sampled(2)
@every
@executors
def test_a_graft_is_the_merged_donor_s(
    made: Callable[[str], Made], family: str, executor: str
) -> None:
    """In every executor, whatever is grafted, to rounding; fused projections and Conv1D included."""
    pair, other, *_ = made(family)
    some = pool()[: 1 if executor == "sequential" else 3]
    got, wanted = (grafted_logits(each, some, GRAFTS, executor) for each in (pair, other))
    assert distance(got, wanted) <= EXACT
    assert distance(wanted[:, 0], alone(pair.recipient, pair, some)) > 0.1, (
        "the adapter does something"
    )
    assert distance(got[:, 0], alone(other.donors["sft"], pair, some)) <= EXACT


@every
def test_weights_are_the_merged_donor_s(made: Callable[[str], Made], family: str) -> None:
    """Read by place or by name, merged for the moment, in the base's layout; the places that
    changed are the adapted ones.
    """
    pair, other, *_ = made(family)
    for slot in range(len(pair.slots)):
        got, wanted = (tensors(each, each.donors["sft"], slot) for each in (pair, other))
        for ours, theirs in zip(got, wanted, strict=True):
            assert ours.shape == theirs.shape
            assert distance(ours, theirs) <= EXACT
    assert changed(pair) == changed(other)
    assert 0 < len(changed(pair)) < len(pair.slots)
    assert numel(pair) == numel(other)
    for name, wanted in other.donors["sft"].named_parameters():
        assert distance(pair.donors["sft"].get_parameter(name), wanted) <= EXACT


METHODS: Mapping[str, Mapping[str, str]] = {
    "weight_delta": {},
    "fisher": {"at": "sft"},
    "fisher recipient": {"at": "recipient"},
    "snip": {"at": "sft"},
    "snip recipient": {},
    "graft_attribution": {"at": "0.5"},
    "mask_graft": {"steps": "2"},
    "attribution_patch": {},
}


@kinds
@pytest.mark.parametrize("method", METHODS)
def test_scores_are_the_merged_donor_s(
    made: Callable[[str], Made], family: str, method: str
) -> None:
    """Methods that read weights, or derivatives by them, say of the adapter what they say of the
    merged model.
    """
    pair, other, *_ = made(family)
    got, wanted = (
        create(method.split()[0], METHODS[method], seed=0).scores(each, pool()[:2])
        for each in (pair, other)
    )
    assert got == pytest.approx(wanted, rel=1e-8, abs=1e-9)
    assert len(set(wanted.values())) > 1


@kinds
def test_static_grafts_of_a_part_of_the_change(made: Callable[[str], Made], family: str) -> None:
    """W + alpha (W' - W) scales the rows' share."""
    pair, other, *_ = made(family)
    method = create("static_graft", {"alpha": "0.4"}, seed=0)
    got, wanted = (logits(each, method, pool()[:2], ["ALL:all"]) for each in (pair, other))
    assert distance(got, wanted) <= EXACT


@kinds
def test_roles_can_be_exchanged(made: Callable[[str], Made], family: str) -> None:
    """A LoRA donor in the recipient's place: grafts and weights are the merged model's."""
    exchanged = [
        ModelPair("exchanged", p.donors["sft"], {"sft": p.recipient}, p.tokenizer, p.family)
        for p in made(family)[:2]
    ]
    for executor in EXECUTORS:
        got, wanted = (
            grafted_logits(each, pool()[:1], ["PRE", "LT:q+down; R"], executor)
            for each in exchanged
        )
        assert distance(got, wanted) <= EXACT
    for method in ("weight_delta", "snip", "fisher"):
        got, wanted = (create(method, {}, seed=0).scores(each, pool()[:2]) for each in exchanged)
        assert got == pytest.approx(wanted, rel=1e-8, abs=1e-9)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["weight_delta", "snip", "dynamic_graft"])
def test_the_contract_holds(made: Callable[[str], Made], method: str) -> None:
    """All laws of `kgbench check-localizer`, with a LoRA donor in the pair: what watches the models
    finds nothing amiss either.
    """
    localizer = create(method, {}, seed=0)
    trial = Trial(localizer, "gpt2", on=made("gpt2")[0])
    for law in laws_of(localizer):
        law(trial)


# ------------------------------------------------------------------------------------ what it holds


@kinds
def test_it_takes_the_memory_of_its_rows(made: Callable[[str], Made], family: str) -> None:
    """All that it does not change is the recipient's own storage; nothing merged is kept, not even
    after use.
    """
    *_, recipient, adapter = made(family)
    config = json.loads((adapter / "adapter_config.json").read_text())
    stored = load_file(adapter / "adapter_model.safetensors")
    own = {
        name: t
        for name, t in stored.items()
        if "lora_" in name or (config["modules_to_save"] and ".base_layer." not in name)
    }
    rows = sum(t.numel() for t in own.values())
    for pair in (made(family)[0], adapter_pair(recipient, adapter)):
        create("snip", {"at": "sft"}, seed=0).scores(pair, pool()[:1])
        grafted_logits(pair, pool()[:1], GRAFTS)
        assert (
            storages(pair.recipient, pair.donors["sft"])
            == storages(pair.recipient) + rows * pair.dtype.itemsize
        )
        assert rows * pair.dtype.itemsize < storages(pair.recipient) / 2


@kinds
def test_models_are_left_as_they_were(made: Callable[[str], Made], family: str) -> None:
    """Bit for bit, in eval mode, without forwards of their own or gradients, after grafts,
    derivatives and an exception.
    """
    pair, *_ = made(family)
    models = pair.recipient, pair.donors["sft"]
    before = [(weights_hash(m), alone(m, pair, pool()[:1])) for m in models]
    for executor in EXECUTORS:
        grafted_logits(pair, pool()[:1], GRAFTS, executor)
    create("fisher", {"at": "sft"}, seed=0).scores(pair, pool()[:1])
    module = next(m for m in models[1].modules() if isinstance(m, LowRank))
    module.base.__dict__["forward"] = partial(pytest.fail, "in the middle")
    with pytest.raises(pytest.fail.Exception):
        grafted_logits(pair, pool()[:2], ["ALL:all+head"])
    del module.base.__dict__["forward"]
    for model, (weights, answers) in zip(models, before, strict=True):
        assert weights_hash(model) == weights
        assert torch.equal(alone(model, pair, pool()[:1]), answers)
        assert not any(m.training or "forward" in m.__dict__ for m in model.modules())
        assert not any(p.requires_grad or p.grad is not None for p in model.parameters())
    assert pair.changed() == ()


def test_hashes(made: Callable[[str], Made], tmp_path: Path) -> None:
    """They do not depend on the folder's place or name, but on rows, scale and base."""
    pair, other, recipient, adapter = made("llama")
    hashes = pair.weight_hashes
    moved = Path(shutil.copytree(adapter, tmp_path / "elsewhere" / "of another name"))
    with pytest.warns(UnconfirmedBaseWarning):
        again = adapter_pair(
            Path(shutil.copytree(recipient, tmp_path / "base")), moved, dtype="float64"
        )
    assert again.weight_hashes == hashes
    assert again.origins == {"recipient": "local:base", "sft": "local:of another name"}
    assert len({*hashes.values(), other.weight_hashes["sft"]}) == 3
    rewrite(moved, lambda config: config.update(lora_alpha=9))
    assert adapter_pair(recipient, moved, dtype="float64").weight_hashes["sft"] != hashes["sft"]
    shutil.copytree(adapter, moved, dirs_exist_ok=True)
    respoil(moved, lambda t: t["model.layers.0.mlp.down_proj.lora_B.weight"].view(-1)[0].add_(1e-3))
    assert adapter_pair(recipient, moved, dtype="float64").weight_hashes["sft"] != hashes["sft"]
    again.recipient.get_parameter("model.layers.0.mlp.down_proj.weight")[0, 0] += 1e-9
    assert again.changed() == ("recipient", "sft")


def test_plain_names(made: Callable[[str], Made]) -> None:
    """The names of a model without adapters, in its order; each names the base's weight."""
    for family in ADAPTERS:
        pair, other, *_ = made(family)
        names = plain_names(pair.donors["sft"])
        assert list(names) == [name for name, _ in other.donors["sft"].named_parameters()]
        own = dict(pair.donors["sft"].named_parameters())
        assert {*own} - {*names.values()} == {n for n in own if n.endswith((".a", ".b"))} != set()


def test_equal_tensors_are_held_once() -> None:
    """A donor takes its changed weights beyond its recipient, and is what it is when each model has
    its own weights.
    """
    shared, separate = load_pair("tiny-gpt2"), read_pair("tiny-gpt2")
    one, ours = storages(shared.recipient), dict(separate.recipient.named_parameters())
    moved = [
        p for name, p in separate.donors["sft"].named_parameters() if not torch.equal(p, ours[name])
    ]
    assert storages(separate.recipient, separate.donors["sft"]) == 2 * one
    assert (
        storages(shared.recipient, shared.donors["sft"])
        == one + sum(p.numel() * p.element_size() for p in moved)
        < 2 * one
    )
    assert shared.weight_hashes == separate.weight_hashes
    assert changed(shared) == changed(separate)
    assert torch.equal(
        *(grafted_logits(each, pool()[:2], ["SFT", "LT"]) for each in (shared, separate))
    )


def test_what_is_shared(made: Callable[[str], Made]) -> None:
    """Tensors of equal bits only: -0 is another weight than 0. A copy that shares all has modules
    and a configuration of its own.
    """
    recipient = copy.deepcopy(made("gpt2")[0].recipient)
    donor = copy.deepcopy(recipient)
    names = [name for name, _ in recipient.named_parameters()]
    for model, zero in ((recipient, 0.0), (donor, -0.0)):
        model.get_parameter(names[3])[0] = zero
    before = weights_hash(donor)
    share_equal(recipient, donor)
    apart = [
        n
        for n in names
        if recipient.get_parameter(n).data_ptr() != donor.get_parameter(n).data_ptr()
    ]
    assert apart == names[3:4]
    assert weights_hash(donor) == before != weights_hash(recipient)
    twin = shared_copy(recipient)
    assert storages(recipient, twin) == storages(recipient)
    assert not {id(m) for m in recipient.modules()} & {id(m) for m in twin.modules()}
    assert not {id(p) for p in recipient.parameters()} & {id(p) for p in twin.parameters()}
    twin.config.vocab_size += 1
    assert recipient.config.vocab_size + 1 == twin.config.vocab_size
