"""What tells two models apart: SHA-256 over their weights and over what of a configuration changes answers."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import nn
from transformers import PreTrainedModel

from kgbench.models.family import Family, written
from kgbench.models.streaming import stored

__all__ = ["model_hash", "weights_hash"]

_NO_MATTER = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "architectures",
    "tie_word_embeddings",
    "use_cache",
)
"""Parts of a configuration that change no answer."""


def model_hash(model: PreTrainedModel, family: Family) -> str:
    """SHA-256 over weights and configuration: rotary base, norms' epsilon and the like change answers too, as does a map from a folder."""
    config = {
        key: value
        for key, value in model.config.to_dict().items()
        if key not in _NO_MATTER and "attn_implementation" not in key
    }
    text = json.dumps(config, sort_keys=True, default=str)
    if not family.shipped:
        text += (
            f"\n{hashlib.sha256(json.dumps(written(family), sort_keys=True).encode()).hexdigest()}"
        )
    return hashlib.sha256(f"{weights_hash(model)}\n{text}".encode()).hexdigest()


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of all weights, in the order of their names; those of a streamed donor are read."""
    digest = hashlib.sha256()
    for name, tensor in stored(model):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
