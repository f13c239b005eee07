"""Small random models of an architecture: what can be learned about one without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from kgbench.errors import ModelError

__all__ = [
    "MOST_LAYERS",
    "PROBES",
    "VOCABULARY",
    "WINDOW",
    "Probe",
    "random_model",
    "reduced_config",
]

VOCABULARY, WINDOW, MOST_LAYERS = 300, 5, 8


@dataclass(frozen=True)
class Probe:
    """Sizes of a small model, no two of which are alike, so that none can be taken for another."""

    heads: int
    groups: int
    """Heads of keys and values, where there are fewer than of queries."""
    inner: int
    """Width of the MLP."""
    head: int
    """Width of a head where the configuration says one; elsewhere it is 8."""

    @property
    def hidden(self) -> int:
        """Width of the stream."""
        return 8 * self.heads

    def sizes(self) -> dict[str, int]:
        """What a small model has in place of what a configuration says, if it says anything."""
        return {
            **dict.fromkeys(("hidden_size", "n_embd", "d_model"), self.hidden),
            **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), self.heads),
            **dict.fromkeys(
                ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"), self.inner
            ),
            **dict.fromkeys(("head_dim", "query_pre_attn_scalar"), self.head),
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 2),
            "rotary_dim": 4,
            "vocab_size": VOCABULARY,
            "sliding_window": WINDOW,
        }


PROBES = (
    Probe(heads=8, groups=2, inner=112, head=12),
    Probe(heads=12, groups=3, inner=80, head=10),
)
"""Two small models of one architecture: what a map says by a number must hold in both."""

_GROUPS = ("num_key_value_heads", "num_kv_heads")
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def reduced_config(given: dict[str, Any], probe: Probe = PROBES[0]) -> PreTrainedConfig:
    """The configuration of a small model of the same architecture.

    It has the first layers, enough for one of each kind; as many heads of keys as of queries only where the model has; and plain rotary
    embeddings of the same share of a head.

    Args:
        given: A checkpoint's `config.json`.
        probe: The sizes.

    Raises:
        ModelError: The library does not know the architecture, or takes no such small one.
    """
    try:
        whole = AutoConfig.for_model(**given)
        said = whole.to_dict()
        small: dict[str, Any] = {
            key: size for key, size in probe.sizes().items() if said.get(key) is not None
        }
        for key in (key for key in _GROUPS if said.get(key) is not None):
            small[key] = probe.heads if said[key] == whole.num_attention_heads else probe.groups
        if "word_embed_proj_dim" in said:
            small["word_embed_proj_dim"] = (
                probe.hidden
                if said["word_embed_proj_dim"] == whole.hidden_size
                else probe.hidden // 2
            )
        if isinstance(rope := said.get("rope_parameters"), dict):
            small["rope_parameters"] = _plain_rotary(rope)
        kinds = said.get("layer_types") or []
        n = min(
            whole.num_hidden_layers,
            MOST_LAYERS,
            max([3, *(kinds.index(kind) + 1 for kind in kinds)]),
        )
        small |= {key: n for key in _DEPTHS if key in said}
        per_layer = {
            key: value[:n]
            for key, value in said.items()
            if isinstance(value, list) and len(value) == whole.num_hidden_layers
        }
        kept = {
            k: v
            for k, v in said.items()
            if k not in ("dtype", "transformers_version", "architectures", "rope_scaling")
        }
        return AutoConfig.for_model(**{**kept, **per_layer, **small})
    except (
        Exception
    ) as error:  # libraries raise what they like on a configuration that they do not know
        raise ModelError(
            f"no small model of type {given.get('model_type')!r} can be made: {_line(error)}"
        ) from error


def _plain_rotary(rope: dict[str, Any]) -> dict[str, Any]:
    if rope and all(isinstance(each, dict) for each in rope.values()):
        return {kind: _plain_rotary(each) for kind, each in rope.items()}
    share = (
        {"partial_rotary_factor": rope["partial_rotary_factor"]}
        if rope.get("partial_rotary_factor")
        else {}
    )
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
        raise ModelError(
            f"no small model of type {config.model_type!r} can be made: {_line(error)}"
        ) from error
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.25 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            )
    return model


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
