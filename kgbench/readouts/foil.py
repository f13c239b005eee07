"""The answer's first token against that of another answer."""

from __future__ import annotations

from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.errors import InputError
from kgbench.metrics import Read
from kgbench.models.encoding import Encoded, Encoder
from kgbench.readouts._base import Readout


@dataclass(frozen=True)
class Foil(Readout):
    """The first token of the answer among itself and that of a foil.

    `logit_diff` is the difference of the two logits, and a rank of 1 means that the answer is ahead.
    """

    name = "foil"
    about = "the first token of the answer against that of a given other answer"

    metric = "logit_diff"

    text: str = ""
    """The foil; by default that of each case."""
    column: str = "foil"
    """Column of a case that holds its foil."""

    def read(self, prompt: Prompt, encoded: Encoded, encoder: Encoder) -> Encoded:
        """The prompt with the two tokens as all that there is.

        Raises:
            InputError: The case has no foil, or it begins with the answer's token.
        """
        foil = self.text or prompt.fact.fields.get(self.column, "")
        where = f"readout {self.name!r}: fact {prompt.fact.id}, prompt {prompt.name!r}"
        if not foil:
            raise InputError(
                f"{where} has no foil: give a column {self.column!r}, or one foil for all by "
                "--readout-arg text=TEXT"
            )
        right, other = encoded.target, encoder.added(prompt, encoded, foil)[0]
        if right == other:
            raise InputError(
                f"{where}: the answer {prompt.target!r} and the foil {foil!r} begin with the same "
                f"token, {encoder.tokenizer.decode([right])!r}; give another foil"
            )
        return encoded.reading([Read(len(encoded.ids) - 1, (right,), (right, other))])
