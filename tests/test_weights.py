"""The weights of each place: slots partition a model, slices of fused projections included."""

from __future__ import annotations

import copy

import pytest
import torch
from laws import families, pair_of
from transformers.pytorch_utils import Conv1D

from kgbench.engine.weights import changed, numel, parts, tensors
from kgbench.models.family_map import Slots
from kgbench.models.pair import ModelPair


@families
def test_numbers_of_weights(family: str) -> None:
    """The places' sizes add up to the model's, and are those of the tensors."""
    pair = pair_of(family)
    sizes = numel(pair)
    assert sum(sizes.values()) == sum(p.numel() for p in pair.recipient.parameters())
    sites = pair.slots.sites
    assert tuple(sizes) == sites
    for slot, site in enumerate(sites):
        assert sizes[site] == sum(t.numel() for t in tensors(pair, pair.donors["sft"], slot))


def test_slices_of_fused_projections() -> None:
    """GPT-2's q, k, v are thirds of the columns, of biases too; of GPT-NeoX, thirds of each head's
    rows.
    """
    gpt2, neox = pair_of("gpt2"), pair_of("gpt_neox")
    fused = gpt2.recipient.get_submodule("transformer.h.1.attn.c_attn")
    assert isinstance(fused, Conv1D)
    weight, bias = tensors(gpt2, gpt2.recipient, Slots(gpt2.family, 3).index[1, "k"])
    assert torch.equal(weight, fused.weight[:, 32:64])
    assert torch.equal(bias, fused.bias[32:64])
    fused_rows = neox.recipient.get_parameter("gpt_neox.layers.2.attention.query_key_value.weight")
    weight, _ = tensors(neox, neox.recipient, Slots(neox.family, 3).index[2, "v"])
    assert torch.equal(weight, fused_rows.reshape(4, 3, 8, 32)[:, 2].reshape(32, 32))


@families
@pytest.mark.parametrize("component", ["emb", "q", "v", "down", "ln_2", "head"])
def test_what_changed(family: str, component: str) -> None:
    """All slots of a random pair differ, none of a pair of equals, and one where one element of its
    weights differs.
    """
    pair = pair_of(family)
    slots = pair.slots
    assert changed(pair) == frozenset(range(len(slots)))
    donor = copy.deepcopy(pair.recipient)
    near = ModelPair("near", pair.recipient, {"other": donor}, pair.tokenizer, pair.family)
    assert changed(near) == frozenset()
    slot = slots.index[0 if component in pair.family.inside else None, component]
    part = parts(near, slot)[-1]
    weight = donor.get_parameter(part.name).data
    place = [0] * weight.ndim
    place[part.dim] = 0 if part.columns is None else int(part.columns[-1])
    weight[tuple(place)] += 1e-6
    assert changed(near) == {slot}
