"""Family maps: data that says where each component lives."""

from __future__ import annotations

import pytest
import torch
from tiny import TINY, tiny_config, tiny_pair

from kgbench.engine.forward import Wiring
from kgbench.errors import ModelError, UnknownNameError
from kgbench.models.family_map import Place, family_names, load_family
from kgbench.sites import COMPONENTS, OUTSIDE, parse_graft
from kgbench.testing import PICO_FAMILIES

families = pytest.mark.parametrize("family", family_names())


def test_every_family_is_tested() -> None:
    """Each map has tiny models, on which the laws of all families are tested; some have pico
    models, on which more is tested.
    """
    assert set(family_names()) == set(TINY) > set(PICO_FAMILIES)


@families
def test_maps_cover_every_weight(family: str) -> None:
    """Every parameter of the model belongs to a component: nothing could be left out of a graft."""
    pair = tiny_pair(family)
    held = {id(p) for socket in Wiring(pair).sockets for p in socket.modules[0].parameters()}
    assert [name for name, p in pair.recipient.named_parameters() if id(p) not in held] == []


@families
def test_slots(family: str) -> None:
    """Slots are all (layer, component) once, in the order of computation, and each is computed by
    one socket.
    """
    pair = tiny_pair(family)
    slots = pair.slots
    assert len(set(slots.sites)) == len(slots.sites) == len(slots)
    assert [slots.index[site] for site in slots.sites] == list(range(len(slots)))
    assert {c for layer, c in slots.sites if layer is None} <= set(OUTSIDE)
    order = [COMPONENTS.index(c) for layer, c in slots.sites if layer in (None, 0)]
    assert order == sorted(order)
    assert [slots.sites[i][1] for i in slots.readout] == [
        c for c in ("ln_f", "head") if c in pair.family.outside
    ]
    sockets = Wiring(pair).sockets
    assert sorted(slot for socket in sockets for slot in socket.slots) == list(range(len(slots)))
    assert [s.is_head for s in sockets] == [slots.sites[s.slots[0]][1] == "head" for s in sockets]


def test_slices_of_a_fused_projection() -> None:
    """Thirds of the whole output for GPT-2; of each head's for GPT-NeoX; as many heads as there are
    for Phi-3, also where grouped.
    """
    thirds = [Place("m", part, 3).columns(12, object()).tolist() for part in range(3)]
    assert thirds == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    config = PICO_FAMILIES["gpt_neox"](300, True)  # four heads
    by_head = [
        Place("m", part, 3, "num_attention_heads").columns(24, config).tolist() for part in range(3)
    ]
    assert by_head[1] == [2, 3, 8, 9, 14, 15, 20, 21]
    assert sorted(c for part in by_head for c in part) == list(range(24))
    grouped = tiny_config("phi3", "untied")  # four heads of queries, one of keys and values
    shares = ("num_attention_heads", "num_key_value_heads", "num_key_value_heads")
    assert [Place("m", part, shares).columns(12, grouped).tolist() for part in range(3)] == [
        list(range(8)),
        [8, 9],
        [10, 11],
    ]
    by_group = [
        Place("m", part, shares, "num_key_value_heads").columns(
            16, tiny_config("phi3", "grouped, windows")
        )
        for part in range(3)
    ]
    assert [part.tolist() for part in by_group] == [
        [0, 1, 2, 3, 8, 9, 10, 11],
        [4, 5, 12, 13],
        [6, 7, 14, 15],
    ]


def test_unknown_families_and_components() -> None:
    """A model type without a map and a component that the family lacks are refused with what there
    is.
    """
    with pytest.raises(ModelError, match=r"'mamba' has no family map.*gpt2.*families/mamba\.json"):
        load_family("mamba")
    gpt2 = load_family("gpt2")
    with pytest.raises(UnknownNameError, match=r"'gpt2' in the graft 'FE:gate'.*'gate'"):
        gpt2.check(parse_graft("FE:gate"))
    gpt2.check(parse_graft("FE:ffn+attn+ln+all; LT:pos+head"))


@families
def test_slices_partition_what_is_fused(family: str) -> None:
    """Columns of the components that one module computes partition its output."""
    for socket in Wiring(tiny_pair(family)).sockets:
        assert len(socket.columns) == (len(socket.slots) if len(socket.slots) > 1 else 0)
        if socket.columns:
            assert torch.equal(
                torch.cat(socket.columns).sort().values,
                torch.arange(socket.modules[0].weight.numel() // 32),
            )
