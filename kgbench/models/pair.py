"""Model pairs: a recipient and its donors, of one architecture and with one tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, wraps
from threading import RLock
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from kgbench.data import Prompt, Question
from kgbench.errors import InputError, ModelError, RegionError, check_choice
from kgbench.models.encoding import Encoded, Encoder
from kgbench.models.family_map import Family, Slots, written
from kgbench.models.tensors import hash_tensors, shared_copy
from kgbench.sites import RECIPIENT, DonorPart, part_of

Answer = TypeVar("Answer")

_NO_MATTER = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "architectures",
    "tie_word_embeddings",
    "use_cache",
)
"""Parts of a configuration that change no answer."""
_AS_COMPUTED: Mapping[str, Any] = {
    "tie_word_embeddings": False,
    "return_dict": True,
    "output_hidden_states": False,
    "output_attentions": False,
}
"""Settings of a pair's models, whatever their configurations; they change no answer."""


@dataclass(eq=False, repr=False)
class ModelPair:
    """A recipient and named donors of the same architecture.

    The models are in eval mode, with input and output embeddings untied, and may share storage.
    Several threads may use one pair; they take turns. A
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
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What the pair was loaded by: fields `model`, `recipient`, `donors`, … of a specification."""
    lock: RLock = field(default_factory=RLock, repr=False)
    """Held by the thread that uses the models or reads prompts; others wait."""
    answers: MutableMapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Logits [token, vocabulary] to `probe` of models that were given in another form.

    As each computed them by itself.
    """
    notes: MutableMapping[str, str] = field(default_factory=dict)
    """What was done to donors so that they fit the recipient, by name."""
    unread: Collection[str] = frozenset()
    """Texts that are one token to a donor and several to the pair, which no prompt may hold."""

    reading: Hashable = field(default=None, init=False, repr=False)
    """What was read from which files, and how; equal for pairs that compute the same. None of a
    pair that holds something else.
    """

    def __post_init__(self) -> None:
        self.family = self.family.fitted(self.recipient)
        self._encoder = Encoder(self.tokenizer, self.chat_template)
        self._encoded: dict[Prompt, Encoded] = {}
        self._read: Callable[[Prompt, Encoded, Encoder], Encoded] | None = None

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return (
            f"ModelPair({self.name!r}: {self.family.model_type}, {self.n_layers} layers, {kind} on "
            f"{self.device}, donors {', '.join(self.donors)})"
        )

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        layers = self.recipient.get_submodule(self.family.layers)
        return len(layers)  # type: ignore[arg-type]  # a ModuleList

    @property
    def width(self) -> int:
        """Numbers of the residual stream at a token."""
        return int(self.recipient.config.hidden_size)

    @cached_property
    def slots(self) -> Slots:
        """The (layer, component) places of the models."""
        return Slots(self.family, self.n_layers)

    @cached_property
    def probe(self) -> tuple[int, ...]:
        """Tokens that answers are compared on when the pair is verified."""
        return probe_of(self.tokenizer, self.recipient.config)

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
        check_choice("donor", name, self.donors)
        return self.donors[name]

    def shared_copy(self, name: str) -> PreTrainedModel:
        """A copy of a model that shares its weights, for tools that replace a model's modules.

        Raises:
            UnknownNameError: The pair has no such model.
        """
        return shared_copy(self.donor(name))

    def encoded(self, prompt: Prompt) -> Encoded:
        """Tokens, regions and target of a prompt.

        Raises:
            InputError: It is no prompt.
        """
        if not isinstance(prompt, Prompt):
            raise InputError(
                "prompts: expected prompts with an answer and regions, as load_prompts gives them, "
                f"got {prompt!r:.80}; for a text give load_prompts its row, as in "
                '[{"prompt": TEXT, "subject": WORDS, "target": ANSWER}]'
            )
        with self.lock:  # see `read_as`
            encoded = self._encoded.get(prompt)
            if encoded is None:
                for token in self.unread:
                    if token in prompt.text:
                        raise RegionError(
                            f"fact {prompt.fact.id}, prompt {prompt.name!r} holds {token!r}, a token "
                            "that was added to a donor and that the recipient does not have; leave "
                            "the fact out"
                        )
                encoded = self._encoded[prompt] = self.encoded_again(prompt)
            return encoded

    def encoded_again(self, prompt: Prompt) -> Encoded:
        """What `encoded` gives of a prompt that was not read before."""
        encoded = self._encoder(prompt)
        return encoded if self._read is None else self._read(prompt, encoded, self._encoder)

    def question(self, prompt: Prompt, encoded: Encoded | None = None) -> Question:
        """A prompt without its answer, which reads the same.

        Its encoding has ids and regions, and no target.

        Args:
            prompt: With its answer, or without.
            encoded: Its tokens, where the answer that they were read with is not known here.
        """
        if isinstance(prompt, Question):
            return prompt
        with self.lock:
            encoded = encoded or self.encoded(prompt)
            question = Question(prompt, encoded.ids)
            self._encoded.setdefault(question, encoded.withheld())
            return question

    @contextmanager
    def read_as(self, encoded: Mapping[Prompt, Encoded]) -> Iterator[None]:
        """For the time of a block, read some prompts as given.

        Tokens and regions are known already, and are not the tokenizer's alone.
        """
        with self.lock:
            tokens = {**self._encoded, **encoded}
            for prompt, each in encoded.items():
                tokens[Question(prompt, each.ids)] = each.withheld()
            with self._read_by(tokens, self._read):
                yield

    @contextmanager
    def answered_by(self, read: Callable[[Prompt, Encoded, Encoder], Encoded]) -> Iterator[None]:
        """For the time of a block, read out of prompts what a readout names.

        Args:
            read: `Readout.read` of one.
        """
        with self.lock, self._read_by({}, read):
            yield

    @contextmanager
    def _read_by(
        self,
        encoded: dict[Prompt, Encoded],
        read: Callable[[Prompt, Encoded, Encoder], Encoded] | None,
    ) -> Iterator[None]:
        before = self._encoded, self._read
        self._encoded, self._read = encoded, read
        try:
            yield
        finally:
            self._encoded, self._read = before

    def encode(self, prompt: Prompt | str) -> list[int]:
        """Token ids, with BOS where the tokenizer adds one."""
        if isinstance(prompt, str):
            return self._encoder.ids(prompt)
        return list(self.encoded(prompt).ids)

    def regions(self, prompt: Prompt) -> dict[str, list[int]]:
        """Token indices of each region that the prompt has."""
        return {name: list(tokens) for name, tokens in self.encoded(prompt).regions.items()}

    @cached_property
    def weight_hashes(self) -> Mapping[str, str]:
        """SHA-256 of `recipient` and of each donor, not of parts of donors, which follow.

        It covers the weights, the configuration and a family map that is not the package's.
        """
        return self._hashes()

    def _hashes(self) -> dict[str, str]:
        hashes = {RECIPIENT: model_hash(self.recipient, self.family)}
        for name, model in self.donors.items():
            if part_of(name) == DonorPart(name):
                hashes[name] = model_hash(model, self.family)
        return hashes

    def changed(self) -> tuple[str, ...]:
        """Names of the models that changed since `weight_hashes`."""
        before = self.weight_hashes
        return tuple(name for name, digest in self._hashes().items() if digest != before[name])

    @cached_property
    def tokenizer_hash(self) -> str:
        """SHA-256 of the tokenizer's serialisation and of the chat template in use."""
        frame = self.tokenizer.chat_template if self.chat_template else ""
        return _sha256(f"{self.tokenizer.backend_tokenizer.to_str()}\n{frame}")


