"""Texts that a pair writes under a graft: greedy, or drawn at a temperature under a seed.

A draw is greedy, too: of the logits divided by the temperature, with Gumbel noise added, the
largest is a sample of the softmax (E. J. Gumbel, 1954). The noise of a text depends on the seed, the
prompt and the number of the sample, and on nothing else, so that texts do not depend on their batch,
and configurations are compared under the same draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from kgbench.data import Prompt
from kgbench.engine.grafted_model import as_model
from kgbench.engine.out_of_memory import less_at_once
from kgbench.engine.plan import Budget
from kgbench.engine.treatment import Configuration
from kgbench.models.pair import ModelPair
from kgbench.readouts import TextReadout


@dataclass(frozen=True)
class Written:
    """Texts of one batch."""

    prompts: tuple[int, ...]
    """Number of the prompt of each text."""
    texts: tuple[str, ...]
    """Without special tokens."""
    forwards: int
    token_rows: int
    """Token rows of the forwards, without the padding of prompts."""


def write_texts(
    pair: ModelPair,
    graft: Configuration | str,
    prompts: Sequence[Prompt],
    readout: TextReadout,
    budget: Budget,
) -> Iterator[Written]:
    """Write the texts of a readout after some prompts, batch by batch.

    Args:
        pair: The models.
        graft: A graft expression, `PRE` or `SFT`.
        prompts: Prompts of any lengths.
        readout: How many texts, of which length, and how they are drawn.
        budget: Limits of one forward.

    Raises:
        RegionError: A prompt lacks a region of the graft.
        InputError: Two prompts of one text have other regions.
    """
    model, ends = as_model(pair, graft, readout.decode, prompts), end_tokens(pair)
    # The checkpoint's own settings, such as a penalty of repetitions, would change what is written.
    model.generation_config = GenerationConfig(
        max_new_tokens=readout.tokens, do_sample=False, eos_token_id=ends or None, pad_token_id=0
    )
    ids = [pair.encoded(prompt).ids for prompt in prompts]
    longest_first = sorted(range(len(prompts)), key=lambda number: -len(ids[number]))
    rows = list(product(longest_first, range(readout.samples)))
    most = budget.logits // int(pair.recipient.config.vocab_size)
    most = max(1, min(most, budget.prompts or most))
    generate: Any = model.generate
    while rows:
        longest = len(ids[rows[0][0]])
        batch = rows[: max(1, min(most, budget.tokens // (longest + readout.tokens)))]
        tokens = torch.zeros(len(batch), longest, dtype=torch.int64)
        mask = torch.zeros_like(tokens)
        for row, (number, _) in enumerate(batch):
            tokens[row, longest - len(ids[number]) :] = torch.tensor(ids[number])
            mask[row, longest - len(ids[number]) :] = 1
        noise = LogitsProcessorList()
        if readout.temperature:
            draws = [_draws(prompts[number], readout.seed, sample) for number, sample in batch]
            noise.append(Noise(draws, readout.temperature))
        try:
            sequences = generate(
                input_ids=tokens.to(pair.device),
                attention_mask=mask.to(pair.device),
                logits_processor=noise,
            )[:, longest:].cpu()
        except RuntimeError as error:
            most = len(batch) // 2
            less_at_once(pair, most > 0, error)
            continue
        rows = rows[len(batch) :]
        texts = [_text(pair, line, ends) for line in sequences.tolist()]
        numbers, steps = tuple(number for number, _ in batch), sequences.shape[1]
        token_rows = int(mask.sum()) + len(batch) * (steps - 1)
        yield Written(numbers, tuple(texts), steps, token_rows)


class Noise(LogitsProcessor):
    """Gumbel noise, under which the likeliest token is a sample at a temperature.

    Args:
        draws: Generator of each row of a batch.
        temperature: Above 0.
    """

    def __init__(self, draws: Sequence[np.random.Generator], temperature: float) -> None:
        self.draws, self.temperature = draws, temperature

    def __call__(
        self, input_ids: Int[Tensor, "row token"], scores: Float[Tensor, "row vocabulary"]
    ) -> Float[Tensor, "row vocabulary"]:
        """Logits with noise."""
        waits = [generator.standard_exponential(scores.shape[1]) for generator in self.draws]
        noise = torch.from_numpy(-np.log(np.stack(waits)))
        return scores / self.temperature + noise.to(scores)


def _draws(prompt: Prompt, seed: int, sample: int) -> np.random.Generator:
    """Generator of one text."""
    which = sha256(f"{prompt.label}\0{prompt.fact.id}".encode()).digest()
    return np.random.default_rng([seed, sample, int.from_bytes(which, "big")])


def end_tokens(pair: ModelPair) -> list[int]:
    """Tokens of which any ends a text: the tokenizer's, and those of all models of the pair."""
    ends = {pair.tokenizer.eos_token_id}
    for model in (pair.recipient, *pair.donors.values()):
        if model.generation_config is not None:
            token = model.generation_config.eos_token_id
            ends.update(token if isinstance(token, list) else [token])
    return sorted(ends.difference([None]))


def _text(pair: ModelPair, tokens: Sequence[int], ends: Sequence[int]) -> str:
    """Text of the tokens before the first that ends it."""
    until = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return str(pair.tokenizer.decode(list(tokens[:until]), skip_special_tokens=True))
