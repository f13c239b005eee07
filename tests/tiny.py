"""Small random pairs of every family, in the variants that models of the family come in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from zlib import crc32

import pytest
import torch
from nightly import nightly
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from kgbench.models.family_map import load_family
from kgbench.models.pair import ModelPair, prepare
from kgbench.sites import RECIPIENT
from kgbench.testing import pico_tokenizer

LAYERS, WINDOW = 4, 5

_COMMON: Mapping[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT2 = {
    "vocab_size": 300,
    "n_embd": 32,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TURNS = ["sliding_attention", "full_attention"] * (LAYERS // 2)
_WINDOWED = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": _TURNS}
_CAPPED = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
_NARROW = {
    "sliding_window": WINDOW,
    "layer_types": _TURNS,
    "head_dim": 12,
    "query_pre_attn_scalar": 12,
}


def _rotary(share: float) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 100.0,
            "partial_rotary_factor": share,
        }
    }


_BASES = {
    kind: {"rope_type": "default", "rope_theta": theta}
    for kind, theta in (("sliding_attention", 10.0), ("full_attention", 10000.0))
}

TINY: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "gemma": {"tied": {"num_key_value_heads": 1, "head_dim": 12}},
    "gemma2": {
        "capped, windows": {**_NARROW, **_CAPPED},
        "untied, biases": {
            **_NARROW,
            "attn_logit_softcapping": None,
            "attention_bias": True,
            "tied": False,
        },
    },
    "gemma3_text": {
        "two bases, windows": {
            **_NARROW,
            "final_logit_softcapping": 3.0,
            "rope_parameters": _BASES,
        },
        "untied, eager": {
            **_NARROW,
            "rope_parameters": _BASES,
            "attention": "eager",
            "attention_bias": True,
            "tied": False,
        },
    },
    "gpt2": {
        "tied": {"n_inner": 48},
        "untied, scaled by layer": {"scale_attn_by_inverse_layer_idx": True, "tied": False},
    },
    "gpt_neox": {
        "parallel, tied": {**_rotary(0.25), "num_key_value_heads": None},
        "sequential, no biases": {
            **_rotary(0.5),
            "use_parallel_residual": False,
            "attention_bias": False,
            "tied": False,
        },
    },
    "granite": {
        "multipliers": {
            "embedding_multiplier": 3.0,
            "logits_scaling": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.1,
        },
        "untied, biases": {
            "attention_bias": True,
            "mlp_bias": True,
            "attention": "eager",
            "tied": False,
        },
    },
    "llama": {
        "grouped": {},
        "untied, biases": {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "tied": False},
    },
    "mistral": {
        "windows": {"sliding_window": WINDOW},
        "untied, eager": {"sliding_window": WINDOW, "attention": "eager", "tied": False},
        "no window": {"sliding_window": None, "head_dim": 12},
    },
    "olmo2": {
        "tied": {},
        "untied, biases": {
            "attention_bias": True,
            "num_key_value_heads": 4,
            "attention": "eager",
            "tied": False,
        },
    },
    "olmo": {
        "clipped": {"clip_qkv": 1.0},
        "untied, biases": {"attention_bias": True, "attention": "eager", "tied": False},
    },
    "olmo3": {"windows": {"sliding_window": WINDOW, "layer_types": _TURNS}},
    "opt": {
        "tied": {"ffn_dim": 48},
        "projections, norms behind": {
            "ffn_dim": 48,
            "do_layer_norm_before": False,
            "word_embed_proj_dim": 16,
        },
        "untied, no biases": {
            "ffn_dim": 48,
            "enable_bias": False,
            "attention": "eager",
            "tied": False,
        },
    },
    "phi": {
        "parallel": _rotary(0.5),
        "normed heads, untied": {**_rotary(0.25), "qk_layernorm": True, "tied": False},
    },
    "phi3": {
        "grouped, windows": {"sliding_window": WINDOW, **_rotary(0.5)},
        "untied": {
            "num_key_value_heads": 1,
            "sliding_window": None,
            "attention": "eager",
            "tied": False,
        },
    },
    "qwen2": {
        "windows": _WINDOWED,
        "untied, eager": {**_WINDOWED, "attention": "eager", "tied": False},
        "no window": {},
    },
    "qwen3": {
        "windows": {**_WINDOWED, "head_dim": 12},
        "untied, biases": {"attention_bias": True, "head_dim": 8, "tied": False},
    },
    "smollm3": {
        "no positions in half of the layers, windows there": {
            "no_rope_layers": [1, 0] * (LAYERS // 2),
            "use_sliding_window": True,
            "sliding_window": WINDOW,
        },
        "untied, biases": {
            "attention_bias": True,
            "mlp_bias": True,
            "attention": "eager",
            "tied": False,
        },
    },
    "stablelm": {
        "partly rotated": _rotary(0.5),
        "parallel, normed heads": {
            **_rotary(0.25),
            "use_parallel_residual": True,
            "qk_layernorm": True,
            "use_qkv_bias": True,
        },
        "normed heads, untied": {
            **_rotary(0.5),
            "qk_layernorm": True,
            "attention": "eager",
            "tied": False,
        },
    },
    "starcoder2": {
        "windows": {"sliding_window": WINDOW},
        "untied, no biases": {"use_bias": False, "attention": "eager", "tied": False},
    },
}
"""For each family its variants, and what each says beside `_COMMON`: fields of the configuration,
`attention` and `tied`.
"""

ALL_VARIANTS = [(family, variant) for family, variants in TINY.items() for variant in variants]
FIRST = ("gemma", "llama", "gpt2", "gpt_neox")
"""Families of the shipped pairs."""

tiny = pytest.mark.parametrize(("family", "variant"), ALL_VARIANTS)
"""A law on every variant of every family."""

each = pytest.mark.parametrize(
    ("family", "variant"),
    nightly(ALL_VARIANTS, [(family, next(iter(variants))) for family, variants in TINY.items()]),
)
"""A law on one variant of every family, and nightly on every variant."""

sampled = pytest.mark.parametrize(
    ("family", "variant"),
    nightly(
        ALL_VARIANTS, {(family, next(iter(TINY[family]))) for family in FIRST if family in TINY}
    ),
)
"""A law on the families of the shipped pairs, and nightly on every variant of every other."""


def tiny_config(family: str, variant: str, **changes: Any) -> PreTrainedConfig:
    """Configuration of a variant."""
    said = {k: v for k, v in TINY[family][variant].items() if k not in ("attention", "tied")}
    common = _GPT2 if family == "gpt2" else _COMMON
    return AutoConfig.for_model(
        family,
        **{
            **common,
            "tie_word_embeddings": TINY[family][variant].get("tied", True),
            **said,
            **changes,
        },
    )


def random_model(
    config: PreTrainedConfig, attention: str | None, seed: int, dtype: torch.dtype = torch.float64
) -> Any:
    """A model whose weights, norms and biases are all random."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=dtype)
            centred = (
                "norm" in name
                and name.endswith("weight")
                and not config.model_type.startswith("gemma")
            )
            parameter.copy_(
                0.25 * noise
                + (1.0 if centred or ("ln_" in name and name.endswith("weight")) else 0.0)
            )
    return model


@cache
def tiny_pair(family: str, variant: str | None = None) -> ModelPair:
    """A recipient and two donors; every test leaves them as they are. By default of the family's
    first variant.
    """
    variant = variant or next(iter(TINY[family]))
    config, attention = tiny_config(family, variant), TINY[family][variant].get("attention")
    start = crc32(f"{family} {variant}".encode()) % 1000
    made = {
        name: prepare(random_model(config, attention, start + i))
        for i, name in enumerate((RECIPIENT, "sft", "task"))
    }
    return ModelPair(
        f"tiny-{family}", made.pop(RECIPIENT), made, pico_tokenizer(bos=False), load_family(family)
    )
