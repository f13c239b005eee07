"""A text of any length."""

from __future__ import annotations

from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.errors import InputError
from kgbench.metrics import Read
from kgbench.models.encoding import Encoded, Encoder
from kgbench.readouts._base import Readout


@dataclass(frozen=True)
class WholeText(Readout):
    """All tokens of the answer, each read after the prompt and the tokens before it.

    `logprob` is the log-probability of the whole text (nats), and a rank of 1 means that greedy
    decoding gives it. Its tokens are in LT, and in no other region.
    """

    name = "sequence"
    about = "log-probability of a text of any length, its tokens are in LT"

    text: str = ""
    """The text; by default the answer of each case."""

    def read(self, prompt: Prompt, encoded: Encoded, encoder: Encoder) -> Encoded:
        """The prompt with all tokens of the text but the last, each of which is read.

        Raises:
            InputError: The case has no answer, and no text was given.
        """
        text = self.text or prompt.target
        if not text:
            raise InputError(
                f"readout {self.name!r}: fact {prompt.fact.id} has no answer: give its row a "
                "target, or one text for all by --readout-arg text=TEXT"
            )
        last, tokens = len(encoded.ids) - 1, encoder.added(prompt, encoded, text)
        reads = [Read(last + i, (token,)) for i, token in enumerate(tokens)]
        return encoded.reading(reads, tokens[:-1])
