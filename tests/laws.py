"""What the laws of the engine are tested on: random models of every family, prompts, grafts, and
the oracle's answer to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any
from zlib import crc32

import oracle
import pytest
import torch
from grafts import grafts
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from nightly import nightly
from torch import nn

from kgbench.data import Prompt, load_prompts
from kgbench.models.pair import ModelPair
from kgbench.testing import PICO_FAMILIES, pico_pair

FAMILIES = tuple(PICO_FAMILIES)
EXECUTORS = ("packed", "rows", "sequential")
EVERYTHING = "ALL:all+ln_f+head"
EXACT = 1e-10

families = pytest.mark.parametrize("family", FAMILIES)
two_families = pytest.mark.parametrize("family", nightly(FAMILIES, {"gpt_neox", "gemma"}))
"""A law daily on two families, nightly on all."""
attentions = pytest.mark.parametrize("attention", ["sdpa", "eager"])
executors = pytest.mark.parametrize("executor", EXECUTORS)


def kinds(law: Callable[..., None]) -> Callable[..., None]:
    """A law on every family, attention and tying of the embeddings."""
    tyings = pytest.mark.parametrize("tied", [True, False])
    return pytest.mark.crossed(families(attentions(tyings(law))))


@cache
def pair_of(
    family: str, attention: str = "sdpa", tied: bool = True, dtype: torch.dtype = torch.float64
) -> ModelPair:
    """A recipient and two donors; every test leaves them as they are."""
    return pico_pair(family, attention=attention, tied=tied, dtype=dtype, donors=("sft", "task"))


@cache
def pool(*names: str) -> tuple[Prompt, ...]:
    """Prompts of 24 to 45 tokens."""
    return tuple(
        load_prompts("fake_movies_fake_actors", names or ("headline", "qa", "control"), limit=3)
    )


@cache
def copies(*pair: str | bool | torch.dtype) -> Callable[..., nn.Module]:
    """The oracle's models of a pair, each made once: what a token's copy holds does not depend on
    the token.
    """
    made: dict[oracle.Assignment, nn.Module] = {}

    def make(
        recipient: nn.Module, donors: Mapping[str, nn.Module], assignment: oracle.Assignment
    ) -> nn.Module:
        if assignment not in made:
            made[assignment] = oracle.hybrid(recipient, donors, assignment)
        return made[assignment]

    return make


def audited(
    pair: ModelPair,
    prompt: Prompt,
    graft: str,
    readouts: Sequence[int] | None = None,
    make: Any = None,
) -> torch.Tensor:
    """The oracle's logits [readout, vocabulary]."""
    return oracle.graft_logits(
        pair.recipient,
        pair.donors,
        pair.encode(prompt),
        pair.regions(prompt),
        graft,
        readouts,
        make,
    )


def alone(model: nn.Module, pair: ModelPair, prompts: Sequence[Prompt]) -> torch.Tensor:
    """Logits [prompt, vocabulary] of a model by itself, one prompt at a time."""
    with torch.no_grad():
        return torch.stack(
            [model(input_ids=torch.tensor([pair.encode(p)])).logits[0, -1] for p in prompts]
        )


def examples(n: int, *kind: object) -> Callable[[Any], Any]:
    """So many examples, others for every kind of model.

    A failing one is shown as it was drawn, since making it smaller would run the oracle for
    minutes.
    """
    chosen = settings(max_examples=n, phases=(Phase.explicit, Phase.generate))
    if not settings.default.derandomize:
        return chosen
    return lambda law: chosen(seed(crc32(repr(kind).encode()))(law))


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


@st.composite
def cases(
    draw: st.DrawFn, pair: ModelPair, prompts: int = 2, configurations: int = 2
) -> tuple[list[Prompt], list[str]]:
    """Some prompts, and grafts that name regions which all of them have."""
    some = draw(
        st.lists(st.sampled_from(pool()), min_size=1, max_size=prompts, unique_by=lambda p: p.text)
    )
    shared = sorted(set.intersection(*({*pair.regions(p)} for p in some)))
    names = (*pair.family.components, "q.h1", "k.h0", "v.h0", "o.h2")
    graft = grafts(shared, names, ("sft", "task", "recipient"), pair.n_layers)
    return some, draw(st.lists(graft, min_size=1, max_size=configurations))
