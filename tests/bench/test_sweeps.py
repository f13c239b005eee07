"""What localizers cost on the one engine, in units of a plain forward and of the way it is
otherwise done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from ratios import group, in_turns
from test_engine import forward, full_forward
from torch import Tensor, nn

from kgbench.data import Prompt
from kgbench.engine import Engine
from kgbench.engine.edits import Copy, Hook, SourceRun
from kgbench.engine.site_sets import all_sites, site_treatments
from kgbench.engine.treatment import Treatment, graft_treatments
from kgbench.localizers import create
from kgbench.models.pair import ModelPair

FEW = 16
EVERY = 7
"""Of the hook loop's forwards, which are all alike, one in so many is run."""


@pytest.fixture(scope="module")
def few(prompts: list[Prompt]) -> list[Prompt]:
    return prompts[:FEW]


def sweep(pair: ModelPair, prompts: Sequence[Prompt]) -> Callable[[], int]:
    """The donor's input of each layer at each position, copied into the recipient's run: all at
    once; gives the token rows.
    """
    engine = Engine(pair, "packed")
    plain, donor = (graft_treatments(pair, prompts, c) for c in ("PRE", "SFT"))
    width = max(map(len, plain))

    def patched(prompt: int, layer: int, position: int) -> tuple[Treatment, ...]:
        row, copy = plain[prompt], Copy(Hook(layer, "resid_pre"), SourceRun(donor[prompt]))
        return tuple(
            Treatment(t.weights, (copy,)) if i == position else t for i, t in enumerate(row)
        )

    def work() -> int:
        places = [(layer, position) for layer in range(pair.n_layers) for position in range(width)]
        treatments = [[patched(p, *place) for p in range(len(prompts))] for place in places]
        return sum(
            chunk.token_rows for chunk in engine.run(engine.plan_treatments(prompts, treatments))
        )

    return work


def hook_loop(pair: ModelPair, prompts: Sequence[Prompt], every: int) -> Callable[[], object]:
    """The same with PyTorch's hooks: one forward of all prompts for each layer and position, or for
    every so many of these.
    """
    encoded = [torch.tensor(pair.encode(p)) for p in prompts]
    ids = torch.nn.utils.rnn.pad_sequence(encoded, batch_first=True)
    layers: nn.ModuleList = pair.recipient.get_submodule(pair.family.layers)  # type: ignore[assignment]

    @torch.inference_mode()
    def work() -> list[Tensor]:
        states = pair.donors["sft"](
            input_ids=ids, output_hidden_states=True, use_cache=False
        ).hidden_states
        found = []
        for place in range(0, len(layers) * ids.shape[1], every):
            layer, position = divmod(place, ids.shape[1])

            def hook(
                _: nn.Module,
                args: tuple[Tensor, ...],
                at: int = position,
                state: Tensor = states[layer],
            ) -> tuple[Tensor, ...]:
                patched = args[0].clone()
                patched[:, at] = state[:, at]
                return (patched, *args[1:])

            with layers[layer].register_forward_pre_hook(hook):
                found.append(pair.recipient(input_ids=ids, use_cache=False).logits[:, -1])
        return found

    return work


@group("activation patching, every layer and position")
def test_patching_sweep(
    large: ModelPair, few: list[Prompt], benchmark: BenchmarkFixture, claim: Callable[..., None]
) -> None:
    """A sweep of one hook point over all layers and positions."""
    work, loop = sweep(large, few), hook_loop(large, few, EVERY)
    own = sum(len(large.encode(p)) for p in few)
    longest = max(len(large.encode(p)) for p in few)
    rows = work()
    looped = large.n_layers * longest * longest * len(few)
    claim(
        "large: token rows of the sweep ÷ those of the hook loop",
        f"{rows / looped:.2f}",
        "",
        True,
        rows / own,
    )
    places = large.n_layers * longest
    ratio = in_turns(benchmark, work, {"loop": loop}, 3)["loop"].scaled(
        len(range(0, places, EVERY)) / places
    )
    claim("large: patching sweep ÷ hook loop", ratio, "≤ 0.6", ratio.value <= 0.6, rows / looped)


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
    sites = [
        site for site in all_sites(large, few) if site.region == "LT" and site.layer is not None
    ]
    engine = Engine(large, "packed")

    def scan(some: Sequence[object]) -> Callable[[], int]:
        return lambda: sum(
            chunk.token_rows
            for chunk in engine.run(
                engine.plan_treatments(few, [site_treatments(large, few, [site]) for site in some])
            )  # type: ignore[list-item]
        )

    work = scan(sites)
    own = sum(len(large.encode(p)) for p in few)
    rows = work()
    ratio = in_turns(benchmark, work, {"plain": forward(large, few)}, 8)["plain"]
    bound = 1.25 * rows / own
    claim(
        f"large: graft_scan of {len(sites)} sites at LT ÷ plain forward",
        ratio,
        f"≤ {bound:.2f}",
        ratio.value <= bound,
        rows / own,
    )
