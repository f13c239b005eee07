"""What the engine costs, in units of a plain forward and of other ways to the same answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from oracle import assignments, graft_logits
from pytest_benchmark.fixture import BenchmarkFixture
from ratios import group, in_turns

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.batch_rows import plain
from kgbench.models.pair import ModelPair
from kgbench.sites import CONFIGURATIONS

PATHWAYS = tuple(c for c in CONFIGURATIONS if c != "ALL")
COMPONENTS = ("ln_1", "q", "k", "v", "o", "gate", "up", "down")
LT_GRAFTS = tuple(f"LT:{component}@{layer}" for layer in range(12) for component in COMPONENTS)
BOUNDS = {"tiny": (1.6, 30), "large": (1.25, 10)}
"""Cost of a packed token row in those of a plain forward, at most; and rounds."""


def packed(
    pair: ModelPair, prompts: Sequence[Prompt], configurations: Sequence[str]
) -> Callable[[], int]:
    """All answers from planning to logits; gives the token rows."""
    engine = Engine(pair, "packed")
    return lambda: sum(
        answers.token_rows for answers in engine.run(engine.plan(prompts, configurations))
    )


def forward(pair: ModelPair, prompts: Sequence[Prompt]) -> Callable[[], int]:
    """One plain forward of the recipient, whose head is computed at the last tokens only; gives the
    token rows.
    """
    engine = Engine(pair, "packed")
    plan = engine.plan(prompts, ["PRE"])
    return torch.inference_mode()(lambda: plain(engine.wiring, plan, engine.budget))


def full_forward(pair: ModelPair, prompts: Sequence[Prompt]) -> Callable[[], object]:
    """The same with transformers alone: logits at all tokens, padding on the right."""
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
    bound = 1.25 * rows / one
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


@group("slow ways, per prompt and configuration")
def test_paper_algorithm(
    tiny: ModelPair, prompts: list[Prompt], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """The paper's algorithm: a deep copy of the recipient per token, batch 1."""
    few = prompts[:1]

    def paper() -> None:
        for prompt in few:
            for configuration in PATHWAYS:
                graft_logits(
                    tiny.recipient,
                    tiny.donors,
                    tiny.encode(prompt),
                    tiny.regions(prompt),
                    configuration,
                )

    ratio = in_turns(benchmark, packed(tiny, prompts, PATHWAYS), {"paper": paper}, 10)["paper"]
    ratio = ratio.inverse().scaled(len(prompts) / len(few))
    claim("tiny: the paper's algorithm ÷ packed", ratio, "≥ 120", ratio.value >= 120)
