"""Model pairs: a recipient and its donors, of one architecture and with one tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from kgbench.data import Prompt, Question
from kgbench.errors import ModelError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.checkpoints import Checkpoint, Stamp, locate, stamp_of
from kgbench.models.encoding import Encoded, EncodedQuestion, Encoder
from kgbench.models.family import Family, family_in, written
from kgbench.models.placement import DeviceMap, devices_of, free_memory, main_device, place
from kgbench.models.reading import (
    DTYPES,
    adapted_donor,
    attention_backend,
    make_ready,
    prepare,
    read_empty,
    read_model,
)
from kgbench.models.sharing import hold, share_equal
from kgbench.models.streaming import stored, stream, streamed
from kgbench.models.types import check_dtype
from kgbench.sites import RECIPIENT

__all__ = [
    "DTYPES",
    "ModelPair",
    "load_pair",
    "model_hash",
    "pair_sources",
    "prepare",
    "read_tokenizer",
    "weights_hash",
]


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
"""Parts of a configuration that no weight-bearing module holds.

Under a graft the recipient's count, at whatever tokens.
"""

_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary positions whose angles follow from `max_position_embeddings`.

Elsewhere that number is a promise only.
"""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_NO_MATTER = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "architectures",
    "tie_word_embeddings",
    "use_cache",
)
"""Parts of a configuration that change no answer."""


@dataclass(eq=False)
class ModelPair:
    """A recipient and named donors of the same architecture.

    The models are in eval mode, with input and output embeddings untied, and may share storage. A
    LoRA donor holds rows in addition to the recipient's weights; `get_parameter` returns the merged
    weights.
    """

    name: str
    recipient: PreTrainedModel
    donors: Mapping[str, PreTrainedModel]
    tokenizer: PreTrainedTokenizerBase
    family: Family
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where `recipient` and each donor came from, without places on this machine."""
    chat_template: bool = False
    files: Mapping[Path, Stamp] = field(default_factory=dict)
    """The files that the models were read from, as they were before that."""

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
        source = streamed(self.recipient)  # a donor in the recipient's role
        return self.recipient.device if source is None else source.home

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

    def question(self, prompt: Prompt) -> Question:
        """A prompt without its answer, which reads the same.

        Its encoding has ids and regions, and no target.
        """
        if isinstance(prompt, Question):
            return prompt
        encoded = self.encoded(prompt)
        question = Question(prompt, encoded.ids)
        self._encoded.setdefault(question, EncodedQuestion(encoded))
        return question

    @contextmanager
    def read_as(self, encoded: Mapping[Prompt, Encoded]) -> Iterator[None]:
        """For the time of a block, read some prompts as given.

        Tokens and regions are known already, and are not the tokenizer's alone.
        """
        before = self._encoded
        questions: dict[Prompt, Encoded] = {
            Question(prompt, own.ids): EncodedQuestion(own) for prompt, own in encoded.items()
        }
        self._encoded = {**before, **encoded, **questions}
        try:
            yield
        finally:
            self._encoded = before

    def encode(self, prompt: Prompt | str) -> list[int]:
        """Token ids, with BOS where the tokenizer adds one."""
        return (
            self._encoder.ids(prompt) if isinstance(prompt, str) else list(self.encoded(prompt).ids)
        )

    def regions(self, prompt: Prompt) -> dict[str, list[int]]:
        """Token indices of each region that the prompt has."""
        return {name: list(tokens) for name, tokens in self.encoded(prompt).regions.items()}

    @cached_property
    def weight_hashes(self) -> Mapping[str, str]:
        """SHA-256 of `recipient` and of each donor.

        It covers the weights, the configuration and a family map that is not the package's.
        """
        return {
            name: model_hash(model, self.family)
            for name, model in {RECIPIENT: self.recipient, **self.donors}.items()
        }

    def changed(self) -> tuple[str, ...]:
        """Names of the models that changed since `weight_hashes`."""
        models = {RECIPIENT: self.recipient, **self.donors}
        return tuple(
            name
            for name, model in models.items()
            if model_hash(model, self.family) != self.weight_hashes[name]
        )

    def changed_files(self) -> tuple[str, ...]:
        """Files that changed since the models were read from them, as `folder/file`."""
        return tuple(
            f"{path.parent.name}/{path.name}"
            for path, stamp in self.files.items()
            if stamp_of(path) != stamp
        )

    @cached_property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the tokenizer's serialisation and of the chat template in use."""
        frame = self.tokenizer.chat_template if self.chat_template else ""
        return hashlib.sha256(
            f"{self.tokenizer.backend_tokenizer.to_str()}\n{frame}".encode()
        ).hexdigest()


