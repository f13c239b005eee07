"""What nnsight and TransformerLens make of the models of a pair, as JSON.

A program of its own, since nnsight changes Python's `object` and torch's `Tensor` for good.

    python -m tests.other_tools
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

import kgbench
from kgbench.engine import Engine
from kgbench.localizers import create
from kgbench.localizers._base import InterventionLocalizer, asked
from kgbench.models.pair import ModelPair
from kgbench.sites import RECIPIENT

PAIRS = ("tiny-gemma", "tiny-gpt2", "tiny-llama", "tiny-pythia")
GRAFTS = ["PRE", "SFT", "FE+LT", "FE; LT:o+ffn@4-7"]


def tokens_of(pair: ModelPair, prompt: Any) -> Tensor:
    return torch.tensor([pair.encode(prompt)])


def plain(model: PreTrainedModel, ids: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Logits, and the residual stream after each layer, of which the last is normed."""
    with torch.no_grad():
        found = model(ids, output_hidden_states=True)
    return found.logits, found.hidden_states[1:]


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def hooks(pair: ModelPair) -> int:
    """Hooks on modules, those that transformers puts there to collect hidden states apart."""
    return sum(
        "transformers" not in (getattr(hook, "__module__", "") or "")
        for model in (pair.recipient, *pair.donors.values())
        for module in model.modules()
        for name, of in module.__dict__.items()
        if name.endswith("hooks") and isinstance(of, dict)
        for hook in of.values()
    )


def patched(pair: ModelPair, prompts: list[Any], layer: int) -> Tensor:
    """Logits with the donor's residual stream after a layer at the last token, by kgbench."""
    method = create("activation_patch", {}, 0)
    assert isinstance(method, InterventionLocalizer)
    sites = kgbench.parse_graft(f"LT@{layer}")
    treatments = method.treat(pair, asked(method, pair, prompts), sites)
    engine = Engine(pair)
    return engine.logits(engine.plan_treatments(prompts, [treatments]))[:, 0, 0]


def nnsight(pair: ModelPair, prompts: list[Any]) -> dict[str, float]:
    """Distances of what nnsight traces from the plain models, and of its patches from kgbench's."""
    from nnsight import NNsight

    layers, head = pair.family.layers, pair.recipient.get_output_embeddings()
    head_name = next(name for name, each in pair.recipient.named_modules() if each is head)
    states, logits, patches = 0.0, 0.0, 0.0
    ids = tokens_of(pair, prompts[0])
    wrapped = {}
    for name, model in {RECIPIENT: pair.recipient, **pair.donors}.items():
        wrapped[name] = NNsight(model)
        expected, hidden = plain(model, ids)
        for layer in range(pair.n_layers - 1):
            with wrapped[name].trace(ids):
                state = wrapped[name].get(f"{layers}.{layer}").output.save()
                given = wrapped[name].get(head_name).output.save()
            state = state[0] if isinstance(state, tuple) else state
            states = max(states, distance(state, hidden[layer]))
            logits = max(logits, distance(given, expected))
    for layer in range(pair.n_layers):
        by_kgbench = patched(pair, prompts, layer)
        for prompt, row in zip(prompts, by_kgbench, strict=True):
            given = traced_patch(wrapped, tokens_of(pair, prompt), f"{layers}.{layer}", head_name)
            patches = max(patches, distance(given, row))
    return {"logits": logits, "states": states, "patches": patches}


def traced_patch(wrapped: dict[str, Any], ids: Tensor, layer: str, head: str) -> Tensor:
    """Logits with the donor's output of a layer at the last token, by nnsight."""
    recipient, donor = wrapped[RECIPIENT], wrapped["sft"]
    with donor.trace(ids):
        state = donor.get(layer).output.save()
    state = state[0] if isinstance(state, tuple) else state
    with recipient.trace(ids):
        out = recipient.get(layer).output
        (out[0] if isinstance(out, tuple) else out)[:, -1] = state[:, -1]
        logits = recipient.get(head).output[0, -1].save()
    return logits


def transformer_lens(pair: ModelPair, prompts: list[Any]) -> dict[str, float]:
    """Distances of TransformerLens's logits and residual streams from the plain models'."""
    from transformer_lens.model_bridge import TransformerBridge

    states, logits = 0.0, 0.0
    for name in (RECIPIENT, *pair.donors):
        bridge = TransformerBridge.boot_transformers(
            pair.name, hf_model=pair.shared_copy(name), tokenizer=copy.deepcopy(pair.tokenizer)
        )
        for prompt in prompts:
            ids = tokens_of(pair, prompt)
            with torch.no_grad():
                given, cache = bridge.run_with_cache(ids)
            expected, hidden = plain(pair.donor(name), ids)
            logits = max(logits, distance(given, expected))
            for layer in range(pair.n_layers - 1):
                state = cache[f"blocks.{layer}.hook_out"]
                states = max(states, distance(state, hidden[layer]))
    return {"logits": logits, "states": states}


def measured(pair: ModelPair, tool: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What a tool's function gives, and what is left of the pair afterwards."""
    prompts = kgbench.load_prompts("tiny_movies", ["headline", "qa"], limit=2)
    models, ids = (pair.recipient, *pair.donors.values()), tokens_of(pair, prompts[0])
    alone = [plain(model, ids)[0] for model in models]
    grafted = kgbench.grafted_logits(pair, prompts, GRAFTS)
    assert pair.weight_hashes
    found = tool(pair, prompts)
    found["grafts"] = distance(kgbench.grafted_logits(pair, prompts, GRAFTS), grafted)
    again = [plain(model, ids)[0] for model in models]
    found["alone"] = max(map(distance, again, alone))
    return {**found, "changed": pair.changed(), "hooks": hooks(pair)}


def main() -> None:
    found = {}
    for name in PAIRS:
        pair = kgbench.load_pair(name)
        tools = (transformer_lens, nnsight)
        found[name] = {tool.__name__: measured(pair, tool) for tool in tools}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
