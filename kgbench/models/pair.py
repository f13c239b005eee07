"""Model pairs: a recipient and its donors, of one architecture and with one tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

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

from kgbench.data import Prompt
from kgbench.errors import ModelError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.adapter import read_adapter
from kgbench.models.checkpoints import Checkpoint, locate
from kgbench.models.configuration import read_config
from kgbench.models.delta import apply_delta
from kgbench.models.encoding import Encoded, Encoder
from kgbench.models.family import Family, family_in, written
from kgbench.models.lora import adapted
from kgbench.models.sharing import share_equal
from kgbench.sites import RECIPIENT

__all__ = ["DTYPES", "ModelPair", "load_pair", "prepare", "weights_hash"]

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_SHAPE_KEYS = (
    *("model_type", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("vocab_size", "n_layer", "n_embd", "n_head", "n_inner"),
)
_FORWARD_KEYS = (
    *("sliding_window", "layer_types", "rope_parameters", "no_rope_layers", "attn_logit_softcapping", "final_logit_softcapping"),
    *("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling", "query_pre_attn_scalar", "clip_qkv"),
    *("hidden_act", "hidden_activation", "activation_function", "use_parallel_residual", "do_layer_norm_before"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
)
"""Parts of a configuration that no weight-bearing module holds: under a graft the recipient's count, at whatever tokens."""

