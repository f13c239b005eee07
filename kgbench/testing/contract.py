"""The contract of localizers: laws that hold of each, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import getdoc

from kgbench.errors import LawError
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer, ScoringLocalizer
from kgbench.testing.declarations import DECLARATIONS
from kgbench.testing.interventions import laws_of_intervention
from kgbench.testing.pico import PICO_FAMILIES
from kgbench.testing.scorers import SCORING
from kgbench.testing.trial import Trial

__all__ = ["Law", "Verdict", "check_localizer", "laws_of"]

Law = Callable[[Trial], None]
"""Passes, or raises with the reason; its name says what holds, and the first line of its docstring says it in full."""


@dataclass(frozen=True)
class Verdict:
    """Whether a law holds of a localizer on the models of a family."""

    law: Law
    family: str
    reason: str | None
    """Why it does not hold; None where it does."""

    @property
    def name(self) -> str:
        """The law's name."""
        return self.law.__name__

    @property
    def states(self) -> str:
        """The law in a sentence."""
        return (getdoc(self.law) or "").partition("\n")[0]

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.reason is None


def laws_of(localizer: AbstractLocalizer) -> tuple[Law, ...]:
    """The laws of a localizer's kind: what it says of itself, then what it does."""
    if isinstance(localizer, InterventionLocalizer):
        return (*DECLARATIONS, *laws_of_intervention(localizer))
    return (*DECLARATIONS, *(SCORING if isinstance(localizer, ScoringLocalizer) else ()))


def check_localizer(localizer: AbstractLocalizer, families: Sequence[str] = ()) -> Iterator[Verdict]:
    """Try every law of a localizer.

    Args:
        localizer: The localizer with its parameters.
        families: Keys of `PICO_FAMILIES`; by default all.

    Yields:
        A verdict for each law and family, in the order of families, then of laws.
    """
    for family in families or PICO_FAMILIES:
        trial = Trial(localizer, family)
        for law in laws_of(localizer):
            yield Verdict(law, family, _why_not(law, trial))


def _why_not(law: Law, trial: Trial) -> str | None:
    try:
        law(trial)
    except LawError as error:
        return str(error)
    except Exception as error:  # whatever an author's code raises
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None
