"""Prompts as tokens: ids, the tokens of each region, and the first token of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from kgbench.data import Prompt
from kgbench.data.prompts import WITHHELD, token_regions
from kgbench.errors import InputError, ModelError, RegionError, first_line
from kgbench.metrics import Read

_MARK = "kgbench-user-turn"


@dataclass(frozen=True)
class Encoded:
    """One prompt as a model reads it."""

    ids: tuple[int, ...]
    regions: Mapping[str, tuple[int, ...]]
    """Token indices of each region the prompt has."""
    target: int = field(repr=False)
    """Id of the first token that `prompt + " " + object` adds to `ids`."""
    blanks: int = 0
    """Tokens at the end of `ids` that are the blank before the object.

    Some tokenizers keep it apart, as before a number: it is the same for every object, so that the
    model is given it, and the target is the token after it.
    """
    reads: tuple[Read, ...] = field(default=(), repr=False)
    """What is read out; empty for the target after the last token."""

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
        return Encoded(ids, regions, reads[0].right[0], self.blanks, tuple(reads))

    def without_blanks(self) -> Encoded:
        """The prompt alone, whose target is the blank if there is one."""
        end = len(self.ids) - self.blanks
        regions = {**self.regions, "LT": (end - 1,)}
        return Encoded(self.ids[:end], regions, (*self.ids, self.target)[end])


class EncodedQuestion(Encoded):
    """One prompt as a model reads it, without the answer."""

    def __init__(self, encoded: Encoded) -> None:
        """Withhold the target.

        Args:
            encoded: The prompt with its target.
        """
        object.__setattr__(self, "ids", encoded.ids)
        object.__setattr__(self, "regions", encoded.regions)
        withheld = tuple(Read(read.token, ()) for read in encoded.reads)
        object.__setattr__(self, "reads", withheld)

    @property
    def target(self) -> int:
        """Withheld.

        Raises:
            InputError: Always.
        """
        raise InputError(WITHHELD)


class Encoder:
    """Turns prompts into tokens with one tokenizer.

    Args:
        tokenizer: A fast tokenizer; it determines whether a BOS token comes first.
        chat_template: Wrap the prompt as a user's turn with the tokenizer's chat template; the
            answer is read where the model's turn begins.

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
        self.before = self.after = ""
        if chat_template:
            if not tokenizer.chat_template:
                raise ModelError(
                    "the base's tokenizer has no chat template; leave --chat-template off, or give "
                    "it the finetuned model's (tokenizer.chat_template = …, save_pretrained)"
                )
            turn = [{"role": "user", "content": _MARK}]
            try:
                text: Any = tokenizer.apply_chat_template(
                    turn, tokenize=False, add_generation_prompt=True
                )
            except Exception as error:  # the template is a program from outside
                raise ModelError(
                    f"the tokenizer's chat template does not render: {type(error).__name__}: "
                    f"{first_line(error)}; leave --chat-template off, or mend the template"
                ) from error
            parts = text.split(_MARK)
            if len(parts) != 2:
                raise ModelError(
                    "the tokenizer's chat template does not repeat the user's words as they are; "
                    "leave --chat-template off"
                )
            self.before, self.after = parts
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
        text, shift = f"{self.before}{prompt.text}{self.after}", len(self.before)
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
        spans = {}
        for name, (start, end) in prompt.spans.items():
            spans[name] = (start + shift, end + shift)
        framed = replace(prompt, text=text, spans=spans)
        regions = token_regions(framed, encoding["offset_mapping"], special, tokenizer=self._name())
        answered = f"{text}{'' if text[-1].isspace() else ' '}{prompt.target}"
        encoding = self.tokenizer(
            answered, add_special_tokens=not self.chat_template, return_offsets_mapping=True
        )
        longer = tuple(encoding["input_ids"])
        first = first_word(answered, encoding["offset_mapping"], len(ids))
        if first >= len(longer) or longer[: len(ids)] != ids:
            raise RegionError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r}: the tokens of the prompt are not "
                "a prefix of the tokens of prompt and "
                f"target {prompt.target!r} under {self._name()}, so there is no first target token"
            )
        tokens = {name: tuple(indices) for name, indices in regions.items()}
        tokens["LT"] = (first - 1,)
        return Encoded(longer[:first], tokens, longer[first], first - len(ids))

    def added(self, prompt: Prompt, encoded: Encoded, answer: str) -> tuple[int, ...]:
        """The tokens that an answer adds to a prompt, after a blank.

        Raises:
            RegionError: The prompt's tokens are not a prefix of those of prompt and answer.
        """
        text = f"{self.before}{prompt.text}{self.after}"
        ids = tuple(self.ids(f"{text}{'' if text[-1].isspace() else ' '}{answer}"))
        if ids[: len(encoded.ids)] != encoded.ids or len(ids) == len(encoded.ids):
            raise RegionError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r}: the tokens of the prompt are not "
                f"a prefix of the tokens of prompt and answer {answer!r} under {self._name()}"
            )
        return ids[len(encoded.ids) :]

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, with BOS where the tokenizer adds one."""
        return list(self.tokenizer(text, add_special_tokens=not self.chat_template)["input_ids"])

    def _name(self) -> str:
        return f"{type(self.tokenizer).__name__} of {len(self.tokenizer)} tokens"


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
