"""Pairs from checkpoints: found, checked against each other, and read into models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from kgbench.errors import ModelError, UnknownNameError, first_line
from kgbench.models import DTYPE_NAMES, SHORT_DTYPES, catalog, check_dtype
from kgbench.models.checkpoints import (
    Checkpoint,
    Stamp,
    locate,
    read_model_config,
    refuse_unused,
    stored_tensors,
)
from kgbench.models.family_map import Family, family_in
from kgbench.models.lora import low_rank_donor, read_adapter
from kgbench.models.pair import ModelPair, make_ready
from kgbench.models.placement import DeviceMap, devices_of, free_memory, main_device, place
from kgbench.models.streaming import empty_model, stream
from kgbench.models.tensors import apply_delta, hold, refuse_non_finite, share_equal
from kgbench.sites import RECIPIENT

__all__ = [
    "DTYPES",
    "WEIGHT_TYPES",
    "UnconfirmedBaseWarning",
    "pair_sources",
    "quiet_library",
    "read_empty",
    "read_pair",
    "read_tokenizer",
]

WEIGHT_TYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_NAMES}
"""Types of weights by the name that records have."""

DTYPES = WEIGHT_TYPES | {short: WEIGHT_TYPES[name] for short, name in SHORT_DTYPES.items()}
"""The same, and by their short names."""


_SHAPE_KEYS = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "n_layer",
    "n_embd",
    "n_head",
    "n_inner",
)
_FORWARD_KEYS = (
    "sliding_window",
    "layer_types",
    "rope_parameters",
    "no_rope_layers",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "query_pre_attn_scalar",
    "clip_qkv",
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "use_parallel_residual",
    "do_layer_norm_before",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
)
"""Parts of a configuration that no weight-bearing module holds.

Under a graft the recipient's count, at whatever tokens.
"""

_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary positions whose angles follow from `max_position_embeddings`.

Elsewhere that number is a promise only.
"""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


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
        raise ModelError(f"{recipient.origin} does not load: {first_line(error)}") from error
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
    """The library without its reports, and its errors as ours."""
    try:
        with quiet_library():
            yield
    except Exception as error:  # the library raises anything on a broken configuration or file
        # The details that it refers to are not shown.
        reason = first_line(error).partition(" For details look at")[0]
        raise ModelError(f"{place.origin} does not load: {reason}") from error


@contextmanager
def quiet_library() -> Iterator[None]:
    """Silence transformers' progress bars, advice and reports."""
    bars = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
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
    note = "" if alike else f"; the adapter says that it was made for {named!r}"
    donor = low_rank_donor(recipient, adapter, origin, note)
    if not alike:
        warnings.warn(
            f"{origin} is an adapter of {named!r}, which is not by its name the recipient "
            f"{base.origin}: it fits in shape, and whether it "
            "was made for these weights is not known",
            UnconfirmedBaseWarning,
            stacklevel=2,
        )
    return donor


def _last_name(origin: str) -> str:
    """The last part of a Hub id, of a folder, or of an origin, without its revision."""
    return origin.partition("@")[0].rstrip("/").rpartition("/")[2].removeprefix("local:")


# ---------------------------------------------------------------------------------------- pairs


