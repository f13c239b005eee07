"""Prompts as tokens: ids, the tokens of each region, and the first token of the answer.

A prompt is a text, or messages that the tokenizer's chat template writes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from kgbench.data import Message, Prompt
from kgbench.data.prompts import WITHHELD, span_tokens, text_offsets, token_regions
from kgbench.errors import InputError, ModelError, RegionError, first_line
from kgbench.metrics import Read
from kgbench.sites import missing_region


@dataclass(frozen=True)
class Encoded:
    """One prompt as a model reads it."""

    ids: tuple[int, ...]
    regions: Mapping[str, tuple[int, ...]]
    """Token indices of each region the prompt has."""
    first: int | str = field(repr=False)
    """Id of the first token that `prompt + " " + object` adds to `ids`; or why it is withheld."""
    blanks: int = 0
    """Tokens at the end of `ids` that are the blank before the object.

    Some tokenizers keep it apart, as before a number: it is the same for every object, so that the
    model is given it, and the target is the token after it.
    """
    text: str = field(default="", repr=False, compare=False)
    """What was read: the prompt's text, or what the chat template makes of its messages."""
    offsets: tuple[tuple[int, int], ...] = field(default=(), repr=False, compare=False)
    """As of `kgbench.data.prompts.text_offsets`, in that text."""
    reads: tuple[Read, ...] = field(default=(), repr=False)
    """What is read out; empty for the target after the last token."""

    @property
    def target(self) -> int:
        """Id of the first token of the answer.

        Raises:
            InputError: It is withheld.
        """
        if isinstance(self.first, str):
            raise InputError(self.first)
        return self.first

    @property
    def answer(self) -> tuple[Read, ...]:
        """What is read out."""
        return self.reads or (Read(len(self.ids) - 1, (self.target,)),)

    @property
    def positions(self) -> tuple[int, ...]:
        """Tokens after which the answer is read."""
        return tuple(read.token for read in self.reads) or (len(self.ids) - 1,)

    def reading(self, reads: Sequence[Read], more: Sequence[int] = ()) -> Encoded:
        """The prompt with other reads, and with further tokens, which belong to LT.

        Args:
            reads: What is read out.
            more: Tokens of the answer, after each of which it goes on.
        """
        last, ids = len(self.ids) - 1, (*self.ids, *more)
        regions = {**self.regions, "LT": tuple(range(last, len(ids)))}
        target = reads[0].right[0]
        return Encoded(ids, regions, target, self.blanks, self.text, self.offsets, tuple(reads))

    def tokens(self, region: str) -> tuple[int, ...]:
        """Token indices of a region.

        Raises:
            RegionError: The prompt does not have it.
        """
        if region not in self.regions:
            raise RegionError(f"{missing_region(region, self.regions)}: {self.text!r}")
        return self.regions[region]

    def located(self, names: Collection[str]) -> Mapping[str, tuple[int, ...]]:
        """The regions, and the tokens of the substrings among the names of a graft's regions.

        Raises:
            RegionError: A substring does not occur exactly once, or shares a token with other
                words.
        """
        regions = dict(self.regions)
        for name in names:
            if name[0] not in "'\"":
                continue
            words = name[1:-1]
            starts = [match.start() for match in re.finditer(f"(?={re.escape(words)})", self.text)]
            if len(starts) != 1:
                raise RegionError(
                    f"the substring {name} stands {len(starts)} times in the text {self.text!r}; "
                    "quote words that stand there once"
                )
            span = starts[0], starts[0] + len(words)
            regions[name] = tuple(span_tokens(self.text, span, self.offsets, name))
        return regions

    def withheld(self, reason: str = WITHHELD) -> Encoded:
        """The same without its answer, which nothing may ask for.

        Args:
            reason: Why there is none.
        """
        reads = tuple(Read(read.token, ()) for read in self.reads)
        return replace(self, first=reason, blanks=0, reads=reads)

    def without_blanks(self) -> Encoded:
        """The prompt alone, whose target is the blank if there is one."""
        end = len(self.ids) - self.blanks
        regions = {**self.regions, "LT": (end - 1,)}
        target = (*self.ids, self.target)[end]
        return replace(self, ids=self.ids[:end], regions=regions, first=target, blanks=0)


