"""Any token of a set."""

from __future__ import annotations

from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.errors import InputError
from kgbench.metrics import Read
from kgbench.models.encoding import Encoded, Encoder
from kgbench.readouts._base import Readout


@dataclass(frozen=True)
class TokenSet(Readout):
    """Any of some words as the next token, in every spelling that is one token.

    A word is looked up with and without a blank before it, and with a small and a capital first
    letter. The probability is that of all of these tokens together; the rank is that of the best.
    """

    name = "token_set"
    about = "any of some words, with and without a blank and a capital, as the next token"

    metric = "logit_diff"

    texts: tuple[str, ...]
    """The words, such as Sorry."""

    def read(self, prompt: Prompt, encoded: Encoded, encoder: Encoder) -> Encoded:
        """The prompt with the set of tokens as what is right.

        Raises:
            InputError: No spelling of a word is one token, or there are no words.
        """
        if not self.texts:
            raise InputError(f"readout {self.name!r}: give texts, the words of the set")
        right: dict[int, None] = {}
        for text in self.texts:
            tokens = dict[int, None]()
            for spelling in spellings(text):
                ids = encoder.tokenizer(spelling, add_special_tokens=False)["input_ids"]
                if len(ids) == 1:
                    tokens[int(ids[0])] = None
            if not tokens:
                pieces = " and ".join(map(repr, encoder.tokenizer.tokenize(text)))
                raise InputError(
                    f"readout {self.name!r}: no spelling of {text!r} is one token of this tokenizer, "
                    f"which splits it into {pieces}; give another word, or take the readout "
                    "'sequence'"
                )
            right |= tokens
        return encoded.reading([Read(len(encoded.ids) - 1, tuple(sorted(right)))])


def spellings(text: str) -> list[str]:
    """A word with a small and a capital first letter, and with and without a blank before it."""
    bare = text.strip()
    words = (bare, bare[:1].lower() + bare[1:], bare[:1].upper() + bare[1:])
    return list(dict.fromkeys([text, *words, *(f" {word}" for word in words)]))