_ATTENTION = ("auto", "sdpa", "eager")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(eq=False)
class ModelPair:
    """A recipient and named donors of the same architecture, in eval mode, with input and output embeddings untied.

    Models may share storage. A LoRA donor holds rows beside the recipient's weights: `get_parameter` gives the merged ones by their names.
    """

    name: str
    recipient: PreTrainedModel
    donors: Mapping[str, PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    family: Family
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where `recipient` and each donor came from, without places on this machine."""
    chat_template: bool = False

    def __post_init__(self) -> None:
        self.family = self.family.fitted(self.recipient)
        self._encoder = Encoder(self.tokenizer, self.chat_template)
        self._encoded: dict[Prompt, Encoded] = {}

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        layers = self.recipient.get_submodule(self.family.layers)
        return len(layers)  # type: ignore[arg-type]  # a ModuleList

    @property
    def device(self) -> torch.device:
        """Device of the recipient's input."""
        return self.recipient.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.recipient.dtype

    def donor(self, name: str) -> PreTrainedModel:
        """A donor by name; `recipient` is the recipient itself.

        Raises:
            UnknownNameError: The pair has no such donor.
        """
        if name == RECIPIENT:
            return self.recipient
        if name not in self.donors:
            raise UnknownNameError("donor", name, self.donors)
        return self.donors[name]

    def encoded(self, prompt: Prompt) -> Encoded:
        """Tokens, regions and target of a prompt."""
        if prompt not in self._encoded:
            self._encoded[prompt] = self._encoder(prompt)
        return self._encoded[prompt]

    @contextmanager
    def read_as(self, encoded: Mapping[Prompt, Encoded]) -> Iterator[None]:
        """For the time of a block, read some prompts as given: tokens and regions are known already, and are not the tokenizer's alone."""
        before = self._encoded
        self._encoded = {**before, **encoded}
        try:
            yield
        finally:
            self._encoded = before

    def encode(self, prompt: Prompt | str) -> list[int]:
        """Token ids, with BOS where the tokenizer adds one."""
        return self._encoder.ids(prompt) if isinstance(prompt, str) else list(self.encoded(prompt).ids)

    def regions(self, prompt: Prompt) -> dict[str, list[int]]:
        """Token indices of each region that the prompt has."""
        return {name: list(tokens) for name, tokens in self.encoded(prompt).regions.items()}

    @cached_property
    def weight_hashes(self) -> Mapping[str, str]:
        """SHA-256 of the weights, the configuration and, where it is not the package's, the map of `recipient` and of each donor."""
        return {name: _model_hash(model, self.family) for name, model in {RECIPIENT: self.recipient, **self.donors}.items()}

    def changed(self) -> tuple[str, ...]:
        """Names of the models whose weights or configuration are no longer those of `weight_hashes`."""
        models = {RECIPIENT: self.recipient, **self.donors}
        return tuple(name for name, model in models.items() if _model_hash(model, self.family) != self.weight_hashes[name])

    @cached_property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the tokenizer's serialisation and of the chat template in use."""
        frame = self.tokenizer.chat_template if self.chat_template else ""
        return hashlib.sha256(f"{self.tokenizer.backend_tokenizer.to_str()}\n{frame}".encode()).hexdigest()


def load_pair(
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
        name: A name in the catalog, or the directory of a plant; `recipient` and `donors` replace what the catalog says.
        recipient: Directory or Hub id of the recipient.
        donors: Directory (of a checkpoint, of a plant or of a LoRA adapter) or Hub id of each donor, by name.
        dtype: Weight type by name; by default float32 on a CPU and as stored elsewhere.
        device: A torch device.
        **options: `revision` (of Hub ids), `chat_template` (bool), `attention` ("sdpa" or "eager"; by default "auto": sdpa for models that
            can be computed by it, eager for those that cannot, such as Gemma 2 with its soft caps), `share` (bool: parameters of a donor
            that equal the recipient's are held once, so that the models must not be written to; an adapter's donor always shares).

    Raises:
        UnknownNameError: The catalog has no such name, or `dtype` or `attention` is unknown.
        ModelError: A checkpoint is missing or the checkpoints do not fit each other.
    """
    revision, chat_template, attention, share = _options(**options)
    label, sources = _sources(name, recipient, donors)
    stored = dtype or ("float32" if torch.device(device).type == "cpu" else "auto")
    if stored not in (*DTYPES, "auto"):
        raise UnknownNameError("dtype", stored, DTYPES)
    recipient_place = locate(sources[RECIPIENT], revision)
    places = {part: recipient_place if part == RECIPIENT else locate(source, revision, recipient_place) for part, source in sources.items()}
    family = _family(places[RECIPIENT], sources[RECIPIENT])
    for part, place in places.items():
        _check_config(places[RECIPIENT], place, part)
    attention = _backend(places[RECIPIENT], attention)
    tokenizer, origins = _tokenizer(places), {part: place.origin for part, place in places.items()}
    first = _load(places.pop(RECIPIENT), DTYPES.get(stored, stored), device, attention)
    others = {}
    for part, place in places.items():
        if place.adapter is not None:
            others[part] = _adapted(first, place.adapter, place.origin, recipient_place)
            continue
        others[part] = _load(place, first.dtype, device, attention)  # one type for all
        _check_forward(first, others[part], part)
        _check_weights(first, others[part], part)
        if share:
            share_equal(first, others[part])
    return ModelPair(label, first, others, tokenizer, family, origins, chat_template)


def _options(
    revision: str | None = None, chat_template: bool = False, attention: str = "auto", share: bool = False
) -> tuple[str | None, bool, str, bool]:
    """The less common arguments of `load_pair` with their defaults."""
    return revision, chat_template, attention, share


def _sources(name: str | None, recipient: str | None, donors: Mapping[str, str] | None) -> tuple[str, dict[str, str]]:
    known = catalog.entry(name) if name else None
    first = recipient or (known.recipient if known else None)
    if first is None:
        raise ModelError("no model given: name a pair (--model NAME) or its checkpoints (--recipient PATH --donor sft=PATH)")
    others = {**(known.donors if known and not recipient else {}), **(donors or {})}
    if RECIPIENT in others:
        raise ModelError(f"{RECIPIENT!r} is a reserved name and cannot name a donor")
    if not others and known:
        raise ModelError(
            f"{name} has no finetuned donor here; give one with --donor sft=PATH, or train one with "
            f"'kgbench train --model {name} --dataset {known.dataset} --recipe aggressive'"
        )
    if not others:
        raise ModelError("no donor given: add --donor sft=PATH, the finetuned checkpoint")
    as_catalogued = known is not None and first == known.recipient
    label = known.name if known and as_catalogued else first.rstrip("/").rpartition("/")[2]
    return label, {RECIPIENT: first, **others}


def _family(place: Checkpoint, source: str) -> Family:
    """The map that fits the recipient."""
    return family_in(place.directory, _model_type(place, source), place.origin)


def _model_type(place: Checkpoint, source: str) -> str:
    found = place.config.get("model_type")
    if not isinstance(found, str):
        raise ModelError(f"{source!r} is no checkpoint: its config.json names no model_type")
    return found


def _check_config(recipient: Checkpoint, other: Checkpoint, part: str) -> None:
    ours, theirs = recipient.config, other.config
    for key in _SHAPE_KEYS:
        if ours.get(key) != theirs.get(key):
            raise ModelError(
                f"recipient and donor {part!r} differ in {key}: {ours.get(key)} against {theirs.get(key)}; "
                "a graft needs two checkpoints of one architecture"
            )


def _check_forward(recipient: PreTrainedModel, donor: PreTrainedModel, part: str) -> None:
    """As loaded, since a checkpoint need not write down what is the default."""
    for key in _FORWARD_KEYS:
        ours, theirs = (_plainly(getattr(model.config, key, None)) for model in (recipient, donor))
        if ours != theirs:
            raise ModelError(
                f"recipient and donor {part!r} differ in {key}: {ours} against {theirs}; a graft is computed by the recipient's "
                "forward pass, which would be another than the donor's"
            )


def _plainly(value: Any) -> Any:
    """A setting without what is empty, and without the former name of `rope_type`."""
    return {k: _plainly(v) for k, v in value.items() if v is not None and k != "type"} if isinstance(value, dict) else value


def _check_weights(recipient: nn.Module, donor: nn.Module, part: str) -> None:
    ours, theirs = ({n: tuple(p.shape) for n, p in m.state_dict().items()} for m in (recipient, donor))
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key):
            raise ModelError(f"recipient and donor {part!r} differ in the weights {key}: shapes {ours.get(key)} and {theirs.get(key)}")


def _tokenizer(places: Mapping[str, Checkpoint]) -> PreTrainedTokenizerBase:
    first = read_tokenizer(places[RECIPIENT])
    for part, place in places.items():
        own = place.adapter or place.directory
        if part == RECIPIENT or not (own / "tokenizer.json").exists():
            continue
        other = read_tokenizer(replace(place, directory=own))
        ours, theirs = (tokenizer(_sample(first), verbose=False)["input_ids"] for tokenizer in (first, other))
        if other.get_vocab() != first.get_vocab() or ours != theirs:
            raise ModelError(f"recipient and donor {part!r} have different tokenizers; a graft needs one tokenizer for both")
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
        raise ModelError(f"{place.origin} holds no tokenizer: expected one of {', '.join(_TOKENIZER_FILES)} beside config.json")
    try:
        return AutoTokenizer.from_pretrained(place.directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # libraries raise what they like on a broken file
        raise ModelError(f"{place.origin} does not load: {(str(error).splitlines() or [type(error).__name__])[0]}") from error


def _backend(recipient: Checkpoint, attention: str) -> str:
    """The attention backend of all models of a pair; what a checkpoint asks for is not heeded, since it may be code from outside."""
    if attention not in _ATTENTION:
        raise UnknownNameError("attention backend", attention, _ATTENTION)
    if attention != "auto":
        return attention
    try:
        model: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(read_config(recipient.directory))]
    except Exception as error:  # libraries raise what they like on a broken configuration
        raise ModelError(f"{recipient.origin} does not load: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    return "sdpa" if model._supports_sdpa else "eager"


def _load(place: Checkpoint, dtype: torch.dtype | str, device: str, attention: str) -> PreTrainedModel:
    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it would report of missing weights is an error here
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place.directory,
            config=read_config(place.directory),
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:  # libraries raise what they like on a broken configuration or file
        raise ModelError(f"{place.origin} does not load: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{place.origin} does not load: it lacks {len(missing)} of the model's weights, such as {missing[0]}")
    ready = prepare(nn.Module.to(model, device))
    if place.delta is not None:
        apply_delta(ready, place.delta, place.origin)
    return ready


def _adapted(recipient: PreTrainedModel, folder: Path, origin: str, base: Checkpoint) -> PreTrainedModel:
    """The donor that an adapter makes of the recipient; the base that it names is never looked up."""
    adapter = read_adapter(folder, origin)
    named = adapter.config.base_model_name_or_path
    alike = not named or named.rstrip("/").rpartition("/")[2] == base.origin.partition("@")[0].rpartition("/")[2].removeprefix("local:")
    return adapted(recipient, adapter, origin, "" if alike else f"; the adapter says that it was made for {named!r}")


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """Make a model ready for a pair: in eval mode, without gradients, and with a head of its own.

    Where head and embeddings are tied they are untied, so that grafting the embeddings never changes the head.
    """
    head, embeddings = cast(nn.Linear, model.get_output_embeddings()), model.get_input_embeddings()
    if head.weight is embeddings.weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.eval()
    model.requires_grad_(requires_grad=False)
    return model


_NO_MATTER = ("_name_or_path", "transformers_version", "dtype", "architectures", "tie_word_embeddings", "use_cache")
"""Parts of a configuration that change no answer."""


def _model_hash(model: PreTrainedModel, family: Family) -> str:
    """SHA-256 over weights and configuration: rotary base, norms' epsilon and the like change answers too, as does a map from a folder."""
    config = {key: value for key, value in model.config.to_dict().items() if key not in _NO_MATTER and "attn_implementation" not in key}
    text = json.dumps(config, sort_keys=True, default=str)
    if not family.shipped:
        text += f"\n{hashlib.sha256(json.dumps(written(family), sort_keys=True).encode()).hexdigest()}"
    return hashlib.sha256(f"{weights_hash(model)}\n{text}".encode()).hexdigest()


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of all weights, in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
