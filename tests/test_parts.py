"""Parts of donors: a share of a change, and singular directions of an adapter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from adapters import Made, maker
from laws import EXACT, distance, executors, pool
from torch import Tensor

from kgbench import as_model, grafted_logits
from kgbench.errors import GraftSyntaxError, InputError, UnknownNameError
from kgbench.models.pair import ModelPair
from kgbench.models.parts import with_parts
from kgbench.models.tensors import put_weight, shared_copy

pytestmark = pytest.mark.usefixtures("exact")

Change = Callable[[Tensor], Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """A LoRA pair, and the same pair merged by PEFT, by family."""
    return maker(tmp_path_factory)


def changed(pair: ModelPair, change: Change) -> ModelPair:
    """The pair, with another donor: the base plus a function of each weight's change."""
    model = shared_copy(pair.donors["sft"])
    for name, ours in pair.recipient.named_parameters():
        put_weight(model, name, ours + change(model.get_parameter(name) - ours))
    return ModelPair("other", pair.recipient, {"sft": model}, pair.tokenizer, pair.family)


def directions(first: int, last: int) -> Change:
    """Some of the singular directions of a matrix; nothing of a vector, which has no change."""

    def kept(delta: Tensor) -> Tensor:
        if delta.ndim < 2:
            return delta
        u, sizes, v = torch.linalg.svd(delta, full_matrices=False)
        which = slice(first, last + 1)
        return (u[:, which] * sizes[which]) @ v[which]

    return kept


@pytest.mark.crossed
@executors
@pytest.mark.parametrize(
    ("family", "part", "change"),
    [
        ("gemma", "0.5*sft", lambda delta: 0.5 * delta),
        ("gpt2", "-1*sft", lambda delta: -delta),
        ("gpt2", "sft[0]", directions(0, 0)),
        ("llama", "sft[1-2]", directions(1, 2)),
        ("llama", "0.25*sft[0-1]", lambda delta: 0.25 * directions(0, 1)(delta)),
    ],
)
def test_a_part_is_that_part_of_the_change(
    made: Callable[[str], Made], family: str, part: str, change: Change, executor: str
) -> None:
    """Of the merged weights, by a decomposition of each full matrix."""
    pair, merged, *_ = made(family)
    some, grafts = pool()[:2], ("FE+LT", "LT:q+down; FE@0")
    named = ["; ".join(f"{term}={part}" for term in graft.split("; ")) for graft in grafts]
    wanted = grafted_logits(changed(merged, change), some, grafts, executor)
    assert distance(grafted_logits(pair, some, named, executor), wanted) <= EXACT
    assert distance(wanted, grafted_logits(pair, some, grafts, executor)) > 1e-3


def test_all_of_it_is_the_donor_and_none_is_the_base(made: Callable[[str], Made]) -> None:
    """Whichever way it is named; several parts go into one graft."""
    pair, *_ = made("llama")
    grafts = ["ALL", "ALL=sft[0-4]", "ALL=1*sft", "PRE", "ALL=0*sft", "FE=0.5*sft; LT=sft[0]"]
    logits = grafted_logits(pair, pool()[:2], grafts)
    assert distance(logits[:, 1], logits[:, 0]) <= EXACT
    assert torch.equal(logits[:, 2], logits[:, 0])
    assert distance(logits[:, 4], logits[:, 3]) <= EXACT
    assert distance(logits[:, 5], logits[:, 0]) > 1e-3
    assert list(pair.donors) == ["sft"]


def test_parts_leave_the_pair_and_its_identity(made: Callable[[str], Made]) -> None:
    """A part follows from its donor: no hash is of it, and nothing is made twice."""
    pair, *_ = made("llama")
    more = with_parts(pair, ["sft", "0.5*sft", "0.50*sft"])
    assert list(more.donors) == ["sft", "0.5*sft"] and list(pair.donors) == ["sft"]
    assert more.weight_hashes == pair.weight_hashes
    assert with_parts(more, ["0.5*sft"]) is more and with_parts(pair, ["sft"]) is pair


def test_a_donor_of_any_name_is_whole(made: Callable[[str], Made]) -> None:
    """A name that no graft could give, as from Python, is no part; a small share keeps its text."""
    pair, *_ = made("llama")
    named = ModelPair(
        "named", pair.recipient, {"my model": pair.donors["sft"]}, pair.tokenizer, pair.family
    )
    assert set(named.weight_hashes) == {"recipient", "my model"}
    grafts = ["SFT", "ALL=sft", "ALL=0.000001*sft", "PRE"]
    logits = grafted_logits(named, pool()[:1], grafts)
    assert distance(logits[:, 2], logits[:, 3]) < 1e-4 < distance(logits[:, 1], logits[:, 3])


def test_a_grafted_model_has_parts(made: Callable[[str], Made]) -> None:
    """`as_model` under half of a change is the packed forward's."""
    pair, *_ = made("llama")
    prompt = pool()[0]
    model = as_model(pair, "ALL=0.5*sft", prompts=[prompt])
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([pair.encode(prompt)])).logits[:, -1]
    assert distance(logits, grafted_logits(pair, [prompt], ["ALL=0.5*sft"])[:, 0]) <= EXACT


@pytest.mark.parametrize(
    ("graft", "error", "message"),
    [
        (
            "LT=sft[5]",
            InputError,
            "'sft[5]' asks for direction 5, and the adapter 'sft' has rank 5",
        ),
        ("LT=sfz[0]", UnknownNameError, "unknown donor 'sfz'. Did you mean 'sft'?"),
        ("LT=sft[3-1]", GraftSyntaxError, "directions whose first is not after their last"),
        ("LT=2*recipient", GraftSyntaxError, "the base has no change of which to take a part"),
    ],
)
def test_what_there_is_no_part_of(
    made: Callable[[str], Made], graft: str, error: type[Exception], message: str
) -> None:
    """It is refused by name."""
    with pytest.raises(error) as caught:
        grafted_logits(made("llama")[0], pool()[:1], [graft])
    assert message in str(caught.value)


def test_directions_are_of_adapters(made: Callable[[str], Made]) -> None:
    """A full finetune has none, nor has an adapter that replaces modules as a whole."""
    pair, merged, *_ = made("gemma")
    with pytest.raises(InputError, match="which is no low-rank change"):
        grafted_logits(pair, pool()[:1], ["LT=sft[0]"])
    with pytest.raises(InputError, match="'sft' is none; a share of its change can be had"):
        grafted_logits(merged, pool()[:1], ["LT=sft[0]"])
