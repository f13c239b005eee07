"""Rotary positions whose angles depend on the length of a prompt: a figure of a prompt depends on
that prompt alone, whatever shares its batch and whatever was run before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from laws import EXECUTORS, distance
from tiny import random_model
from transformers import AutoConfig

from kgbench.data import Prompt, load_prompts
from kgbench.engine import Budget, Engine, grafted_logits
from kgbench.engine.gated import Differentiable
from kgbench.engine.gradients import graft_effects
from kgbench.models.family_map import load_family
from kgbench.models.pair import ModelPair, prepare
from kgbench.testing import pico_tokenizer

pytestmark = pytest.mark.usefixtures("exact")

EXACT = 1e-6
"""Rotary angles are computed in float32."""


def _longrope(limit: int) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "original_max_position_embeddings": limit,
        "factor": 4.0,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0, 4.0, 5.0, 6.0],
    }


_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}
_PLAIN = {"rope_type": "default", "rope_theta": 100.0}
KINDS: Mapping[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "longrope": (
        "phi3",
        lambda n: {
            "max_position_embeddings": 128,
            "original_max_position_embeddings": n,
            "rope_parameters": _longrope(n),
        },
    ),
    "dynamic": ("llama", lambda n: {"max_position_embeddings": n, "rope_parameters": _DYNAMIC}),
    "longrope in some layers": (
        "gemma3_text",
        lambda n: {
            "max_position_embeddings": 128,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {"sliding_attention": _PLAIN, "full_attention": _longrope(n)},
        },
    ),
}
kinds = pytest.mark.parametrize("kind", KINDS)


@cache
def prompts() -> tuple[Prompt, ...]:
    return tuple(load_prompts("fake_movies_fake_actors", ["headline", "qa"], limit=2))


def lengths(pair: ModelPair) -> list[int]:
    return [len(pair.encode(prompt)) for prompt in prompts()]


@cache
def pair_of(kind: str) -> ModelPair:
    """Models whose limit is among the lengths of the prompts."""
    family, settings = KINDS[kind]
    tokenizer = pico_tokenizer(bos=False)
    middle = sorted(len(tokenizer(prompt.text)["input_ids"]) for prompt in prompts())[1]
    config = AutoConfig.for_model(
        family,
        vocab_size=300,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        **settings(middle),
    )
    models = [prepare(random_model(config, "sdpa", seed)) for seed in (1, 2)]
    pair = ModelPair(kind, models[0], {"sft": models[1]}, tokenizer, load_family(family))
    assert min(lengths(pair)) < middle < max(lengths(pair))
    return pair


def alone(pair: ModelPair, name: str) -> torch.Tensor:
    """Logits of each prompt in a model that has run nothing else."""
    rows = []
    for prompt in prompts():
        model = deepcopy(pair.donor(name))
        ids = torch.tensor([pair.encode(prompt)])
        with torch.no_grad():
            rows.append(model(input_ids=ids, use_cache=False).logits[0, -1])
    return torch.stack(rows)


@kinds
def test_the_limit_matters(kind: str) -> None:
    """A prompt beyond the limit has other logits in a model whose limit is far away."""
    pair = pair_of(kind)
    settings = KINDS[kind][1]
    far = AutoConfig.for_model(**{**pair.recipient.config.to_dict(), **settings(120)})
    model = random_model(far, "sdpa", 1)
    model.load_state_dict(pair.recipient.state_dict())
    long = torch.tensor([max((pair.encode(prompt) for prompt in prompts()), key=len)])
    with torch.no_grad():
        logits = [each(input_ids=long).logits[0, -1] for each in (deepcopy(pair.recipient), model)]
    assert distance(*logits) > 1e-2


@pytest.mark.sampled(2)
@kinds
@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_prompt_is_as_alone(kind: str, executor: str) -> None:
    """In a batch with prompts on both sides of the limit, also a second time and in another order,
    each has its own model's logits, and grafts are what each prompt gives by itself.
    """
    pair, some = pair_of(kind), list(prompts())
    grafts = ["PRE", "SFT", "FE", "LT:all@1-2"]
    for turn in (1, -1):
        got = grafted_logits(pair, some[::turn], grafts, executor)
        got = got if turn == 1 else got.flip(0)
        for column, name in enumerate(("recipient", "sft")):
            assert distance(got[:, column], alone(pair, name)) <= EXACT
    for row, prompt in zip(got, some, strict=True):
        assert distance(row, grafted_logits(pair, [prompt], grafts, "rows")[0]) <= EXACT


@kinds
def test_a_text_and_what_goes_on_from_it(kind: str) -> None:
    """Prompts that go on from one text share no token across the limit."""
    pair, (text, *_) = pair_of(kind), prompts()
    engine = Engine(pair, "packed", Budget())
    whole = max((pair.encode(prompt) for prompt in prompts()), key=len)
    plan = engine.plan([text] * 3, ["PRE", "SFT", "LT"])
    requests = []
    for request, n in zip(
        plan.requests, (len(whole) // 3, len(whole) // 2, len(whole)), strict=True
    ):
        rows = np.resize(request.treatments[:, :1], (len(request.treatments), n))
        part = type(request)(tuple(whole[:n]), rows, (n - 1,), stem=0)
        requests.append(part)
    plan = type(plan)(plan.table, tuple(requests))
    together = engine.logits(plan)
    for row, request in enumerate(requests):
        single = engine.logits(type(plan)(plan.table, (request,)))
        assert distance(together[row], single[0]) <= EXACT


@kinds
def test_derivatives_are_of_the_prompt_alone(kind: str) -> None:
    """So are log-probabilities and effects."""
    pair, some = pair_of(kind), list(prompts())
    together = graft_effects(pair, some)
    for got, prompt in zip(together, some, strict=True):
        assert np.abs(got - graft_effects(pair, [prompt])[0]).max() <= EXACT
    model = Differentiable(pair)
    for batch in model.batches(some):
        scores = model.logprobs([some[i] for i in batch])
        for i, score in zip(batch, scores, strict=True):
            target = pair.encoded(some[i]).target
            assert abs(float(score - alone(pair, "recipient")[i].log_softmax(0)[target])) <= EXACT


@kinds
def test_activations_are_of_the_prompt_alone(kind: str) -> None:
    """And activations."""
    from kgbench.engine.edits import Hook
    from kgbench.engine.treatment import graft_treatments, parse_configuration

    pair, some = pair_of(kind), list(prompts())
    engine, hooks = Engine(pair, "rows"), [Hook(1, "attn_out")]
    rows = graft_treatments(pair, some, parse_configuration("FE"))
    for got, prompt, row in zip(engine.activations(some, rows, hooks), some, rows, strict=True):
        assert distance(got, engine.activations([prompt], [row], hooks)[0]) <= EXACT


@kinds
def test_models_keep_their_angles(kind: str) -> None:
    """The pair's models keep no angles of a prompt: their buffers are as before."""
    pair = pair_of(kind)
    before = {name: buffer.clone() for name, buffer in pair.recipient.named_buffers()}
    for executor in EXECUTORS:
        grafted_logits(pair, prompts(), ["PRE", "LT"], executor)
    after = dict(pair.recipient.named_buffers())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
