"""The one file that touches a model: rows divided between weight sets, and the head at the tokens
that are read.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from kgbench.engine import forward
from kgbench.engine.forward import Weights, Wiring, one_treatment, treated
from kgbench.engine.indices import Indices
from kgbench.testing import PICO_FAMILIES, pico_pair

sets_of = st.integers(1, 60).flatmap(
    lambda n: hnp.arrays(np.uint8, n, elements=st.sampled_from((0, 0, 0, 0, 0, 0, 1, 2)))
)


def linears(n: int) -> list[nn.Linear]:
    return [nn.Linear(3, 6, dtype=torch.float64) for _ in range(n)]


@torch.no_grad()
@given(sets_of)
def test_each_row_goes_through_its_own_module(sets: np.ndarray) -> None:
    """Whatever share of the rows each weight set has, a row comes out as its own module alone makes
    it.
    """
    modules, x = linears(3), torch.randn(len(sets), 3, dtype=torch.float64)
    got = forward._divided([m.forward for m in modules], forward._split(sets, Indices()), x)
    wanted = torch.stack([modules[s](row) for s, row in zip(sets.tolist(), x, strict=True)])
    assert torch.allclose(got, wanted, atol=1e-12)


@torch.no_grad()
@given(
    st.integers(1, 40).flatmap(lambda n: hnp.arrays(np.uint8, (n, 3), elements=st.integers(0, 2)))
)
def test_each_slice_comes_from_its_own_module(sets: np.ndarray) -> None:
    """In a fused projection each row takes each slice from the weight set named for it, interleaved
    slices too.
    """
    modules, x = linears(3), torch.randn(len(sets), 3, dtype=torch.float64)
    columns = [torch.tensor([0, 3]), torch.tensor([1, 4]), torch.tensor([2, 5])]
    got = forward._fused([m.forward for m in modules], forward._fuse(sets, Indices()), columns, x)
    whole = torch.stack([m(x) for m in modules])
    for row, of in enumerate(sets.tolist()):
        for slot, weight_set in enumerate(of):
            assert torch.allclose(
                got[row, columns[slot]], whole[weight_set, row, columns[slot]], atol=1e-12
            )


def test_an_input_handed_through_is_not_written_to() -> None:
    """A module that returns its input itself, as an identity does, must not have the others' rows
    written into that input.
    """
    x = torch.arange(20.0).reshape(10, 2)
    before = x.clone()
    sets = np.array([0] * 9 + [1], dtype=np.uint8)
    got = forward._divided(
        [nn.Identity().forward, lambda rows: -rows], forward._split(sets, Indices()), x
    )
    assert torch.equal(x, before)
    assert torch.equal(got, torch.cat([before[:9], -before[9:]]))


@pytest.mark.parametrize("family", PICO_FAMILIES)
def test_only_what_is_read_reaches_the_head(family: str) -> None:
    """Inside the blocks the model's logits are [answer, vocabulary], of the tokens asked for, in
    their order, twice if asked twice.
    """
    pair = pico_pair(family)
    wiring, ids = Wiring(pair), torch.arange(3, 19).reshape(2, 8)
    vocabulary = pair.recipient.config.vocab_size
    with torch.no_grad():
        plain = pair.recipient(input_ids=ids).logits.reshape(16, vocabulary)
        read = np.array([15, 0, 7, 7])
        table = np.zeros((1, len(wiring.slots)), dtype=np.uint8)
        with treated(wiring, Weights(table), np.zeros(16, dtype=np.int64), read) as model:
            assert torch.allclose(model(input_ids=ids).logits, plain[read], atol=1e-12)


@pytest.mark.parametrize("family", PICO_FAMILIES)
def test_a_batch_of_one_treatment(family: str) -> None:
    """Where all tokens have one treatment, `treated` gives what the plain block gives, for any
    treatment.
    """
    pair = pico_pair(family, donors=("sft", "task"))
    wiring, ids = Wiring(pair), torch.arange(3, 19).reshape(2, 8)
    last = np.array([7, 15])

    @settings(max_examples=10)
    @given(hnp.arrays(np.uint8, len(wiring.slots), elements=st.integers(0, 2)))
    def law(weights: np.ndarray) -> None:
        with torch.no_grad():
            with one_treatment(wiring, Weights(weights[None])) as model:
                wanted = model(input_ids=ids).logits[:, -1]
            with treated(
                wiring, Weights(weights[None]), np.zeros(16, dtype=np.int64), last
            ) as model:
                assert torch.allclose(model(input_ids=ids).logits, wanted, atol=1e-12)

    law()


def test_blocks_nest() -> None:
    """A block inside a block of another pair with the same recipient sees and leaves the outer one
    as it found it.
    """
    pair = pico_pair("llama")
    wiring, ids = Wiring(pair), torch.tensor([[3, 4, 5]])
    ones, zeros = (np.full(len(wiring.slots), s, dtype=np.uint8) for s in (1, 0))
    with torch.no_grad(), one_treatment(wiring, Weights(ones[None])) as model:
        outer = model(input_ids=ids).logits
        with one_treatment(Wiring(pair), Weights(zeros[None])) as inner:
            assert torch.equal(inner(input_ids=ids).logits, outer), (
                "weight set 0 is what stands there"
            )
        assert torch.equal(model(input_ids=ids).logits, outer)
    assert not any("forward" in m.__dict__ for m in pair.recipient.modules())
