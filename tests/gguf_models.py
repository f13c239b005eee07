"""A shipped tiny model as a GGUF file, written as llama.cpp's converters write it."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from transformers import PreTrainedModel

from kgbench.models import catalog

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_llama(model: PreTrainedModel, file: Path) -> None:
    """Write a model of Llama type with the tokenizer of tiny-llama, in 32 bits.

    The rows of queries and keys are in GGUF's order: both numbers of a rotary pair side by side.
    """
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    folder = catalog.zoo_path(catalog.entry("tiny-llama").recipient)
    assert folder is not None
    tokens = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    places = {place: token for token, place in tokens["model"]["vocab"].items()}
    places |= {each["id"]: each["content"] for each in tokens["added_tokens"]}
    special = {each["id"] for each in tokens["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([places[i] for i in range(config.vocab_size)])
    kinds = (gguf.TokenType.CONTROL, gguf.TokenType.NORMAL)
    writer.add_token_types([kinds[i not in special] for i in range(config.vocab_size)])
    merges = tokens["model"]["merges"]
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied
        values = tensor.float().numpy()
        parts = name.removeprefix("model.").split(".")
        if parts[0] == "layers":
            inner = ".".join(parts[2:-1])
            heads = {"self_attn.q_proj": "num_attention_heads"}
            heads |= {"self_attn.k_proj": "num_key_value_heads"}
            if inner in heads:
                values = _in_pairs(values, getattr(config, heads[inner]))
            name = f"blk.{parts[1]}.{NAMES[inner]}.weight"
        else:
            name = {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[0]] + ".weight"
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _in_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head: the first and the second half in turns."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, rows.shape[1])
    return halves.swapaxes(1, 2).reshape(rows.shape)
