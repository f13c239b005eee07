"""What a readout is: where an answer is read and what counts there, or what texts are to have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

from kgbench.data import Prompt
from kgbench.errors import InputError, check_choice
from kgbench.models.encoding import Encoded, Encoder
from kgbench.sites import DECODE
from kgbench.stats.scores import METRICS


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
    metrics: ClassVar[tuple[str, ...]] = METRICS
    """The metrics that it has."""
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


COLDEST = 1e-6
"""Least temperature but 0: divided by less, logits are no numbers of single precision."""


@dataclass(frozen=True)
class TextReadout(Readout):
    """A property of the texts that a model writes after a prompt.

    `prob` is the share of a case's texts that have it, an estimate of how probable it is; of what
    has degrees, as by a judge, their mean. There is no other metric, and no derivative.
    """

    metric = "prob"
    metrics = ("prob",)

    tokens: int = 20
    """How many tokens a text has at most; it ends before a token that ends texts."""
    samples: int = 1
    """Texts of each case, under each configuration."""
    temperature: float = 0.0
    """0 for the one text that greedy decoding gives."""
    seed: int = 0
    """Of the draws, which are the same under all configurations; by default that of the run."""
    decode: str = field(default="lt", metadata={"choices": tuple(DECODE)})
    """How the tokens of the text are treated: as the last token of the prompt (lt), as its last
    region before that (last), or with the weights of one model (base, finetuned)."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UnknownNameError: There is no such policy of decoding.
            InputError: A number is out of its range.
        """
        check_choice(f"decode of readout {self.name!r}:", self.decode, DECODE)
        for name, least in (("tokens", 1), ("samples", 1), ("seed", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise InputError(
                    f"readout {self.name!r}: {name} is a whole number from {least} on, not {value!r}"
                )
        temperature = self.temperature
        is_number = type(temperature) in (int, float)
        if not is_number or not (temperature == 0 or COLDEST <= temperature < inf):
            raise InputError(
                f"readout {self.name!r}: temperature is 0 or a number from {COLDEST:g} on, not "
                f"{self.temperature!r}"
            )
        if self.samples > 1 and not self.temperature:
            raise InputError(
                f"readout {self.name!r}: greedy texts are alike, so that {self.samples} samples "
                "need a temperature: give temperature=1"
            )

    @property
    def no_objective(self) -> str:
        """Why sites cannot be scored by it."""
        return (
            f"readout {self.name!r} has no objective: sites are scored by log-probabilities and "
            "their derivatives, and a share of texts has none; rank sites by another --readout, "
            "such as token_set, and write texts under grafts of the best (--graft)"
        )

    def read(self, prompt: Prompt, encoded: Encoded, encoder: Encoder) -> Encoded:
        """The prompt alone, whose answer nothing may ask for."""
        alone = encoded.without_blanks() if encoded.blanks else encoded
        return alone.withheld(self.no_objective)

    @abstractmethod
    def scores(self, prompt: Prompt, texts: Sequence[str]) -> Sequence[float]:
        """How far each text has the property: 0 not at all, 1 wholly.

        Args:
            prompt: The prompt, without which the texts are.
            texts: What was written after it, special tokens left out.

        Raises:
            InputError: A text cannot be judged.
        """

    def judged(self, prompt: Prompt, texts: Sequence[str]) -> float:
        """Mean of the scores of a prompt's texts, checked.

        Raises:
            InputError: They are not one number from 0 to 1 for each.
        """
        scores = list(self.scores(prompt, texts))
        if len(scores) != len(texts) or not all(0 <= score <= 1 for score in scores):
            raise InputError(
                f"readout {self.name!r}: {scores} for {len(texts)} texts of fact "
                f"{prompt.fact.id}; expected one number from 0 to 1 for each"
            )
        return sum(map(float, scores)) / len(scores)
