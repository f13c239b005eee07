"""What one forward of many configurations asks of a device: few calls, one copy, and no waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kgbench.engine import Budget, Engine, load_pair
from kgbench.engine.packed import run_packed
from kgbench.engine.plan import Plan
from kgbench.engine.site_sets import all_sites, site_treatments
from kgbench.models.pair import ModelPair
from kgbench.runner import load_prompts
from kgbench.sites.configurations import configurations

PATHWAYS = tuple(configurations(("FE", "LT", "FE+LT"), None))
"""Nine, with baselines and complements."""


class Calls(TorchDispatchMode):
    """Counts calls of the tensor library, and copies from the host to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(
        self, call: Any, types: Any, given: Sequence[Any] = (), options: Mapping[str, Any] = {}
    ) -> Any:
        result = call(*given, **options)
        self.count["calls"] += 1
        if call.overloadpacket in (torch.ops.aten.to, torch.ops.aten._to_copy):
            self.count["copies"] += given[0].device.type == "cpu" and result.device.type != "cpu"
        return result


def without_values(pair: ModelPair) -> ModelPair:
    """The pair on the device `meta`: what asks for a value there, and so waits, raises."""

    def moved(model: Any) -> Any:
        return deepcopy(model).to("meta")

    donors = {name: moved(donor) for name, donor in pair.donors.items()}
    return replace(pair, recipient=moved(pair.recipient), donors=donors)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-gpt2", "tiny-llama", "tiny-pythia"])
def test_a_chunk_is_few_calls_and_one_copy(name: str) -> None:
    """All pathways take up to 2.5 times the calls of a plain forward, and a scan of all
    components at the last token up to 3 times; index tensors move together, and nothing waits.
    """
    pair, prompts = load_pair(name), load_prompts("tiny_movies", ["headline"], 16)
    engine = Engine(pair, "packed", Budget(tokens=10**6))
    sites = [site for site in all_sites(pair, prompts) if site.region == "LT"]
    scan = [site_treatments(pair, prompts, [site]) for site in sites]
    wiring = Engine(without_values(pair), "rows").wiring
    wiring.staged = engine.wiring.staged

    def counted(plan: Plan) -> Counter[str]:
        with torch.inference_mode(), Calls() as calls:
            (chunk,) = run_packed(wiring, plan, engine.budget)
            chunk.answers()
        return calls.count

    plain = counted(engine.plan(prompts, ["PRE"]))["calls"]
    pathways = counted(engine.plan(prompts, PATHWAYS))
    sites_alone = counted(engine.plan_treatments(prompts, scan))
    assert pathways["calls"] <= 2.5 * plain
    assert sites_alone["calls"] <= 3 * plain
    assert pathways["copies"] == sites_alone["copies"] == 1