def model_hash(model: PreTrainedModel, family: Family) -> str:
    """SHA-256 over weights and configuration.

    Rotary base, norms' epsilon and the like change answers too, as does a map from a folder.
    """
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
    """SHA-256 over names, types, shapes and bytes of all weights, in the order of their names.

    Those of a streamed donor are read.
    """
    digest = hashlib.sha256()
    for name, tensor in stored(model):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


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
        name: A name in the catalog, or the directory of a plant; `recipient` and `donors` replace
            what the catalog says.
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
    recipient_place = locate(sources[RECIPIENT], asked.revision)
    places = {
        part: recipient_place
        if part == RECIPIENT
        else locate(source, asked.revision, recipient_place)
        for part, source in sources.items()
    }
    files = {
        path: stamp for checkpoint in places.values() for path, stamp in checkpoint.stamps().items()
    }
    family = _family(recipient_place, sources[RECIPIENT])
    for part, checkpoint in places.items():
        check_config(recipient_place, checkpoint, part)
    reader = _Reader(asked, family, attention_backend(recipient_place, asked.attention), device)
    tokenizer, origins = (
        one_tokenizer(places),
        {part: checkpoint.origin for part, checkpoint in places.items()},
    )
    del places[RECIPIENT]
    first = reader.recipient(recipient_place, DTYPES.get(wanted, wanted), places)
    others = {
        part: reader.donor(first, recipient_place, checkpoint, part)
        for part, checkpoint in places.items()
    }
    return ModelPair(label, first, others, tokenizer, family, origins, asked.chat_template, files)


@dataclass(frozen=True)
class _Options:
    """The less common arguments of `load_pair` with their defaults."""

    revision: str | None = None
    chat_template: bool = False
    attention: str = "auto"
    share: bool = False
    stream_donors: bool = False
    device_map: DeviceMap | None = None

    def streams(self, checkpoint: Checkpoint) -> bool:
        """Whether a donor is left on disk.

        A plant or an adapter holds little beside what it shares.
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
        """The recipient; where it is to be spread over devices, it is found how."""
        free = None if self.asked.device_map is None else free_memory()
        model = read_model(place, dtype, self.device, self.attention)
        if self.asked.device_map is not None:
            held = sum(
                donor.adapter is None and not self.asked.streams(donor) for donor in donors.values()
            )
            self.devices = devices_of(
                model, self.family.layers, self.asked.device_map, 1 + held, free
            )
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
    """The label of a pair, and where its recipient and its donors are, as `load_pair` takes them.

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


def _family(place: Checkpoint, source: str) -> Family:
    """The map that fits the recipient."""
    return family_in(place.directory, _model_type(place, source), place.origin)


def _model_type(place: Checkpoint, source: str) -> str:
    found = place.config.get("model_type")
    if not isinstance(found, str):
        raise ModelError(f"{source!r} is no checkpoint: its config.json names no model_type")
    return found


def check_config(recipient: Checkpoint, other: Checkpoint, part: str) -> None:
    """Whether two checkpoints are of one architecture, by what their configurations say.

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
    by_length = any(
        kind in str(getattr(recipient.config, "rope_parameters", None)) for kind in _BY_LENGTH
    )
    for key in (*_FORWARD_KEYS, *(["max_position_embeddings"] if by_length else [])):
        ours, theirs = (_plainly(getattr(model.config, key, None)) for model in (recipient, donor))
        if ours != theirs:
            raise ModelError(
                f"recipient and donor {part!r} differ in {key}: {ours} against {theirs}; a graft "
                "is computed by the recipient's "
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
                f"recipient and donor {part!r} differ in the weights {key}: shapes {ours.get(key)} "
                f"and {theirs.get(key)}"
            )


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
        raise ModelError(
            f"{place.origin} does not load: "
            f"{(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error
