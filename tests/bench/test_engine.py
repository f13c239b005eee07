"""What the engine costs, in units of a plain forward and of other ways to the same answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from oracle import assignments, graft_logits
from pytest_benchmark.fixture import BenchmarkFixture
from ratios import group, in_turns
from works import PATHWAYS, forward, packed

from kgbench.data import Prompt
from kgbench.engine import Engine, as_model
from kgbench.models.pair import ModelPair

COMPONENTS = ("ln_1", "q", "k", "v", "o", "gate", "up", "down")
LT_GRAFTS = tuple(f"LT:{component}@{layer}" for layer in range(12) for component in COMPONENTS)
BOUNDS = {"tiny": (1.2, 30), "large": (1.05, 10)}
"""Cost of a packed token row in those of a plain forward, at most; and rounds."""
GENERATED = {"large": (1.5, 10), "real": (1.5, 5)}
"""Cost of a token that a grafted model generates, in those of its base, at most; and rounds."""
PAPER = {"tiny": (300, 10), "large": (150, 3)}
"""How much longer the paper's algorithm takes, at least; and rounds."""


def full_forward(pair: ModelPair, prompts: Sequence[Prompt]) -> Callable[[], object]:
    """A plain forward with transformers alone: logits at all tokens, padding on the right."""
    encoded = [torch.tensor(pair.encode(p)) for p in prompts]
    ids = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)
    return torch.inference_mode()(lambda: pair.recipient(input_ids=ids, use_cache=False))


def nodes(pair: ModelPair, prompt: Prompt, configurations: Sequence[str]) -> int:
    """Size of a prompt's trie: distinct histories of what is done to its tokens. Final norm and
    head matter at the last token only.
    """
    ids, regions = pair.encode(prompt), pair.regions(prompt)
    histories = set()
    for configuration in configurations:
        tokens = assignments(configuration, regions, len(ids), pair.n_layers)
        tokens[:-1] = [
            frozenset(a for a in token if a[0] not in ("ln_f", "head")) for token in tokens[:-1]
        ]
        histories |= {tuple(tokens[: i + 1]) for i in range(len(tokens))}
    return len(histories)


@pytest.mark.parametrize("size", BOUNDS)
@group("eight pathway configurations")
def test_pathways(
    size: str,
    request: pytest.FixtureRequest,
    prompts: list[Prompt],
    benchmark: BenchmarkFixture,
    claim: Callable[..., None],
) -> None:
    """Token rows are the trie's; all configurations cost little more than their share of rows of
    one plain forward.
    """
    pair, (factor, rounds) = request.getfixturevalue(size), BOUNDS[size]
    work, reference = packed(pair, prompts, PATHWAYS), forward(pair, prompts)
    rows, trie, own = (
        work(),
        sum(nodes(pair, p, PATHWAYS) for p in prompts),
        sum(len(pair.encode(p)) for p in prompts),
    )
    assert reference() == own
    claim(
        f"{size}: token rows of 8 configurations",
        rows,
        f"= {trie}, the trie's",
        rows == trie,
        rows / own,
    )
    ratios = in_turns(
        benchmark, work, {"plain": reference, "full": full_forward(pair, prompts)}, rounds
    )
    bound = factor * rows / own
    claim(
        f"{size}: 8 configurations ÷ plain forward",
        ratios["plain"],
        f"≤ {bound:.2f}",
        ratios["plain"].value <= bound,
        rows / own,
    )
    claim(
        f"{size}: 8 configurations ÷ plain forward, all logits",
        ratios["full"],
        "",
        True,
        rows / own,
    )


@group("96 grafts at the last token")
def test_many_grafts(
    large: ModelPair, prompts: list[Prompt], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """A further graft at the last token costs one token."""
    work, reference = packed(large, prompts, LT_GRAFTS), packed(large, prompts, LT_GRAFTS[:1])
    rows, one = work(), reference()
    trie = sum(nodes(large, p, LT_GRAFTS) for p in prompts)
    claim(
        "large: token rows of 96 LT grafts", rows, f"= {trie}, the trie's", rows == trie, rows / one
    )
    ratio = in_turns(benchmark, work, {"one": reference}, 10)["one"]
    bound = 0.65 * rows / one  # layers below the grafted one are shared
    claim("large: 96 LT grafts ÷ one", ratio, f"≤ {bound:.2f}", ratio.value <= bound, rows / one)


@group("slow ways, per prompt and configuration")
def test_sequential(
    tiny: ModelPair, prompts: list[Prompt], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """Token by token with a cache, modules exchanged in place."""
    engine, few = Engine(tiny, "sequential"), prompts[:2]
    plan = engine.plan(few, PATHWAYS)
    ratio = in_turns(
        benchmark, packed(tiny, prompts, PATHWAYS), {"slow": lambda: list(engine.run(plan))}, 10
    )["slow"]
    ratio = ratio.inverse().scaled(len(prompts) / len(few))
    claim("tiny: sequential ÷ packed", ratio, "≥ 20", ratio.value >= 20)


@pytest.mark.parametrize("size", PAPER)
@group("slow ways, per prompt and configuration")
def test_paper_algorithm(
    size: str,
    request: pytest.FixtureRequest,
    prompts: list[Prompt],
    benchmark: BenchmarkFixture,
    claim: Callable[..., None],
) -> None:
    """The paper's algorithm: a deep copy of the recipient per token, batch 1. A prompt of median
    length stands for all, a graft and its complement for the pathways, which are such pairs.
    """
    pair, (least, rounds) = request.getfixturevalue(size), PAPER[size]
    prompt = sorted(prompts, key=lambda p: len(pair.encode(p)))[len(prompts) // 2]
    grafts = ("FE", "FE^C")

    def paper() -> None:
        ids, regions = pair.encode(prompt), pair.regions(prompt)
        for graft in grafts:
            graft_logits(pair.recipient, pair.donors, ids, regions, graft)

    ratios = in_turns(benchmark, packed(pair, prompts, PATHWAYS), {"paper": paper}, rounds)
    share = len(PATHWAYS) / len(grafts) * len(prompts)
    ratio = ratios["paper"].inverse().scaled(share)
    claim(f"{size}: the paper's algorithm ÷ packed", ratio, f"≥ {least}", ratio.value >= least)


@pytest.mark.parametrize("size", GENERATED)
@group("a grafted model that generates")
def test_generation(
    size: str,
    request: pytest.FixtureRequest,
    prompts: list[Prompt],
    benchmark: BenchmarkFixture,
    claim: Callable[..., None],
) -> None:
    """A token of a grafted model costs what one of the base does, and the choice of weights."""
    pair, (bound, rounds) = request.getfixturevalue(size), GENERATED[size]
    ids = torch.tensor([pair.encode(prompts[0])])

    def writes(model: Any) -> Callable[[], object]:
        steps = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False}
        return lambda: model.generate(ids, **steps)

    works = {"base": writes(pair.recipient)}
    grafted = writes(as_model(pair, "FE+LT", prompts=prompts))
    ratio = in_turns(benchmark, grafted, works, rounds)["base"]
    claim(f"{size}: a generated token ÷ plain", ratio, f"≤ {bound}", ratio.value <= bound)
