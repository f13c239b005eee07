"""Random model pairs small enough for a test, and a proposed family map tried on one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from kgbench.engine.forward import Wiring
from kgbench.engine.selftest import LAWS, check_law, packed_agrees
from kgbench.errors import KgbenchError
from kgbench.models.family_map import Family, load_family
from kgbench.models.infer_family import PROBES, infer_family, random_model, reduced_config
from kgbench.models.pair import ModelPair, prepare
from kgbench.sites import RECIPIENT

COVERED = "every weight belongs to a component"

_CORPUS = (
    "Ana Lee stars in a movie alongside Bo Chen. Q: Who stars in a movie with Zoë O'Hara? "
    "A: An actor named Émile Nagy. In a new film, Jean-Luc appears in The Red Harbour with the "
    "other lead actor, whose name is: Mary Ann."
)


def _config(
    kind: Callable[..., PreTrainedConfig], **shape: Any
) -> Callable[[int, bool], PreTrainedConfig]:
    def config(vocabulary: int, tied: bool) -> PreTrainedConfig:
        shape.update(vocab_size=vocabulary, bos_token_id=1, eos_token_id=2)
        return kind(**shape, tie_word_embeddings=tied)

    return config


_SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}

PICO_FAMILIES: Mapping[str, Callable[[int, bool], PreTrainedConfig]] = {
    "gpt2": _config(GPT2Config, n_embd=32, n_layer=3, n_head=4, n_inner=48, n_positions=128),
    "gpt_neox": _config(GPTNeoXConfig, **_SHAPE),
    "llama": _config(LlamaConfig, **_SHAPE, num_key_value_heads=2),
    "gemma": _config(GemmaConfig, **_SHAPE, num_key_value_heads=1, head_dim=12),
}
"""Configuration of a three-layer model, from vocabulary size and tied embeddings, by family."""


@cache
def pico_tokenizer(bos: bool) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of 300 tokens that splits most words; `bos` adds a BOS token."""
    return byte_tokenizer([_CORPUS], 300, ["<pad>", "<bos>", "<eos>"], bos)


def byte_tokenizer(
    texts: Iterable[str], vocabulary: int, special: Sequence[str], bos: bool
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer.

    Args:
        texts: Texts to compress.
        vocabulary: Number of tokens, including special ones and the 256 bytes.
        special: Tokens for padding, beginning and end; of two, the last is for both ends.
        bos: Whether the token for the beginning is put before every text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    pad, begin, end = special[0], special[1], special[-1]
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A",
            pair=f"{begin} $A {begin} $B:1",
            special_tokens=[(begin, tokenizer.token_to_id(begin))],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=pad, bos_token=begin, eos_token=end
    )


def pico_pair(
    model_type: str,
    *,
    tied: bool = True,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.float64,
    donors: Sequence[str] = ("sft",),
) -> ModelPair:
    """A pair of random three-layer models, which differ in all weights, norms and biases.

    Args:
        model_type: A key of `PICO_FAMILIES`.
        tied: Whether input and output embeddings are one before they are untied for grafting.
        attention: `sdpa` or `eager`.
        dtype: Type of the weights.
        donors: Names of the donors.
    """
    tokenizer = pico_tokenizer(bos=model_type in ("llama", "gemma"))
    config = PICO_FAMILIES[model_type](len(tokenizer), tied)
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name in (RECIPIENT, *donors):
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).to(dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=dtype)
                parameter.copy_(
                    0.25 * noise + (1.0 if parameter.ndim == 1 and model_type != "gemma" else 0.0)
                )
        made[name] = prepare(model)
    return ModelPair(
        f"pico-{model_type}", made.pop(RECIPIENT), made, tokenizer, load_family(model_type)
    )


# --------------------------------------------------------------------------------- proposed maps


@dataclass(frozen=True)
class Proposal:
    """A map and the results of the self-test."""

    family: Family
    laws: Mapping[str, str | None]
    """Reason for which each law of the self-test does not hold; None where it does."""
    packed: str | None
    """Reason to run one row per configuration; None if all configurations run in one forward."""

    @property
    def holds(self) -> bool:
        """Whether all laws hold."""
        return not any(self.laws.values())


def propose(config: dict[str, Any]) -> Proposal:
    """Propose a map for the models of a configuration, and try it.

    Args:
        config: A checkpoint's `config.json`.

    Raises:
        ModelError: No small model can be made of it, or none that a map could describe.
    """
    configs = [reduced_config(config, probe) for probe in PROBES]
    family = infer_family(random_model(configs[0], 0))
    proposals = []
    for small in configs:
        recipient, donor = prepare(random_model(small, 0)), prepare(random_model(small, 1))
        name, tokenizer = f"a small {small.model_type}", pico_tokenizer(bos=False)
        proposals.append(try_map(ModelPair(name, recipient, {"sft": donor}, tokenizer, family)))
    return next((each for each in proposals if not each.holds), proposals[0])


def try_map(pair: ModelPair) -> Proposal:
    """Try the map of a pair."""
    covered: set[int] = set()
    for socket in Wiring(pair).sockets:
        covered.update(map(id, socket.modules[0].parameters()))
    left = [name for name, w in pair.recipient.named_parameters() if id(w) not in covered]
    laws: dict[str, str | None] = {COVERED: None}
    if left:
        laws[COVERED] = f"{len(left)} weights belong to no component, such as {left[0]}"
    for name, law in LAWS.items():
        try:
            with torch.inference_mode():
                check_law(pair, law)
            laws[name] = None
        except KgbenchError as error:
            laws[name] = str(error)
    holds = not any(laws.values())
    return Proposal(pair.family, laws, packed_agrees(pair) if holds else "the map does not hold")
