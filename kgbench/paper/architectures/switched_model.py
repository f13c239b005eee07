"""A small decoder whose architectural features are switches, for the factorial study alone.

One code base serves all cells, so that two cells differ in their switches and in nothing else: no
projection has a bias, weights begin normal with standard deviation .02, attention has as many keys
and values as queries. The class is not registered with transformers: pairs are made in memory.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from kgbench.models.family_map import Family, read_family

_ROTARY_BASE = 10_000.0
_NORM_EPSILON = 1e-5


class SwitchedConfig(PreTrainedConfig):
    """Sizes and switches of a `SwitchedModel`."""

    model_type = "kgbench_switched"

    vocab_size: int = 300
    hidden_size: int = 32
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 128
    max_position_embeddings: int = 128
    parallel: bool = False
    rotary: bool = True
    gated: bool = True
    initializer_range: float = 0.02


def _norm(config: SwitchedConfig) -> nn.Module:
    """RMS-norm in gated models, LayerNorm in the others."""
    kind = nn.RMSNorm if config.gated else nn.LayerNorm
    return kind(config.hidden_size, eps=_NORM_EPSILON)


def _rotated(
    x: Float[Tensor, "row head token width"], positions: Int[Tensor, "row token"]
) -> Float[Tensor, "row head token width"]:
    """Rotary positions over the whole head (arXiv 2104.09864), halves as in Llama."""
    half = x.shape[-1] // 2
    rates = _ROTARY_BASE ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = positions[:, None, :, None].float() * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class _Attention(nn.Module):
    def __init__(self, config: SwitchedConfig, layer: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads, self.layer, self.rotary = config.num_attention_heads, layer, config.rotary
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(
        self,
        hidden_states: Float[Tensor, "row token width"],
        attention_mask: Float[Tensor, "#row 1 token key"],
        positions: Int[Tensor, "row token"],
        past: Cache | None,
    ) -> Float[Tensor, "row token width"]:
        rows, tokens, width = hidden_states.shape
        by_head = (rows, tokens, self.heads, width // self.heads)
        q, k, v = (
            project(hidden_states).view(by_head).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rotary:
            q, k = _rotated(q, positions), _rotated(k, positions)
        if past is not None:
            k, v = past.update(k, v, self.layer)
        scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5 + attention_mask
        mixed = scores.softmax(-1) @ v
        output: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(rows, tokens, width))
        return output


class _FFN(nn.Module):
    def __init__(self, config: SwitchedConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.up_proj = nn.Linear(width, inner, bias=False)
        if config.gated:
            self.gate_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.gated = config.gated

    def forward(self, x: Float[Tensor, "*row width"]) -> Float[Tensor, "*row width"]:
        up = self.up_proj(x)
        output: Tensor = self.down_proj(
            F.silu(self.gate_proj(x)) * up if self.gated else F.gelu(up)
        )
        return output


class _Layer(nn.Module):
    def __init__(self, config: SwitchedConfig, layer: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = _norm(config), _norm(config)
        self.attention, self.ffn = _Attention(config, layer), _FFN(config)
        self.parallel = config.parallel

    def forward(
        self,
        hidden_states: Float[Tensor, "row token width"],
        attention_mask: Float[Tensor, "#row 1 token key"],
        positions: Int[Tensor, "row token"],
        past: Cache | None,
    ) -> Float[Tensor, "row token width"]:
        attended = self.attention(
            self.ln_1(hidden_states),
            attention_mask=attention_mask,
            positions=positions,
            past=past,
        )
        middle: Tensor = hidden_states + attended
        added: Tensor = self.ffn(self.ln_2(hidden_states if self.parallel else middle))
        return middle + added


class SwitchedModel(PreTrainedModel):
    """A causal language model with three switches.

    Blocks are parallel or sequential, positions rotary or learned; RMS-norm comes with a gated FFN,
    LayerNorm with GELU.
    """

    config_class = SwitchedConfig
    base_model_prefix = ""
    _tied_weights_keys = {"head.weight": "embeddings.weight"}  # noqa: RUF012 (as in the library)

    def __init__(self, config: SwitchedConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        if not config.rotary:
            self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        layers = (_Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.layers = nn.ModuleList(layers)
        self.ln_f = _norm(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """The token embeddings."""
        return self.embeddings

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        return self.head

    def forward(
        self,
        input_ids: Int[Tensor, "row token"],
        attention_mask: Float[Tensor, "#row 1 token key"] | None = None,
        position_ids: Int[Tensor, "#row token"] | None = None,
        labels: Int[Tensor, "row token"] | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool = False,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, and the mean loss of the next tokens where labels are given.

        Args:
            input_ids: Tokens.
            attention_mask: Added to attention scores; by default tokens see all earlier ones.
            position_ids: By default from the length of what is cached.
            labels: Tokens to be predicted, at their own places; -100 is left out.
            past_key_values: Keys and values of earlier tokens, to which those of these are added.
            use_cache: Whether that is used.
        """
        past = past_key_values if use_cache else None
        before = 0 if past is None else past.get_seq_length()
        rows, tokens = input_ids.shape
        x = self.embeddings(input_ids)
        if position_ids is None:
            position_ids = torch.arange(before, before + tokens, device=input_ids.device)[None]
        position_ids = position_ids.expand(rows, -1)
        if not self.config.rotary:
            x = x + self.positions(position_ids)
        if attention_mask is None:
            attention_mask = _causal(before, tokens, x)
        for layer in self.layers:
            x = layer(x, attention_mask, position_ids, past)
        logits = self.head(self.ln_f(x))
        return CausalLMOutputWithPast(
            loss=None if labels is None else _loss(logits, labels),
            logits=logits,
            past_key_values=past,
        )


def _causal(before: int, tokens: int, x: Tensor) -> Float[Tensor, "1 1 token key"]:
    """What is added to attention scores so that no token sees a later one."""
    least = torch.finfo(x.dtype).min
    hidden = torch.full((tokens, before + tokens), least, dtype=x.dtype, device=x.device)
    return hidden.triu(before + 1)[None, None]


def _loss(
    logits: Float[Tensor, "row token vocabulary"], labels: Int[Tensor, "row token"]
) -> Float[Tensor, ""]:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def new_model(config: SwitchedConfig, seed: int) -> SwitchedModel:
    """A model with random weights, in fp32."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return SwitchedModel(config)


@cache
def switched_family() -> Family:
    """Where each component is in a `SwitchedModel`; a pair's map lacks what its cell lacks."""
    text = (Path(__file__).parent / "family.json").read_text(encoding="utf-8")
    return read_family(text, "kgbench/paper/architectures/family.json")
