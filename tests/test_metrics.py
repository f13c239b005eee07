"""Per-fact scores against their definitions, written out in NumPy."""

from __future__ import annotations

from math import inf, isnan, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kgbench.errors import InputError
from kgbench.metrics import score_logits, worst_rank


def by_hand(logits: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """One answer after the other, in float64."""
    rows: dict[str, list[float]] = {"rank": [], "prob": [], "logprob": [], "logit_diff": []}
    for row, target in zip(logits.astype(np.float64), targets, strict=True):
        top = row.max()
        logprob = row[target] - top - np.log(sum(np.exp(x - top) for x in row))
        rows["rank"].append(1 + sum(x >= row[target] for i, x in enumerate(row) if i != target))
        rows["logprob"].append(logprob)
        rows["prob"].append(np.exp(logprob))
        rows["logit_diff"].append(row[target] - max(x for i, x in enumerate(row) if i != target))
    return {name: np.array(column) for name, column in rows.items()}


@settings(max_examples=60)
@given(st.data(), st.integers(1, 5), st.integers(2, 9))
def test_scores_are_their_definitions(data: st.DataObject, n: int, vocabulary: int) -> None:
    """For any logits, many of them equal: rank, probability, its logarithm, and the distance to the
    best other token.
    """
    values = st.sampled_from((-30.0, -1.0, 0.0, 0.5, 2.0, 40.0)) | st.floats(-50, 50, width=32)
    logits = data.draw(hnp.arrays(np.float64, (n, vocabulary), elements=values))
    targets = data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, vocabulary - 1)))
    got, wanted = (
        score_logits(torch.from_numpy(logits), torch.from_numpy(targets)),
        by_hand(logits, targets),
    )
    assert set(got) == set(wanted)
    np.testing.assert_array_equal(got["rank"], wanted["rank"])
    for name in ("prob", "logprob", "logit_diff"):
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-12, atol=1e-12)


def test_ties_share_the_worse_rank() -> None:
    """A tie counts against the target: among equals every one has the last place, so that all-equal
    logits score nothing.
    """
    logits = torch.tensor([[1.0, 1.0, 1.0, 0.0], [2.0, 1.0, 1.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    found = score_logits(logits, torch.tensor([2, 1, 0]))
    assert found["rank"].tolist() == [3, 4, 4]
    assert found["logit_diff"].tolist() == [0.0, -2.0, 0.0]


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("place", [0, 1])
def test_logits_that_are_no_numbers_are_refused(bad: float, place: int) -> None:
    """NaN and infinity never become a figure, at the target or elsewhere; the error names the
    answer and says what to do.
    """
    logits = torch.zeros(2, 4)
    logits[1, place] = bad
    with pytest.raises(
        InputError, match=r"the logits of fact b hold NaN or infinity.*--dtype float32"
    ):
        score_logits(logits, torch.tensor([0, 0]), ["fact a", "fact b"].__getitem__)
    assert worst_rank(logits, logits[:, :1]).tolist()[1] >= (4 if place == 0 and isnan(bad) else 1)


def test_masked_tokens_are_no_fault() -> None:
    """-inf at other tokens is a mask: they have no probability, and are ranked behind; at the
    target it is an error.
    """
    logits = torch.tensor([[0.5, -inf, 0.0, -inf]])
    found = score_logits(logits, torch.tensor([2]))
    assert found["rank"].tolist() == [2]
    assert found["logit_diff"].tolist() == [-0.5]
    with pytest.raises(InputError, match="answer 0 hold NaN or infinity"):
        score_logits(logits, torch.tensor([1]))


@given(
    st.lists(st.sampled_from((-1.0, 0.0, 1e-42, 1.0, 1.0000001)), min_size=2, max_size=6), st.data()
)
def test_the_first_rank_is_a_lead(row: list[float], data: st.DataObject) -> None:
    """Rank 1 and a logit difference above 0 are one thing, for subnormal differences too."""
    target = data.draw(st.integers(0, len(row) - 1))
    found = score_logits(torch.tensor([row]), torch.tensor([target]))
    assert (found["rank"][0] == 1) == (found["logit_diff"][0] > 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    """Whatever the type of the logits, ranks are whole numbers and scores float64, and 16-bit
    logits are not scored in 16 bits.
    """
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)).to(dtype)
    targets = torch.tensor([0, 250, 499])
    got, wanted = score_logits(logits, targets), by_hand(logits.double().numpy(), targets.numpy())
    assert got["rank"].dtype == np.int64
    assert {got[name].dtype for name in ("prob", "logprob", "logit_diff")} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(got["rank"], wanted["rank"])
    np.testing.assert_allclose(got["logprob"], wanted["logprob"], rtol=1e-5)


def test_rank_is_told_by_logits_not_by_rounded_probabilities() -> None:
    """Tokens whose probabilities round to the same number, or to zero, are still told apart."""
    logits = torch.tensor([[0.0, 1000.0, 1e-7, -900.0, -901.0]])
    ranks = [int(score_logits(logits, torch.tensor([t]))["rank"][0]) for t in range(5)]
    assert ranks == [3, 1, 2, 4, 5]
    assert score_logits(logits, torch.tensor([4]))["prob"][0] == 0.0
    assert score_logits(logits, torch.tensor([4]))["logprob"][0] == -1901.0