def read_pair(
    name: str | None = None,
    *,
    recipient: str | None = None,
    donors: Mapping[str, str] | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    **options: Any,
) -> ModelPair:
    """Load a pair by its name in the catalog, or from checkpoints.

    Args:
        name: A name in the catalog, or the directory of a plant; `recipient` and `donors` replace
            those of the catalog.
        recipient: Directory or Hub id of the recipient.
        donors: Directory (of a checkpoint, of a plant or of a LoRA adapter) or Hub id of each
            donor, by name.
        dtype: Weight type by name; by default float32 on a CPU alone and as stored elsewhere.
        device: A torch device.
        **options: `revision` (of Hub ids), `chat_template` (bool), `attention` ("sdpa" or "eager";
            by default "auto": sdpa for models that can be computed by it, eager for those that
            cannot, such as Gemma 2 with its soft caps), `share` (bool: parameters of a donor that
            equal the recipient's are held once, so that the models must not be written to; an
            adapter's donor always shares), `stream_donors` (bool: donors are read layer by layer as
            they are used; plants and adapters, which have little, are held), `device_map` (in the
            place of `device`: `auto`, `balanced`, `sequential`, or for paths of modules their
            devices).

    Raises:
        UnknownNameError: The catalog has no such name, or `dtype` or `attention` is unknown.
        ModelError: A checkpoint is missing or the checkpoints do not fit each other.
    """
    asked = _Options(**options)
    label, sources = pair_sources(name, recipient, donors)
    main = torch.device(device) if asked.device_map is None else main_device(asked.device_map)
    wanted = dtype or ("float32" if main.type == "cpu" else "auto")
    check_dtype(wanted)
    base = locate(sources[RECIPIENT], asked.revision)
    places = {RECIPIENT: base}
    for part, source in sources.items():
        if part != RECIPIENT:
            places[part] = locate(source, asked.revision, base)
    files: dict[Path, Stamp] = {}
    for checkpoint in places.values():
        files |= checkpoint.stamps()
    model_type = base.config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(
            f"{sources[RECIPIENT]!r} is no checkpoint: its config.json names no model_type"
        )
    family = family_in(base.directory, model_type, base.origin)
    for part, checkpoint in places.items():
        check_config(base, checkpoint, part)
    reader = _Reader(asked, family, attention_backend(base, asked.attention), device)
    tokenizer = one_tokenizer(places)
    origins = {part: checkpoint.origin for part, checkpoint in places.items()}
    del places[RECIPIENT]
    first = reader.recipient(base, DTYPES.get(wanted, wanted), places)
    others = {}
    for part, checkpoint in places.items():
        others[part] = reader.donor(first, base, checkpoint, part)
    return ModelPair(label, first, others, tokenizer, family, origins, asked.chat_template, files)


@dataclass(frozen=True)
class _Options:
    """The less common arguments of `read_pair` with their defaults."""

    revision: str | None = None
    chat_template: bool = False
    attention: str = "auto"
    share: bool = False
    stream_donors: bool = False
    device_map: DeviceMap | None = None

    def streams(self, checkpoint: Checkpoint) -> bool:
        """Whether a donor is left on disk.

        A plant or an adapter holds little in addition to what it shares.
        """
        return self.stream_donors and checkpoint.delta is None and checkpoint.adapter is None


class _Reader:
    """Loads the models of a pair, one after the other."""

    def __init__(self, asked: _Options, family: Family, attention: str, device: str) -> None:
        self.asked, self.family, self.attention = asked, family, attention
        self.device = device if asked.device_map is None else "cpu"
        self.devices: Mapping[str, torch.device] = {}

    def recipient(
        self, place: Checkpoint, dtype: torch.dtype | str, donors: Mapping[str, Checkpoint]
    ) -> PreTrainedModel:
        """The recipient, on the devices of the device map, if there is one."""
        device_map = self.asked.device_map
        free = None if device_map is None else free_memory()
        model = read_model(place, dtype, self.device, self.attention)
        if device_map is not None:
            models = 1
            for donor in donors.values():
                models += donor.adapter is None and not self.asked.streams(donor)
            self.devices = devices_of(model, self.family.layers, device_map, models, free)
        model = self._placed(model)
        hold(model)
        return model

    def donor(
        self, first: PreTrainedModel, base: Checkpoint, checkpoint: Checkpoint, part: str
    ) -> PreTrainedModel:
        """A donor that fits the recipient, of its type and on its devices."""
        if checkpoint.adapter is not None:
            return adapted_donor(first, checkpoint.adapter, checkpoint.origin, base)
        if streams := self.asked.streams(checkpoint):
            model = read_empty(checkpoint, first.dtype, self.attention)
        else:
            model = read_model(checkpoint, first.dtype, self.device, self.attention)
        check_forward(first, model, part)
        check_weights(first, model, part)
        if streams:
            stream(model, first, checkpoint, self.family.layers, self.asked.share)
            model = make_ready(model)
        model = self._placed(model)
        if self.asked.share and not streams:
            share_equal(first, model)
        if not streams:
            hold(model, first)
        return model

    def _placed(self, model: PreTrainedModel) -> PreTrainedModel:
        if self.devices:
            place(model, self.devices, self.family.layers)
        return model


