"""Written texts that hold some words, match a pattern, or are equal to a text."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import regex

from kgbench.data import Prompt
from kgbench.errors import InputError
from kgbench.models.encoding import Encoded, Encoder
from kgbench.readouts._base import TextReadout

PATIENCE = 1.0
"""Seconds of the processor for a pattern on one text: some patterns would take years.

So patterns are matched by the package `regex`, which takes a limit, once `re` has accepted them:
what only `regex` knows, as recursion, is refused.
"""

_BRACES = re.compile(r"\\N\{[^}]*\}|\\.|\{(?!\d*,?\d*\})", re.DOTALL)
"""An escape, or a brace that repeats nothing: a literal of `re`, and one of fuzzy matching of `regex`."""


def _literal_braces(pattern: str) -> str:
    """The pattern for `regex`, whose meaning is that of `re`."""
    return _BRACES.sub(lambda match: r"\{" if match[0] == "{" else match[0], pattern)


@dataclass(frozen=True)
class Text(TextReadout):
    """The share of written texts that hold some words, match a pattern, or are equal to a text."""

    name = "text"
    about = "share of written texts that hold some words, match a pattern or are equal to a text"

    contains: str = ""
    """Words in it, capitals as given; by default the answer of each case."""
    pattern: str = ""
    """A regular expression of Python that matches somewhere in it, such as `(?i)sorry|cannot`."""
    exact: str = ""
    """A text that it is equal to but for blanks around."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UnknownNameError: There is no such policy of decoding.
            InputError: A number is out of its range, the pattern is no regular expression, or
                several properties are asked for.
        """
        super().__post_init__()
        properties = {name: getattr(self, name) for name in ("contains", "pattern", "exact")}
        for name, value in properties.items():
            if not isinstance(value, str):
                raise InputError(f"readout {self.name!r}: {name} is one text, not {value!r:.80}")
        chosen = [name for name, value in properties.items() if value]
        if len(chosen) > 1:
            raise InputError(
                f"readout {self.name!r}: {' and '.join(chosen)} are two properties: give one, or a "
                "pattern for both"
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "error"
                )  # of classes as [[:alpha:]], which both read otherwise
                re.compile(self.pattern)
            regex.compile(_literal_braces(self.pattern))
        except (re.error, regex.error, Warning, RecursionError, OverflowError) as error:
            raise InputError(
                f"readout {self.name!r}: {self.pattern!r:.80} is no regular expression: {error}"
            ) from error

    def read(self, prompt: Prompt, encoded: Encoded, encoder: Encoder) -> Encoded:
        """The prompt alone.

        Raises:
            InputError: There is nothing that its text is to have.
        """
        if not (self.contains or self.pattern or self.exact or prompt.target):
            raise InputError(
                f"readout {self.name!r}: fact {prompt.fact.id} has no answer that its text could "
                "hold: give --readout-arg contains=WORDS, or pattern, or exact; or a target"
            )
        return super().read(prompt, encoded, encoder)

    def scores(self, prompt: Prompt, texts: Sequence[str]) -> Sequence[float]:
        """Whether each text has the property.

        Raises:
            InputError: The pattern takes too long on a text.
        """
        return [self._has(prompt, text) for text in texts]

    def _has(self, prompt: Prompt, text: str) -> bool:
        if self.exact:
            return text.strip() == self.exact.strip()
        if not self.pattern:
            return (self.contains or prompt.target) in text
        try:
            pattern = _literal_braces(self.pattern)
            return regex.search(pattern, text, timeout=PATIENCE) is not None
        except (TimeoutError, MemoryError, RecursionError):
            raise InputError(
                f"readout {self.name!r}: the pattern {self.pattern!r:.80} takes more than "
                f"{PATIENCE:g} s, or too much memory, on the text {text!r:.80} of fact {prompt.fact.id}; give one without "
                "repetitions inside repetitions"
            ) from None