_SENTENCE, _WORDS = "Two people star in a film.", 16


def probe_of(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> tuple[int, ...]:
    """A sentence, and tokens from all over the vocabulary, as far as a model reads them.

    Args:
        tokenizer: The tokenizer.
        config: The model's configuration.
    """
    tokens = sorted({*range(config.vocab_size)} - {*tokenizer.all_special_ids})
    spread = tokens[len(tokens) // (2 * _WORDS) :: max(1, len(tokens) // _WORDS)]
    sentence = [i for i in tokenizer(_SENTENCE)["input_ids"] if i < config.vocab_size]
    most = getattr(config, "max_position_embeddings", None) or len(sentence) + len(spread)
    return tuple([*sentence, *spread][:most])


def once_for_each(answer: Callable[[ModelPair], Answer]) -> Callable[[ModelPair], Answer]:
    """A function of pairs that is computed once for each, and forgotten with the pair.

    For a pair that is read again from the same files it is not computed again.
    """
    by_pair: WeakKeyDictionary[ModelPair, Answer] = WeakKeyDictionary()
    by_reading: dict[Hashable, Answer] = {}

    @wraps(answer)
    def known_answer(pair: ModelPair) -> Answer:
        computed: MutableMapping[Any, Answer] = by_pair if pair.reading is None else by_reading
        key = pair.reading or pair
        if key not in computed:
            computed[key] = answer(pair)
        return computed[key]

    return known_answer


def model_hash(model: PreTrainedModel, family: Family) -> str:
    """SHA-256 over weights and configuration.

    Rotary base, norms' epsilon and the like change answers too, as does a map from a folder.
    """
    config = {}
    for key, value in model.config.to_dict().items():
        if key not in _NO_MATTER and "attn_implementation" not in key:
            config[key] = value
    text = json.dumps(config, sort_keys=True, default=str)
    if not family.shipped:
        text += f"\n{_sha256(json.dumps(written(family), sort_keys=True))}"
    return _sha256(f"{weights_hash(model)}\n{text}")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def weights_hash(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of all weights, in the order of their names."""
    return hash_tensors(sorted(model.state_dict().items()))


def prepare(model: PreTrainedModel) -> PreTrainedModel:
    """A model ready for a pair (see `make_ready`) that shares the tensors of the given one."""
    return make_ready(shared_copy(model))


def make_ready(model: PreTrainedModel) -> PreTrainedModel:
    """Make a model ready for a pair, in place: eval mode, no gradients, a separate head.

    Tied head and embeddings are untied, so that grafting the embeddings never changes the head.
    Its outputs have names, whatever its configuration.
    """
    head, embeddings = cast(nn.Linear, model.get_output_embeddings()), model.get_input_embeddings()
    if head.weight is embeddings.weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
    for name, value in _AS_COMPUTED.items():
        setattr(model.config, name, value)
    model.eval()
    model.requires_grad_(requires_grad=False)
    return model


def check_pair(pair: object) -> None:
    """Refuse what is no loaded pair.

    Raises:
        ModelError: It is something else.
    """
    if not isinstance(pair, ModelPair):
        given = repr(pair) if isinstance(pair, str) else type(pair).__name__
        raise ModelError(
            f"pair: expected what kgbench.load_pair gives, got {given}; load it first, as in "
            "kgbench.load_pair('tiny-gemma')"
        )
