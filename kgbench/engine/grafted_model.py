"""A pair under a graft as a transformers model, which generates.

Invariant: a token is computed with the weights of its treatment when it is read, and what later
tokens see of it, its keys and values, stays in the cache. So each step equals a token-by-token pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from kgbench.data import Prompt
from kgbench.engine.edits import Treatment
from kgbench.engine.forward import Weights, Wiring, treated
from kgbench.engine.plan import head_sets
from kgbench.engine.treatment import (
    Configuration,
    parse_configuration,
    parted,
    token_treatments,
)
from kgbench.errors import InputError, RegionError, check_choice
from kgbench.models.pair import ModelPair, check_pair
from kgbench.models.tensors import shared_copy
from kgbench.sites import DECODE, Graft, is_mark

Regions = Callable[[tuple[int, ...]], Mapping[str, Sequence[int]]]
"""Tokens of each region of a prompt, given its ids."""


def as_model(
    pair: ModelPair,
    graft: Configuration | str,
    decode: str = "lt",
    prompts: Sequence[Prompt] | Regions = (),
) -> PreTrainedModel:
    """A transformers model of a pair under a graft.

    It has `generate` with all that belongs to it (cache, batches, sampling, chat template), and goes
    wherever a model goes: a pipeline, lm-eval's `hf`. Its tensors are the pair's. What is given
    without a cache is the prompt, and its last token is LT; all that follows is decoded. A batch is
    padded on the left, with an attention mask.

    Args:
        pair: The models.
        graft: A graft expression, `PRE` (the base) or `SFT` (the finetuned model).
        decode: Name of a policy in `DECODE`.
        prompts: Where the regions of a prompt are: prompts of `load_prompts`, or a function of its
            ids. Without them a prompt has BOS, LT and ALL.

    Returns:
        A model of the base's class, in eval mode.

    Raises:
        UnknownNameError: There is no such policy, donor or component.
        InputError: A term of the graft has no sites in this model, or prompts of one text have
            other regions.
    """
    check_pair(pair)
    check_choice("decode policy", decode, DECODE)
    parsed = parse_configuration(graft) if isinstance(graft, str) else graft
    pair = parted(pair, [parsed])
    names = parsed.regions() if isinstance(parsed, Graft) else frozenset[str]()
    if not prompts and (marked := sorted(n for n in names if n == "FE" or is_mark(n))):
        raise RegionError(
            f"graft {str(graft)!r}: {', '.join(marked)} follows from no text alone: give prompts=, "
            "those of kgbench.load_prompts or a function of ids"
        )
    regions = prompts if callable(prompts) else _regions_of(pair, prompts, names)
    grafted = _Grafted(pair, parsed, decode, regions)
    model: Any = shared_copy(pair.recipient).eval()
    model.forward = grafted.forward
    return cast(PreTrainedModel, model)


def _regions_of(pair: ModelPair, prompts: Sequence[Prompt], names: Collection[str]) -> Regions:
    """Regions of some prompts by their ids, of others those that follow from the tokens."""
    by_ids: dict[tuple[int, ...], Mapping[str, Sequence[int]]] = {}
    for prompt in prompts:
        encoded = pair.encoded(prompt)
        located = encoded.located(names)
        if by_ids.setdefault(encoded.ids, located) != located:
            raise InputError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r} reads as another prompt does and "
                "has other regions, so that they do not follow from its text: leave one out"
            )
    begin = pair.tokenizer.bos_token_id

    def regions(ids: tuple[int, ...]) -> Mapping[str, Sequence[int]]:
        if ids in by_ids:
            return by_ids[ids]
        bos = {"BOS": (0,)} if ids[0] == begin else {}
        return {**bos, "LT": (len(ids) - 1,)}

    return regions


class _Grafted:
    """The forward of a model under a graft."""

    def __init__(
        self, pair: ModelPair, graft: Configuration, decode: str, regions: Regions
    ) -> None:
        self.pair, self.graft, self.decode, self.regions = pair, graft, decode, regions
        self.wiring = Wiring(pair)
        self.numbers: dict[Treatment, int] = {}
        """Of the distinct treatments so far, in order of first occurrence."""
        self.later = np.empty(0, dtype=np.int64)
        """Treatment of decoded tokens in each row of the batch."""
        self._lone({"LT"})  # finds wrong input at once

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """As the base's own forward.

        Raises:
            InputError: Embeddings are given in place of ids, or a batch has other rows than the
                prompts of its cache.
            RegionError: A prompt lacks a region of the graft.
        """
        if input_ids is None:
            raise InputError("a graft depends on tokens: give input_ids, not embeddings")
        rows, length = input_ids.shape
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if past == 0:
            numbers = self._prompts(input_ids, attention_mask)
        elif len(self.later) != rows and len({*self.later.tolist()}) > 1:
            raise InputError("the batch has other rows than the prompts that the cache is of")
        else:
            numbers = np.repeat(self.later[:1] if len(self.later) != rows else self.later, length)
            numbers = np.resize(numbers, rows * length)
        kept = np.arange(length)
        if not isinstance(logits_to_keep, int):
            kept = kept[logits_to_keep.cpu().numpy()]
        elif logits_to_keep:
            kept = kept[-logits_to_keep:]
        read = (np.arange(rows)[:, None] * length + kept).reshape(-1)
        if position_ids is None:
            position_ids = torch.arange(past, past + length, device=input_ids.device)[None]
        options.pop("return_dict", None)
        with treated(self.wiring, self._weights(), numbers, read) as model:
            output = model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                position_ids=position_ids.expand(rows, length),  # one for each row
                logits_to_keep=0,
                **options,
            )
        output.logits = output.logits.reshape(rows, len(kept), -1)
        if labels is not None:
            words = self.pair.recipient.config.vocab_size
            output.loss = self.pair.recipient.loss_function(output.logits, labels, vocab_size=words)
        return cast(CausalLMOutputWithPast, output)

    def _prompts(self, ids: Tensor, mask: Tensor | None) -> np.ndarray:
        """Number of the treatment of each token of a batch of prompts; padding has the first's."""
        tokens = ids.cpu().numpy()
        given = np.ones_like(tokens) if mask is None else mask.cpu().numpy()
        numbers = np.zeros(tokens.shape, dtype=np.int64)
        later = []
        for row, (line, seen) in enumerate(zip(tokens, given, strict=True)):
            at = np.flatnonzero(seen)
            prompt = tuple(line[at].tolist())
            regions = self.regions(prompt)
            try:
                treatments = token_treatments(self.pair, regions, len(prompt), self.graft)
            except RegionError as error:
                text = self.pair.tokenizer.decode(list(prompt))
                raise RegionError(
                    f"graft '{self.graft}' on the prompt {text!r:.80}: {error}"
                ) from None
            of_tokens = list(map(self._number, treatments))
            numbers[row] = of_tokens[0]
            numbers[row, at] = of_tokens
            later.append(self._number(self._decoded(regions, len(prompt))))
        self.later = np.array(later)
        return numbers.reshape(-1)

    def _decoded(self, regions: Mapping[str, Sequence[int]], n: int) -> Treatment:
        """Treatment of a token after a prompt of `n` tokens."""
        everywhere = {"base": "PRE", "finetuned": "SFT" if self.graft == "SFT" else "ALL"}
        if self.decode in everywhere:
            return token_treatments(self.pair, {"LT": (0,)}, 1, everywhere[self.decode])[0]
        if self.decode == "lt":
            return self._lone({"LT"})
        ends = {}
        for name, tokens in regions.items():
            before = [token for token in tokens if token < n - 1]
            if before and name not in ("LT", "BOS", "TPL"):
                ends[name] = max(before)
        last = max(ends.values(), default=None)
        if last is None:
            raise RegionError(
                "decode policy 'last': the prompt has no region before its last token"
            )
        return self._lone({name for name, end in ends.items() if end == last})

    def _lone(self, names: set[str]) -> Treatment:
        """Treatment of a token that is in some regions alone."""
        graft = self.graft.regions() if isinstance(self.graft, Graft) else ()
        regions = {name: (0,) if name in names else () for name in (*graft, *names)}
        return token_treatments(self.pair, regions, 1, self.graft)[0]

    def _number(self, treatment: Treatment) -> int:
        return self.numbers.setdefault(treatment, len(self.numbers))

    def _weights(self) -> Weights:
        """Weight sets of all treatments so far."""
        table = np.stack([np.frombuffer(each.weights, np.uint8) for each in self.numbers])
        return Weights(table, head_sets(self.numbers, table))
