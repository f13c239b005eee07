"""Cost of a token row against the length of the prompt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from ratios import measure
from transformers import AutoModelForCausalLM, LlamaConfig

from kgbench.engine import Budget, Plan
from kgbench.engine.forward import Wiring
from kgbench.engine.packed import run_packed
from kgbench.engine.plan import Request
from kgbench.engine.tree import grow
from kgbench.models.family_map import load_family
from kgbench.models.pair import ModelPair, prepare
from kgbench.testing import pico_tokenizer

LENGTHS = (
    *(20, 25, 31, 38, 47, 58, 72, 90, 110, 135, 165, 200, 245, 300, 365, 450, 480, 502, 524),
    *(560, 650, 800, 1000, 1250, 1500, 1800, 2200, 2700, 3300, 4000),
)
STEP = 1.3
"""Largest ratio of the cost of a token row to that at the next shorter length."""
ROWS = 1000
"""Token rows of prompts at one length, at least."""
ROUNDS = 3


@pytest.fixture(scope="module")
def wiring() -> Wiring:
    """Random models that take long prompts."""
    tokenizer = pico_tokenizer(bos=True)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=512,
        max_position_embeddings=2 * LENGTHS[-1],
    )
    recipient, donor = (prepare(AutoModelForCausalLM.from_config(config)) for _ in range(2))
    return Wiring(ModelPair("long", recipient, {"sft": donor}, tokenizer, load_family("llama")))


def scan(tokens: int) -> np.ndarray:
    """Treatments [configuration, token] of 27 grafts at the last token."""
    treatments = np.zeros((27, tokens), dtype=np.int64)
    treatments[:, -1] = np.arange(27)
    return treatments


def pathways(tokens: int) -> np.ndarray:
    """Treatments [configuration, token] of PRE, SFT, and six grafts at FE, REL and LT."""
    place = np.arange(tokens) / tokens
    fe, rel = (place >= 0.2) & (place < 0.3), (place >= 0.5) & (place < 0.6)
    lt = np.arange(tokens) == tokens - 1
    nowhere = np.zeros(tokens, dtype=bool)
    grafts = [nowhere, ~nowhere, fe, rel, lt, fe | lt, fe | rel | lt, ~(fe | lt)]
    return np.array(grafts).astype(np.int64)


def plan(wiring: Wiring, treatments: np.ndarray) -> Plan:
    """Treatment i of several prompts takes the donor's weights at slot i."""
    table = np.eye(27, len(wiring.slots), dtype=np.uint8)
    tokens = treatments.shape[1]
    n = -(-ROWS // tokens)
    ids = np.random.default_rng(tokens).integers(3, 250, (n, tokens)).tolist()
    return Plan(table, tuple(Request(tuple(row), treatments, (tokens - 1,)) for row in ids))


BOUNDS = {scan: 1.0, pathways: 1.4}
"""Token rows in units of the trie's, at most: where branches are long, trees are divided."""


@pytest.mark.parametrize("work", BOUNDS)
def test_lengths(
    work: Callable[[int], np.ndarray], wiring: Wiring, claim: Callable[..., None]
) -> None:
    """No length of a prompt is where the cost of its trie's token rows jumps."""
    plans = [plan(wiring, work(tokens)) for tokens in LENGTHS]
    tries = [len(p.requests) * len(grow(p.requests[0].treatments, [0])) for p in plans]

    @torch.inference_mode()
    def rows(some: Plan) -> int:
        return sum(chunk.token_rows for chunk in run_packed(wiring, some, Budget()))

    most = max(rows(p) / trie for p, trie in zip(plans, tries, strict=True))
    seconds = np.array([[measure(partial(rows, p)) for p in plans] for _ in range(ROUNDS)])
    costs = np.median(seconds, axis=0) / tries
    for tokens, cost in zip(LENGTHS, costs, strict=True):
        print(f"{work.__name__} {tokens:5d} tokens  {1e6 * cost:7.1f} us a token row")
    step = max(after / before for before, after in pairwise(costs))
    bound = BOUNDS[work]
    name = f"20 to 4,000 tokens, {work.__name__}"
    claim(f"{name}: token rows ÷ the trie's, at most", f"{most:.2f}", f"≤ {bound}", most <= bound)
    claim(
        f"{name}: cost of a token row ÷ at the next shorter length, at most",
        f"{step:.2f}",
        f"≤ {STEP}",
        step <= STEP,
    )
