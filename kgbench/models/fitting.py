"""What the checkpoints of a pair must have in common: shapes, what no weights hold of the forward pass, and one tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from kgbench.errors import ModelError
from kgbench.models.checkpoints import Checkpoint
from kgbench.sites import RECIPIENT

__all__ = ["check_config", "check_forward", "check_weights", "one_tokenizer", "read_tokenizer"]

_SHAPE_KEYS = (
    *(
        "model_type",
        "num_hidden_layers",
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    ),
    *("vocab_size", "n_layer", "n_embd", "n_head", "n_inner"),
)
_FORWARD_KEYS = (
    *(
        "sliding_window",
        "layer_types",
        "rope_parameters",
        "no_rope_layers",
        "attn_logit_softcapping",
        "final_logit_softcapping",
    ),
    *(
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
        "logits_scaling",
        "query_pre_attn_scalar",
        "clip_qkv",
    ),
    *(
        "hidden_act",
        "hidden_activation",
        "activation_function",
        "use_parallel_residual",
        "do_layer_norm_before",
    ),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
)
"""Parts of a configuration that no weight-bearing module holds: under a graft the recipient's count, at whatever tokens."""

_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary positions whose angles follow from `max_position_embeddings`; elsewhere that number is a promise only."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def check_config(recipient: Checkpoint, other: Checkpoint, part: str) -> None:
    """Whether two checkpoints are of one architecture, by what their configurations say.

    Raises:
        ModelError: They are not.
    """
    ours, theirs = recipient.config, other.config
    for key in _SHAPE_KEYS:
        if ours.get(key) != theirs.get(key):
            raise ModelError(
                f"recipient and donor {part!r} differ in {key}: {ours.get(key)} against {theirs.get(key)}; "
                "a graft needs two checkpoints of one architecture"
            )


def check_forward(recipient: PreTrainedModel, donor: PreTrainedModel, part: str) -> None:
    """Whether two models compute alike beside their weights, as loaded, since a checkpoint need not write down what is the default.

    Raises:
        ModelError: They do not.
    """
    by_length = any(
        kind in str(getattr(recipient.config, "rope_parameters", None)) for kind in _BY_LENGTH
    )
    for key in (*_FORWARD_KEYS, *(["max_position_embeddings"] if by_length else [])):
        ours, theirs = (_plainly(getattr(model.config, key, None)) for model in (recipient, donor))
        if ours != theirs:
            raise ModelError(
                f"recipient and donor {part!r} differ in {key}: {ours} against {theirs}; a graft is computed by the recipient's "
                "forward pass, which would be another than the donor's"
            )


def _plainly(value: Any) -> Any:
    """A setting without what is empty, and without the former name of `rope_type`."""
    return (
        {k: _plainly(v) for k, v in value.items() if v is not None and k != "type"}
        if isinstance(value, dict)
        else value
    )


def check_weights(recipient: nn.Module, donor: nn.Module, part: str) -> None:
    """Whether two models have weights of the same names and shapes.

    Raises:
        ModelError: They do not.
    """
    ours, theirs = (
        {n: tuple(p.shape) for n, p in m.state_dict().items()} for m in (recipient, donor)
    )
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key):
            raise ModelError(
                f"recipient and donor {part!r} differ in the weights {key}: shapes {ours.get(key)} and {theirs.get(key)}"
            )


def one_tokenizer(places: Mapping[str, Checkpoint]) -> PreTrainedTokenizerBase:
    """The recipient's tokenizer, which donors that bring one must share.

    Raises:
        ModelError: One does not, or the recipient has none.
    """
    first = read_tokenizer(places[RECIPIENT])
    for part, place in places.items():
        own = place.adapter or place.directory
        if part == RECIPIENT or not (own / "tokenizer.json").exists():
            continue
        other = read_tokenizer(replace(place, directory=own))
        ours, theirs = (
            tokenizer(_sample(first), verbose=False)["input_ids"] for tokenizer in (first, other)
        )
        if other.get_vocab() != first.get_vocab() or ours != theirs:
            raise ModelError(
                f"recipient and donor {part!r} have different tokenizers; a graft needs one tokenizer for both"
            )
    return first


def _sample(tokenizer: PreTrainedTokenizerBase) -> str:
    """A text that two tokenizers of one vocabulary do not read alike unless they split words alike."""
    words = sorted(tokenizer.get_vocab())
    return " ".join(["A tokenizer's test: Zoë O'Brien, 1984!", *words[:: 1 + len(words) // 300]])


def read_tokenizer(place: Checkpoint) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint.

    Raises:
        ModelError: There is none, or it does not load.
    """
    # Where there is none, the library makes an empty one without a word.
    if not any((place.directory / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"{place.origin} holds no tokenizer: expected one of {', '.join(_TOKENIZER_FILES)} beside config.json"
        )
    try:
        return AutoTokenizer.from_pretrained(
            place.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # libraries raise what they like on a broken file
        raise ModelError(
            f"{place.origin} does not load: {(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error
