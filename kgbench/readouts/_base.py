"""What a readout is: where an answer is read, and what counts there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from kgbench.data import Prompt
from kgbench.models.encoding import Encoded, Encoder


@dataclass(frozen=True)
class Readout(ABC):
    """What of a model's output is measured.

    A subclass is a frozen dataclass whose fields are its parameters. It names the tokens after
    which something is read, and the tokens that count as right there: all figures follow from that
    (`kgbench.metrics.score_reads`), and so do the objectives of methods that take derivatives.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    """One line for `kgbench ls readouts`."""
    metric: ClassVar[str] = "logprob"
    """What ratios are of where nothing else is said."""
    version: ClassVar[str] = "1"
    """Incremented whenever the readout gives other figures."""

    @abstractmethod
    def read(self, prompt: Prompt, encoded: Encoded, encoder: Encoder) -> Encoded:
        """The prompt with what is read out of it.

        Args:
            prompt: The prompt.
            encoded: Its tokens, with the first token of its answer as what is read.
            encoder: Encodes other texts, and other answers after the prompt.

        Raises:
            InputError: The prompt lacks what the readout needs.
        """
