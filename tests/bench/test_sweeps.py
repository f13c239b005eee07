"""What scoring localizers cost on the one engine, in units of a plain forward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from ratios import group, in_turns
from test_engine import full_forward
from works import forward, scan_of_last_token

from kgbench.data import Prompt
from kgbench.localizers import create
from kgbench.models.pair import ModelPair

FEW = 16


@pytest.fixture(scope="module")
def few(prompts: list[Prompt]) -> list[Prompt]:
    return prompts[:FEW]


@group("attribution of a whole map")
def test_attribution(
    large: ModelPair, few: list[Prompt], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """First-order effects of all sites: one forward and one backward."""
    localizer = create("graft_attribution", {}, 0)
    ratios = in_turns(
        benchmark,
        lambda: localizer.scores(large, few),  # type: ignore[attr-defined]  # a scoring localizer
        {"plain": forward(large, few), "full": full_forward(large, few)},
        10,
    )
    claim(
        "large: graft_attribution ÷ plain forward",
        ratios["plain"],
        "≤ 6",
        ratios["plain"].value <= 6,
    )
    claim("large: graft_attribution ÷ plain forward, all logits", ratios["full"], "", True)


@group("scan of single sites")
def test_scan(
    large: ModelPair, few: list[Prompt], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """Every site at the last token grafted alone: a further site costs one token."""
    n_sites, work = scan_of_last_token(large, few)
    own = sum(len(large.encode(p)) for p in few)
    rows = work()
    ratio = in_turns(benchmark, work, {"plain": forward(large, few)}, 8)["plain"]
    bound = 1.25 * rows / own
    claim(
        f"large: graft_scan of {n_sites} sites at LT ÷ plain forward",
        ratio,
        f"≤ {bound:.2f}",
        ratio.value <= bound,
        rows / own,
    )
