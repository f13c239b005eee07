"""A pair under another name, in which each question has the answer of another one.

Where two answers are exchanged in the heads of all models and in the facts, every log-probability
of an answer stays what it was, and so does what a method finds that works from the models. One that
looks answers up, or goes by names, finds something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from kgbench.data import Prompt
from kgbench.models.pair import ModelPair
from kgbench.models.tensors import shared_copy


def exchanged_answers(
    pair: ModelPair, prompts: Sequence[Prompt], seed: int
) -> tuple[dict[int, int], list[Prompt]]:
    """Exchange the answers of some prompts.

    Args:
        pair: The models, whose tokenizer decides how answers begin.
        prompts: The prompts.
        seed: Of the exchange.

    Returns:
        For the first token of each answer the one that takes its place, none where there are not
        two or a head is no plain linear layer; and the prompts with their new answers.
    """
    texts: dict[int, str] = {}
    for prompt in prompts:
        texts.setdefault(pair.encoded(prompt).target, prompt.target)
    models = (pair.recipient, *pair.donors.values())
    tokens = sorted(texts) if all(type(_head(model)) is nn.Linear for model in models) else []
    while len(tokens) > 1:
        order = [tokens[i] for i in np.random.default_rng(seed).permutation(len(tokens))]
        exchange = dict(zip(order, (*order[1:], order[0]), strict=True))
        made, misread = [], set[int]()
        for prompt in prompts:
            if (token := (before := pair.encoded(prompt)).target) in exchange:
                prompt = _answered(prompt, texts[exchange[token]])
                after = pair.encoded(prompt)
                if (after.target, after.ids) != (exchange[token], before.ids):
                    # After another text, or one of the two has a blank of its own before it.
                    misread.add(token if before.blanks > after.blanks else exchange[token])
            made.append(prompt)
        if not misread:
            return exchange, made
        tokens = [token for token in tokens if token not in misread]
    return {}, list(prompts)


def _answered(prompt: Prompt, answer: str) -> Prompt:
    fields = {}
    for name, text in prompt.fact.fields.items():
        fields[name] = answer if text == prompt.target else text
    return replace(prompt, fact=replace(prompt.fact, fields=fields), target=answer)


def renamed_pair(pair: ModelPair, name: str, exchange: Mapping[int, int]) -> ModelPair:
    """A pair under another name, with tokens exchanged in the heads of its models.

    Args:
        pair: The models, with which the new pair shares all other weights.
        name: The new name.
        exchange: For each token the one that takes its place.
    """
    made = {key: _exchanged(model, exchange) for key, model in pair.donors.items()}
    recipient = _exchanged(pair.recipient, exchange)
    return ModelPair(
        name, recipient, made, pair.tokenizer, pair.family, chat_template=pair.chat_template
    )


def _exchanged(model: PreTrainedModel, exchange: Mapping[int, int]) -> PreTrainedModel:
    copy = shared_copy(model)
    if exchange:
        head = _head(copy)
        rows = torch.arange(head.weight.shape[0], device=head.weight.device)
        rows[list(exchange.values())] = rows[list(exchange)]
        head.weight = nn.Parameter(head.weight.detach()[rows], requires_grad=False)
        if head.bias is not None:
            head.bias = nn.Parameter(head.bias.detach()[rows], requires_grad=False)
    return copy


def _head(model: PreTrainedModel) -> nn.Linear:
    head: nn.Linear = model.get_output_embeddings()
    return head
