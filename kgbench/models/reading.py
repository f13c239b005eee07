"""Checkpoints read into models that are ready for a pair."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from kgbench.errors import ModelError, UnknownNameError
from kgbench.models import types
from kgbench.models.checkpoints import Checkpoint, read_model_config, refuse_unused, stored_tensors
from kgbench.models.delta import apply_delta
from kgbench.models.lora import low_rank_donor, read_adapter
from kgbench.models.sharing import refuse_non_finite, shared_copy
from kgbench.models.streaming import empty_model

__all__ = [
    "DTYPES",
    "WEIGHT_TYPES",
    "UnconfirmedBaseWarning",
    "adapted_donor",
    "attention_backend",
    "make_ready",
    "prepare",
    "read_empty",
    "read_model",
]

WEIGHT_TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in types.NAMES}
"""Types of weights by the name that records have."""

DTYPES = WEIGHT_TYPES | {short: WEIGHT_TYPES[name] for short, name in types.SHORT_NAMES.items()}
"""The same, and by their short names."""


class UnconfirmedBaseWarning(UserWarning):
    """An adapter names another base than the recipient."""


_ATTENTION = ("auto", "sdpa", "eager")


def attention_backend(recipient: Checkpoint, attention: str) -> str:
    """The attention backend of all models of a pair.

    What a checkpoint asks for is not heeded, since it may be code from outside.
    """
    if attention not in _ATTENTION:
        raise UnknownNameError("attention backend", attention, _ATTENTION)
    if attention != "auto":
        return attention
    try:
        model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(read_model_config(recipient.directory))]
    except Exception as error:  # libraries raise what they like on a broken configuration
        raise ModelError(
            f"{recipient.origin} does not load: "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error
    return "sdpa" if model._supports_sdpa else "eager"


def read_model(
    place: Checkpoint, dtype: torch.dtype | str, device: str, attention: str
) -> PreTrainedModel:
    """A checkpoint's model, ready for a pair.

    Raises:
        ModelError: It does not load, or lacks weights.
    """
    with _quietly(place):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place.directory,
            config=read_model_config(place.directory),
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    model, info = loaded
    for name, stored, wanted in sorted(info["mismatched_keys"]):
        raise ModelError(
            f"{place.origin} does not load: {len(info['mismatched_keys'])} of its weights have "
            "other shapes than its config.json says, "
            f"such as {name!r}, {list(stored)} in its files and {list(wanted)} by the configuration"
        )
    refuse_unused(place, info["unexpected_keys"], stored_tensors(place.directory, place.origin))
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{place.origin} does not load: it lacks {len(missing)} of the model's weights, such "
            f"as {missing[0]}"
        )
    ready = make_ready(nn.Module.to(model, device))
    if place.delta is not None:
        apply_delta(ready, place.delta, place.origin)
    for name, tensor in ready.state_dict().items():
        refuse_non_finite(name, tensor, place.origin)
    return ready


def read_empty(place: Checkpoint, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """A checkpoint's model without its weights; not ready for a pair before it has them.

    Raises:
        ModelError: The library makes no model of its configuration.
    """
    with _quietly(place):
        return empty_model(place, dtype, attention)


@contextmanager
def _quietly(place: Checkpoint) -> Iterator[None]:
    """The library without its progress bars and reports, and its errors as ours."""
    bars, verbosity = (
        transformers_logging.is_progress_bar_enabled(),
        transformers_logging.get_verbosity(),
    )
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # missing weights are an error of ours
    try:
        yield
    except Exception as error:  # libraries raise what they like on a broken configuration or file
        said = (str(error).splitlines() or [type(error).__name__])[0].partition(
            " For details look at"
        )[0]  # which is not shown
        raise ModelError(f"{place.origin} does not load: {said}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def adapted_donor(
    recipient: PreTrainedModel, folder: Path, origin: str, base: Checkpoint
) -> PreTrainedModel:
    """The donor that an adapter makes of the recipient.

    The base that it names is never looked up.
    """
    adapter = read_adapter(folder, origin)
    named = adapter.config.base_model_name_or_path
    alike = not named or _last_name(named) == _last_name(base.origin)
    donor = low_rank_donor(
        recipient,
        adapter,
        origin,
        "" if alike else f"; the adapter says that it was made for {named!r}",
    )
    if not alike:
        warnings.warn(
            f"{origin} is an adapter of {named!r}, which is not by its name the recipient "
            f"{base.origin}: it fits in shape, and whether it "
            "was made for these weights is not known",
            UnconfirmedBaseWarning,
            stacklevel=2,
        )
    return donor


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """A model ready for a pair (see `make_ready`) that shares the tensors of the given one."""
    return make_ready(shared_copy(model))


def make_ready(model: PreTrainedModel) -> PreTrainedModel:
    """Make a model ready for a pair, in place: eval mode, no gradients, a separate head.

    Tied head and embeddings are untied, so that grafting the embeddings never changes the head.
    """
    head, embeddings = cast(nn.Linear, model.get_output_embeddings()), model.get_input_embeddings()
    if head.weight is embeddings.weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.eval()
    model.requires_grad_(requires_grad=False)
    return model


def _last_name(origin: str) -> str:
    """The last part of a Hub id, of a folder, or of an origin, without its revision."""
    return origin.partition("@")[0].rstrip("/").rpartition("/")[2].removeprefix("local:")