class Encoder:
    """Turns prompts into tokens with one tokenizer.

    Args:
        tokenizer: A fast tokenizer; it determines whether a BOS token comes first.
        chat_template: Write messages by the tokenizer's chat template, and a text as a user's
            turn; the answer is read where the model's turn begins.

    Raises:
        ModelError: The tokenizer gives no character offsets, adds a token at the end, or has no
            chat template where one is asked for.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat_template: bool = False) -> None:
        if not tokenizer.is_fast:
            raise ModelError(
                "the tokenizer is a slow one, which gives no character offsets; save it as "
                "tokenizer.json"
            )
        self.tokenizer, self.chat_template = tokenizer, chat_template
        self._name = f"{type(tokenizer).__name__} of {len(tokenizer)} tokens"
        self.before = self.after = ""
        """What the chat template writes around a user's turn."""
        if chat_template:
            if not tokenizer.chat_template:
                raise ModelError(
                    "the base's tokenizer has no chat template; leave --chat-template off, or give "
                    "it the finetuned model's (tokenizer.chat_template = …, save_pretrained)"
                )
            text, [(start, end)] = self._chat([Message("user", "a")])
            self.before, self.after = text[:start], text[end:]
        with_special = tokenizer("a", add_special_tokens=True)["input_ids"]
        without = tokenizer("a", add_special_tokens=False)["input_ids"]
        self.bos = len(with_special) > len(without)
        if with_special[self.bos :] != without:
            raise ModelError(
                "the tokenizer adds tokens after the text; prompts must end where the text ends, "
                "so switch its end token off"
            )

    def __call__(self, prompt: Prompt) -> Encoded:
        """Encode a prompt.

        Raises:
            RegionError: A region cannot be located, or the prompt's tokens are not a prefix of
                those of prompt and target.
        """
        text, messages = prompt.text, prompt.messages or (Message("user", prompt.text),)
        contents = [(0, len(text))]
        try:
            if self.chat_template:
                text, contents = self._chat(messages)
            elif prompt.messages:
                raise ModelError(
                    "it has messages, which the tokenizer's chat template writes: switch it on by "
                    "--chat-template"
                )
        except ModelError as error:
            raise ModelError(f"fact {prompt.fact.id}, prompt {prompt.name!r}: {error}") from None
        encoding = self.tokenizer(
            text,
            add_special_tokens=not self.chat_template,
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
        )
        ids = tuple(encoding["input_ids"])
        special = list(map(bool, encoding["special_tokens_mask"]))
        if self.chat_template:  # the template writes BOS as text, so the tokenizer does not mark it
            special[0] = ids[0] == self.tokenizer.bos_token_id
        offsets = text_offsets(encoding["offset_mapping"], special)
        spans, begin = {}, 0  # of a content in the prompt's text
        chat = {"SYS": list[int](), "TPL": list(range(len(ids)))}
        for message, (first, last) in zip(messages, contents, strict=True):
            shift = first - begin
            for name, (start, end) in prompt.spans.items():
                if first <= start + shift and end + shift <= last:
                    spans[name] = (start + shift, end + shift)
            begin = last - shift + 1
            # A token that straddles content and template is the template's.
            inside = [i for i, (start, end) in enumerate(offsets) if first <= start and end <= last]
            chat["TPL"] = sorted({*chat["TPL"]}.difference(inside))
            chat["SYS"] += inside if message.role == "system" else []
        framed = replace(prompt, text=text, spans=spans)
        regions = token_regions(framed, encoding["offset_mapping"], special, tokenizer=self._name)
        regions.update({name: at for name, at in chat.items() if at and self.chat_template})
        tokens = {name: tuple(indices) for name, indices in regions.items()}
        if not prompt.target:
            reason = (
                f"fact {prompt.fact.id}, prompt {prompt.name!r} has no answer, whose first token is "
                "read: give the row a target, or choose a readout that needs none"
            )
            return Encoded(ids, tokens, reason, 0, text, offsets)
        answered = _answered(text, prompt.target)
        encoding = self.tokenizer(
            answered, add_special_tokens=not self.chat_template, return_offsets_mapping=True
        )
        longer = tuple(encoding["input_ids"])
        first = first_word(answered, encoding["offset_mapping"], len(ids))
        if first >= len(longer) or longer[: len(ids)] != ids:
            raise RegionError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r}: the tokens of the prompt are not "
                "a prefix of the tokens of prompt and "
                f"target {prompt.target!r} under {self._name}, so there is no first target token"
            )
        tokens["LT"] = (first - 1,)
        return Encoded(longer[:first], tokens, longer[first], first - len(ids), text, offsets)

    def _chat(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """The text that the chat template writes, and the [start, end) of each content in it.

        Raises:
            ModelError: It does not render, or does not repeat the contents as they are.
        """
        marked = [message._replace(content=f"kgbench-{i};") for i, message in enumerate(messages)]
        text, *around = re.split(r"kgbench-\d+;", self._written(marked))
        contents = []
        for message, after in zip(messages, around, strict=False):
            contents.append((len(text), len(text) + len(message.content)))
            text += message.content + after
        if len(around) != len(messages) or text != self._written(messages):
            raise ModelError(
                "the tokenizer's chat template does not repeat the user's words as they are; "
                "leave --chat-template off"
            )
        return text, contents

    def _written(self, messages: Sequence[Message]) -> str:
        continued = messages[-1].role == "assistant"
        try:
            text: Any = self.tokenizer.apply_chat_template(
                [message._asdict() for message in messages],
                tokenize=False,
                add_generation_prompt=not continued,
                continue_final_message=continued,
            )
        except Exception as error:  # the template is a program from outside
            raise ModelError(
                f"the tokenizer's chat template does not render: {type(error).__name__}: "
                f"{first_line(error)}; leave --chat-template off, or mend the template"
            ) from error
        return str(text)

    def added(self, prompt: Prompt, encoded: Encoded, answer: str) -> tuple[int, ...]:
        """The tokens that an answer adds to a prompt, after a blank.

        Raises:
            RegionError: The prompt's tokens are not a prefix of those of prompt and answer.
        """
        ids = tuple(self.ids(_answered(encoded.text, answer)))
        if ids[: len(encoded.ids)] != encoded.ids or len(ids) == len(encoded.ids):
            raise RegionError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r}: the tokens of the prompt are not "
                f"a prefix of the tokens of prompt and answer {answer!r} under {self._name}"
            )
        return ids[len(encoded.ids) :]

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, with BOS where the tokenizer adds one."""
        return list(self.tokenizer(text, add_special_tokens=not self.chat_template)["input_ids"])


def _answered(text: str, answer: str) -> str:
    return f"{text}{'' if text[-1].isspace() else ' '}{answer}"


def first_word(text: str, offsets: Sequence[tuple[int, int]], start: int) -> int:
    """Index of the first token that holds more than blanks; the number of tokens if none does.

    Every reading of an answer begins there: the tokens of blanks before it are given.

    Args:
        text: The text that was encoded.
        offsets: Per token its [start, end) characters in the text.
        start: Index of the first token to look at.
    """
    while start < len(offsets) and not text[slice(*offsets[start])].strip():
        start += 1
    return start
