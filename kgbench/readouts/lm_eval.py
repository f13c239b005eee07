"""Written texts that are right by a metric of lm-eval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from inspect import signature
from typing import Any

from kgbench.data import Prompt
from kgbench.errors import InputError, check_choice, first_line
from kgbench.extras import install_command
from kgbench.models.encoding import Encoded, Encoder
from kgbench.readouts._base import TextReadout


@dataclass(frozen=True)
class TextMetric(TextReadout):
    """A metric of lm-eval that compares one written text with the answer."""

    name = "lm_eval"
    about = "a metric of lm-eval, such as exact_match, of written texts against the answer"

    scorer: str = "exact_match"
    """The metric, by its name in lm-eval; blanks around a text do not count."""
    switches: tuple[str, ...] = ()
    """What of it is switched on, such as ignore_case,ignore_punctuation."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UnknownNameError: lm-eval has no such metric, or there is no such policy of decoding.
            InputError: A number is out of its range, lm-eval is not installed, or the metric does
                not take one text and these switches.
        """
        super().__post_init__()
        where = f"readout {self.name!r}:"
        if find_spec("lm_eval") is None:
            raise InputError(f"{where} this needs lm-eval: {install_command('lm-eval')}")
        from lm_eval.api import metrics, registry

        assert metrics  # which registers lm-eval's own
        names = [each for each in registry.METRIC_REGISTRY if _takes_one(registry, each)]
        check_choice(f"{where} metric of one text", self.scorer, names)
        self._score("a", "a")

    @property
    def version(self) -> str:  # type: ignore[override]  # of the code that scores
        """Version of the readout, and of lm-eval."""
        return f"1 lm-eval {version('lm_eval')}"

    def read(self, prompt: Prompt, encoded: Encoded, encoder: Encoder) -> Encoded:
        """The prompt alone.

        Raises:
            InputError: There is no answer to compare a text with.
        """
        if not prompt.target:
            raise InputError(
                f"readout {self.name!r}: fact {prompt.fact.id} has no answer to compare a text "
                "with: give its row a target"
            )
        return super().read(prompt, encoded, encoder)

    def scores(self, prompt: Prompt, texts: Sequence[str]) -> Sequence[float]:
        """The metric of each text by itself."""
        return [self._score(text.strip(), prompt.target.strip()) for text in texts]

    def _score(self, text: str, answer: str) -> float:
        from lm_eval.api.registry import get_metric

        try:
            score: Any = get_metric(self.scorer)(
                predictions=[text], references=[answer], **dict.fromkeys(self.switches, True)
            )
            return float(score[self.scorer] if isinstance(score, dict) else score)
        except Exception as error:  # of a registered metric, which may raise anything
            raise InputError(
                f"readout {self.name!r}: the metric {self.scorer!r} with the switches "
                f"{', '.join(self.switches) or 'none'} does not score a text: {first_line(error)}"
            ) from error


def _takes_one(registry: Any, name: str) -> bool:
    """Whether a metric takes a text and its reference; others are of a task's answers together."""
    return "items" not in signature(registry.METRIC_REGISTRY[name]).parameters