def pair_sources(
    name: str | None, recipient: str | None, donors: Mapping[str, str] | None
) -> tuple[str, dict[str, str]]:
    """The label of a pair, and where its recipient and its donors are, as `read_pair` takes them.

    Raises:
        ModelError: No recipient or no donor is named.
    """
    known = catalog.entry(name) if name else None
    first = recipient or (known.recipient if known else None)
    if first is None:
        raise ModelError(
            "no model given: name a pair (--model NAME) or its checkpoints (--recipient PATH "
            "--donor sft=PATH)"
        )
    others = {**(known.donors if known and not recipient else {}), **(donors or {})}
    if RECIPIENT in others:
        raise ModelError(f"{RECIPIENT!r} is a reserved name and cannot name a donor")
    if not others and known:
        raise ModelError(
            f"{name} has no finetuned donor here; give one with --donor sft=PATH, or train one "
            "with "
            f"'kgbench train --model {name} --dataset {known.dataset} --recipe aggressive'"
        )
    if not others:
        raise ModelError("no donor given: add --donor sft=PATH, the finetuned checkpoint")
    as_catalogued = known is not None and first == known.recipient
    label = known.name if known and as_catalogued else first.rstrip("/").rpartition("/")[2]
    return label, {RECIPIENT: first, **others}


def check_config(recipient: Checkpoint, other: Checkpoint, part: str) -> None:
    """Check that the configurations of two checkpoints are of one architecture.

    Raises:
        ModelError: They are not.
    """
    ours, theirs = recipient.config, other.config
    for key in _SHAPE_KEYS:
        if ours.get(key) != theirs.get(key):
            raise ModelError(
                f"recipient and donor {part!r} differ in {key}: {ours.get(key)} against "
                f"{theirs.get(key)}; "
                "a graft needs two checkpoints of one architecture"
            )


def check_forward(recipient: PreTrainedModel, donor: PreTrainedModel, part: str) -> None:
    """Check that two models have the same forward pass apart from their weights.

    The models as loaded are compared, because a checkpoint need not contain default values.

    Raises:
        ModelError: They differ.
    """
    rotary = str(getattr(recipient.config, "rope_parameters", None))
    by_length = any(kind in rotary for kind in _BY_LENGTH)
    for key in (*_FORWARD_KEYS, *(["max_position_embeddings"] if by_length else [])):
        ours = _plainly(getattr(recipient.config, key, None))
        theirs = _plainly(getattr(donor.config, key, None))
        if ours != theirs:
            raise ModelError(
                f"recipient and donor {part!r} differ in {key}: {ours} against {theirs}; a graft "
                "is computed by the recipient's "
                "forward pass, which would be another than the donor's"
            )


def _plainly(value: Any) -> Any:
    """A setting without what is empty, and without the former name of `rope_type`."""
    if not isinstance(value, dict):
        return value
    return {k: _plainly(v) for k, v in value.items() if v is not None and k != "type"}


def check_weights(recipient: nn.Module, donor: nn.Module, part: str) -> None:
    """Check that two models have weights of the same names and shapes.

    Raises:
        ModelError: They do not.
    """
    ours, theirs = _shapes(recipient), _shapes(donor)
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key):
            raise ModelError(
                f"recipient and donor {part!r} differ in the weights {key}: shapes {ours.get(key)} "
                f"and {theirs.get(key)}"
            )


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def one_tokenizer(places: Mapping[str, Checkpoint]) -> PreTrainedTokenizerBase:
    """The recipient's tokenizer; donors that bring one must have the same.

    Raises:
        ModelError: A donor has another one, or the recipient has none.
    """
    first = read_tokenizer(places[RECIPIENT])
    text = _sample(first)
    for part, checkpoint in places.items():
        folder = checkpoint.adapter or checkpoint.directory
        if part == RECIPIENT or not (folder / "tokenizer.json").exists():
            continue
        other = read_tokenizer(replace(checkpoint, directory=folder))
        ours = first(text, verbose=False)["input_ids"]
        theirs = other(text, verbose=False)["input_ids"]
        if other.get_vocab() != first.get_vocab() or ours != theirs:
            raise ModelError(
                f"recipient and donor {part!r} have different tokenizers; "
                "a graft needs one tokenizer for both"
            )
    return first


def _sample(tokenizer: PreTrainedTokenizerBase) -> str:
    """A text that tokenizers of one vocabulary encode alike only if they split words alike."""
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
            f"{place.origin} holds no tokenizer: expected one of {', '.join(_TOKENIZER_FILES)} "
            "beside config.json"
        )
    try:
        return AutoTokenizer.from_pretrained(
            place.directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # libraries raise what they like on a broken file
        raise ModelError(f"{place.origin} does not load: {first_line(error)}") from error
