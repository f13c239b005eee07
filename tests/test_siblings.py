"""Prompts that go on from one text: sharing trees changes nothing but the computation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgbench.engine.engine import EXECUTORS
from kgbench.engine.forward import Wiring
from kgbench.engine.plan import Budget, Plan, Request
from kgbench.engine.siblings import Siblings
from kgbench.testing import pico_pair

WIRING = Wiring(pico_pair("gemma"))
STEM = (1, 7, 5, 9)
TABLE = np.repeat(np.array([[0], [1]], dtype=np.uint8), len(WIRING.slots), axis=1)
"""The recipient, and the donor."""

Drawn = tuple[int, tuple[int, ...], list[list[int]], int]
"""Text that the prompt goes on from, its token ids, treatments by configuration, first readout."""

Labelled = Mapping[tuple[int, int, int], torch.Tensor]


@st.composite
def drawn(draw: st.DrawFn) -> list[Drawn]:
    """Prompts of one text and of another, of several lengths, each under treatments and with
    readouts of its own.
    """
    prompts = []
    for stem in sorted(draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))):
        ids = (*STEM[stem:], *draw(st.lists(st.integers(3, 5), max_size=3)))
        numbers = st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids))
        treatments = draw(st.lists(numbers, min_size=1, max_size=3))
        prompts.append((stem, ids, treatments, draw(st.integers(0, len(ids) - 1))))
    return prompts


def _plan(prompts: list[Drawn], shared: bool = True) -> Plan:
    requests = []
    for stem, ids, treatments, first in prompts:
        readouts = tuple(range(first, len(ids)))
        own = stem if shared else None
        requests.append(Request(ids, np.array(treatments), readouts, stem=own))
    return Plan(TABLE, tuple(requests))


def _answered(plan: Plan, executor: str, budget: Budget) -> tuple[Labelled, int]:
    """Logits by prompt, configuration and readout, and the number of token rows."""
    found: dict[tuple[int, int, int], torch.Tensor] = {}
    rows = 0
    with torch.inference_mode():
        for chunk in EXECUTORS[executor](WIRING, plan, budget):
            rows += chunk.token_rows
            answers = chunk.answers()
            labels = torch.stack([answers.prompt, answers.configuration, answers.readout])
            for label, logits in zip(map(tuple, labels.T.tolist()), answers.logits, strict=True):
                assert label not in found
                found[label] = logits
    return found, rows


@settings(max_examples=25, deadline=None)
@given(drawn(), st.sampled_from([(512, 512, None), (24, 9, None), (512, 512, 2)]))
def test_sharing_changes_nothing(prompts: list[Drawn], limits: tuple[int, int, int | None]) -> None:
    """Each prompt is answered as alone, by every executor, however trees are divided."""
    tokens, tree, most = limits
    budget = Budget(tokens, most, tree)
    wanted, _ = _answered(_plan(prompts, shared=False), "sequential", budget)
    for executor in EXECUTORS:
        found, _ = _answered(_plan(prompts), executor, budget)
        assert found.keys() == wanted.keys()
        for label, logits in found.items():
            torch.testing.assert_close(logits, wanted[label], atol=1e-9, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(drawn())
def test_what_begins_alike_is_computed_once(prompts: list[Drawn]) -> None:
    """Of one text, token rows are as many as distinct beginnings, in tokens and treatments."""
    _, rows = _answered(_plan(prompts), "packed", Budget(tree=10**6, tokens=10**6))
    beginnings = set()
    for stem, ids, treatments, _ in prompts:
        for row in treatments:
            for end in range(1, len(row) + 1):
                beginnings.add((stem, ids[:end], tuple(row[:end])))
    assert rows == len(beginnings)


@given(st.integers(1, 99), st.integers(0, 9999), st.integers(1, 9999))
def test_trees_of_one_text_cost_least(text: int, keys: int, most: int) -> None:
    """Fewer and more nodes take more computation per node after the text; one request has none to
    share it with.
    """
    request = Request((1,) * text, np.zeros((1, text), dtype=int), (0,), stem=0)

    def cost(nodes: int) -> float:
        return nodes * (keys + nodes) / (nodes - text)

    best = Siblings(0, (request, request)).limit(10**6, keys)
    assert best > text and cost(best + 1) <= cost(best + 2)
    assert best == text + 1 or cost(best) <= cost(best - 1)
    assert Siblings(0, (request, request)).limit(most, keys) == min(most, best)
    assert Siblings(0, (request,)).limit(most, keys) == most
