"""Checkpoints of the catalog's real pairs, few layers deep and narrow, with files as the published
ones have them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from kgbench.testing import pico_tokenizer

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    name: said
    for name, said in json.loads(
        (Path(__file__).parent / "published.json").read_text("utf-8")
    ).items()
    if name != "source"
}
REDUCED: Mapping[str, Mapping[str, int]] = {
    "gemma-2b": {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 128},
    "llama-3.2-1b": {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 128},
    "gpt2-xl": {"n_layer": 2, "n_embd": 50},
    "pythia-2.8b": {"num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 1024},
}
"""Layers and width; GPT-2 has 25 heads and Pythia 32 of eight channels, of which a quarter is
rotated.
"""


def published_config(name: str, **changes: int) -> PreTrainedConfig:
    """The published configuration with some values changed."""
    return AutoConfig.for_model(**{**PUBLISHED[name], **changes})


def write_pair(name: str, folder: Path) -> dict[str, Path]:
    """Write a recipient, and a donor that differs from it by a little in every weight."""
    made = AutoModelForCausalLM.from_config(published_config(name, **REDUCED[name]))
    for number, part in enumerate(("recipient", "sft")):
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for parameter in made.parameters():
                scale = 0.25 if number == 0 else 0.1
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
        _write(name, made.state_dict(), folder / part)
    return {part: folder / part for part in ("recipient", "sft")}


def _write(name: str, weights: Mapping[str, torch.Tensor], folder: Path) -> None:
    folder.mkdir(parents=True)
    said = PUBLISHED[name]
    (folder / "config.json").write_text(json.dumps({**said, **REDUCED[name]}), "utf-8")
    pico_tokenizer(bos=said["model_type"] in ("gemma", "llama")).save_pretrained(folder)
    dtype = getattr(torch, said.get("torch_dtype", "float32"))
    tied = said.get("tie_word_embeddings", True)
    kept = {
        key: value.to(dtype).contiguous()
        for key, value in weights.items()
        if not (tied and key == "lm_head.weight")
    }
    _save(_as_published(name, kept), folder, shards=2 if name == "gemma-2b" else 1)


def _as_published(name: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names as on the Hub, and the buffers that were stored with the weights then."""
    if name == "gpt2-xl":
        masks = {
            f"h.{layer}.attn.bias": torch.ones(1, 1, 1024, 1024).tril()
            for layer in range(REDUCED[name]["n_layer"])
        }
        return {
            **{key.removeprefix("transformer."): value for key, value in weights.items()},
            **masks,
        }
    if name == "pythia-2.8b":
        buffers: dict[str, torch.Tensor] = {}
        for layer in range(REDUCED[name]["num_hidden_layers"]):
            start = f"gpt_neox.layers.{layer}.attention"
            buffers[f"{start}.bias"] = torch.ones(1, 1, 2048, 2048, dtype=torch.bool).tril()
            buffers[f"{start}.masked_bias"] = torch.tensor(-1e9, dtype=torch.float16)
            buffers[f"{start}.rotary_emb.inv_freq"] = torch.ones(1)
        return {**weights, **buffers}
    return dict(weights)


def _save(weights: Mapping[str, torch.Tensor], folder: Path, shards: int) -> None:
    """Safetensors, in several files with their index where there are several."""
    if shards == 1:
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return
    index = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {key: weights[key] for key in sorted(weights)[number::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    size = sum(value.numel() * value.element_size() for value in weights.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": size}, "weight_map": index}), "utf-8"
    )
