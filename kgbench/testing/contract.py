"""The contract of localizers: laws that hold of each, whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import getdoc

from kgbench import __version__
from kgbench.errors import InputError, LawError
from kgbench.leaderboard.submission import Contract
from kgbench.localizers import (
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    check_name,
    create,
    fingerprint,
    is_foreign,
)
from kgbench.records import Record
from kgbench.runner.rerun import Places, argument_text, localizer_of
from kgbench.runner.third_party import isolated
from kgbench.testing.declarations import DECLARATIONS
from kgbench.testing.interventions import laws_of_intervention
from kgbench.testing.pico import PICO_FAMILIES
from kgbench.testing.scorers import SCORING
from kgbench.testing.trial import Trial

__all__ = ["Checked", "Law", "Verdict", "check_localizer", "check_named", "contract_of", "laws_of"]

Law = Callable[[Trial], None]
"""Passes, or raises with the reason; its name says what holds, and the first line of its docstring says it in full."""


@dataclass(frozen=True)
class Verdict:
    """Whether a law holds of a localizer on the models of a family."""

    name: str
    """The law's name."""
    states: str
    """The law in a sentence."""
    family: str
    reason: str | None
    """Why it does not hold; None where it does."""

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.reason is None


def laws_of(localizer: AbstractLocalizer) -> tuple[Law, ...]:
    """The laws of a localizer's kind: what it says of itself, then what it does."""
    if isinstance(localizer, InterventionLocalizer):
        return (*DECLARATIONS, *laws_of_intervention(localizer))
    return (*DECLARATIONS, *(SCORING if isinstance(localizer, ScoringLocalizer) else ()))


def check_localizer(
    localizer: AbstractLocalizer, families: Sequence[str] = ()
) -> Iterator[Verdict]:
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
            yield Verdict(
                law.__name__, (getdoc(law) or "").partition("\n")[0], family, _why_not(law, trial)
            )


@dataclass(frozen=True)
class Checked:
    """A localizer, and the verdict of each law on each family."""

    name: str
    version: str
    """As records have it."""
    kind: str
    verdicts: tuple[Verdict, ...]

    @property
    def contract(self) -> Contract:
        """What a submission says of it."""
        laws = dict.fromkeys(verdict.name for verdict in self.verdicts)
        broken = {verdict.name for verdict in self.verdicts if not verdict.holds}
        return Contract(
            kgbench=__version__, laws=len(laws), broken=tuple(law for law in laws if law in broken)
        )


def check_named(
    target: str,
    arguments: Mapping[str, str],
    families: Sequence[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> Checked:
    """Try every law of a localizer by its name or file; one that is not kgbench's own in a process of its own.

    Args:
        target: What `--localizer` takes.
        arguments: Parameters as text.
        families: Keys of `PICO_FAMILIES`; by default all.
        progress: Progress callback.

    Raises:
        InputError: It does not load, a parameter does not read, or it ends its process.
    """
    if is_foreign(target):
        check_name(target)
        return isolated(target, _check_here, target, arguments, families, progress=progress)
    return _check_here(target, arguments, families, progress)


def _check_here(
    target: str,
    arguments: Mapping[str, str],
    families: Sequence[str],
    progress: Callable[[int, int, str], None] | None = None,
) -> Checked:
    made = create(target, arguments, seed=0)
    total = len(laws_of(made)) * len(families or PICO_FAMILIES)
    verdicts: list[Verdict] = []
    for verdict in check_localizer(made, families):
        verdicts.append(verdict)
        if progress is not None:
            progress(len(verdicts), total, f"{made.name} on {verdict.family}")
    version = " ".join(filter(None, (made.version, fingerprint(target))))
    return Checked(made.name, version, made.kind, tuple(verdicts))


def contract_of(record: Record, localizer: str | None = None) -> Contract:
    """Try every law on a record's method.

    Args:
        record: The record.
        localizer: Its name or `path/to/file.py:Class`; by default the installed one of its name.

    Raises:
        InputError: The code is not at hand or is not what ran, or it ends its process.
    """
    what = record.identity.localizer
    # A seed and what is told of a plant belong to a run, not to the method.
    arguments = {
        key: argument_text(value)
        for key, value in what.parameters.items()
        if key not in ("seed", "truth", "graded")
    }
    checked = _tried(localizer_of(record, Places(localizer=localizer)), tuple(arguments.items()))
    ran = " ".join(part for part in what.version.split(" ") if part != "scan")
    if (checked.name, checked.version) != (what.name, ran):
        raise InputError(
            f"the code at hand is {checked.name} {checked.version}, and the run is of {what.name} {ran}: run it again"
        )
    return checked.contract


@cache
def _tried(target: str, arguments: tuple[tuple[str, str], ...]) -> Checked:
    """The verdicts on a method; several runs of one share them."""
    return check_named(target, dict(arguments))


def _why_not(law: Law, trial: Trial) -> str | None:
    try:
        law(trial)
    except LawError as error:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever an author's code raises
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None
