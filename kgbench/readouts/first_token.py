"""The first token of the answer."""

from __future__ import annotations

from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.models.encoding import Encoded, Encoder
from kgbench.readouts._base import Readout


@dataclass(frozen=True)
class FirstToken(Readout):
    """The first token of the answer among all tokens, as in the paper (arXiv 2506.20746)."""

    name = "first_token"
    about = "the first token of the answer among all tokens"

    def read(self, prompt: Prompt, encoded: Encoded, encoder: Encoder) -> Encoded:
        """The prompt as it is."""
        return encoded
