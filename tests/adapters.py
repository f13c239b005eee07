"""LoRA adapters for tests, written and merged by PEFT itself."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel

from kgbench.engine import load_pair
from kgbench.models.pair import ModelPair, prepare
from kgbench.testing import pico_pair

ADAPTERS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {"target_modules": ["c_attn", "c_proj"], "lora_alpha": 6, "fan_in_fan_out": True},
    "gpt_neox": {
        "target_modules": ["query_key_value", "dense_4h_to_h"],
        "use_rslora": True,
        "exclude_modules": ["layers.1.mlp.dense_4h_to_h"],
    },
    "llama": {
        "target_modules": ["q_proj", "v_proj", "down_proj"],
        "rank_pattern": {"v_proj": 2, "layers.2.mlp.down_proj": 5},
        "alpha_pattern": {"model.layers.0.self_attn.q_proj": 3, "down_proj": 7},
        "layers_to_transform": [0, 2],
        "layers_pattern": "layers",
    },
    "gemma": {
        "target_modules": ["k_proj", "o_proj", "gate_proj", "lm_head"],
        "modules_to_save": ["norm", "embed_tokens"],
    },
}
"""One adapter for each family; together they make use of all that a configuration can say."""


@contextmanager
def quiet() -> Iterator[None]:
    """PEFT and transformers warn of each other's older names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_recipient(family: str, folder: Path) -> Path:
    """A checkpoint of a random model in float32, with its tokenizer."""
    pair = pico_pair(family, dtype=torch.float32)
    pair.recipient.save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)
    return folder


def write_adapter(recipient: nn.Module, folder: Path, seed: int = 0, **said: Any) -> Path:
    """An adapter of random rows, and where it replaces modules as a whole, of other random weights."""
    generator = torch.Generator().manual_seed(seed)
    with quiet():
        model = get_peft_model(
            copy.deepcopy(recipient),
            LoraConfig(**{"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", **said}),
        )
        for name, weights in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                noise = 0.3 * torch.randn(weights.shape, generator=generator, dtype=torch.float64)
                weights.data.add_(noise.to(weights))
        model.save_pretrained(folder)
    return folder


def merged(recipient: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The whole model that PEFT makes of a recipient and an adapter."""
    with quiet():
        return prepare(
            PeftModel.from_pretrained(copy.deepcopy(recipient), folder).merge_and_unload()
        )


def adapter_pair(recipient: Path, adapter: Path, **options: Any) -> ModelPair:
    """The recipient with the adapter's donor."""
    return load_pair(recipient=str(recipient), donors={"sft": str(adapter)}, **options)


def merged_pair(pair: ModelPair, adapter: Path) -> ModelPair:
    """The same pair with PEFT's merged model for a donor."""
    return ModelPair(
        pair.name,
        pair.recipient,
        {"sft": merged(pair.recipient, adapter)},
        pair.tokenizer,
        pair.family,
    )


Made = tuple[ModelPair, ModelPair, Path, Path]
"""A pair with a LoRA donor, the same with the merged one, and the folders of recipient and adapter.
"""


def maker(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Pairs by family, each made once; every test leaves them as they are."""
    known: dict[str, Made] = {}

    def make(family: str) -> Made:
        if family not in known:
            root = tmp_path_factory.mktemp(family)
            recipient = write_recipient(family, root / "recipient")
            first = load_pair(recipient=str(recipient), donors={"sft": str(recipient)}).recipient
            adapter = write_adapter(first, root / "adapter", **ADAPTERS[family])
            pair = adapter_pair(recipient, adapter, dtype="float64")
            known[family] = pair, merged_pair(pair, adapter), recipient, adapter
        return known[family]

    return make


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change an adapter's configuration."""
    file = folder / "adapter_config.json"
    data = json.loads(file.read_text("utf-8"))
    change(data)
    file.write_text(json.dumps(data), "utf-8")


def respoil(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change an adapter's tensors, named as in the base model."""
    file, prefix = folder / "adapter_model.safetensors", "base_model.model."
    data = {name.removeprefix(prefix): tensor for name, tensor in load_file(file).items()}
    change(data)
    save_file({prefix + name: tensor.contiguous() for name, tensor in data.items()}, file)
