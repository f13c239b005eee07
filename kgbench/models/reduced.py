"""Small random models of an architecture: what can be learned about one without its weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from kgbench.errors import ModelError

__all__ = ["MOST_LAYERS", "VOCABULARY", "WINDOW", "random_model", "reduced_config"]

VOCABULARY, WINDOW, MOST_LAYERS = 300, 5, 8

_SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 32),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"), 48),
    **dict.fromkeys(("head_dim", "query_pre_attn_scalar"), 8),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 2),
    "rotary_dim": 4,
    "vocab_size": VOCABULARY,
    "sliding_window": WINDOW,
}
"""What a small model has in place of what a configuration says, if it says anything."""

_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def reduced_config(given: dict[str, Any]) -> PreTrainedConfig:
    """The configuration of a small model of the same architecture.

    It has the first layers, enough for one of each kind; as many heads of keys as of queries only where the model has; and plain rotary
    embeddings of the same share of a head.

    Args:
        given: A checkpoint's `config.json`.

    Raises:
        ModelError: The library does not know the architecture, or takes no such small one.
    """
    try:
        whole = AutoConfig.for_model(**given)
        said = whole.to_dict()
        small: dict[str, Any] = {key: size for key, size in _SIZES.items() if said.get(key) is not None}
        if said.get("num_key_value_heads") is not None:
            small["num_key_value_heads"] = 4 if said["num_key_value_heads"] == whole.num_attention_heads else 2
        if "word_embed_proj_dim" in said:
            small["word_embed_proj_dim"] = 32 if said["word_embed_proj_dim"] == whole.hidden_size else 16
        if isinstance(rope := said.get("rope_parameters"), dict):
            small["rope_parameters"] = _plain_rotary(rope)
        kinds = said.get("layer_types") or []
        n = min(whole.num_hidden_layers, MOST_LAYERS, max([3, *(kinds.index(kind) + 1 for kind in kinds)]))
        small |= {key: n for key in _DEPTHS if key in said}
        per_layer = {key: value[:n] for key, value in said.items() if isinstance(value, list) and len(value) == whole.num_hidden_layers}
        kept = {k: v for k, v in said.items() if k not in ("dtype", "transformers_version", "architectures", "rope_scaling")}
        return AutoConfig.for_model(**{**kept, **per_layer, **small})
    except Exception as error:  # libraries raise what they like on a configuration that they do not know
        raise ModelError(f"no small model of type {given.get('model_type')!r} can be made: {_line(error)}") from error


def _plain_rotary(rope: dict[str, Any]) -> dict[str, Any]:
    if rope and all(isinstance(each, dict) for each in rope.values()):
        return {kind: _plain_rotary(each) for kind, each in rope.items()}
    share = {"partial_rotary_factor": rope["partial_rotary_factor"]} if rope.get("partial_rotary_factor") else {}
    return {"rope_type": "default", "rope_theta": rope.get("rope_theta") or 10000.0, **share}


def random_model(config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """A model in float64 whose weights, norms and biases are all random.

    Raises:
        ModelError: The library makes no causal language model of this configuration.
    """
    config._attn_implementation = None  # see `read_config`
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config).double().eval()
    except Exception as error:  # as above
        raise ModelError(f"no small model of type {config.model_type!r} can be made: {_line(error)}") from error
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
