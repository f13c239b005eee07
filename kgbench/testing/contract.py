"""The contract of localizers: trying the laws on one, for the command line and for pytest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from inspect import getdoc
from typing import TYPE_CHECKING

from kgbench.errors import InputError, LawError
from kgbench.leaderboard.entries import Contract
from kgbench.localizers import AbstractLocalizer, check_name, create, fingerprint
from kgbench.progress import Progress
from kgbench.records import Record
from kgbench.runner.rerun import argument_text, localizer_of
from kgbench.runner.third_party import isolated
from kgbench.testing.laws import Law, laws_of
from kgbench.testing.pico import PICO_FAMILIES
from kgbench.testing.trial import Trial
from kgbench.version import __version__

if TYPE_CHECKING:
    import pytest


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
            states = (getdoc(law) or "").partition("\n")[0]
            yield Verdict(law.__name__, states, family, _why_not(law, trial))


@dataclass(frozen=True)
class CheckedLocalizer:
    """A localizer, and the verdict of each law on each family."""

    name: str
    version: str
    """As in records."""
    kind: str
    verdicts: tuple[Verdict, ...]

    @property
    def contract(self) -> Contract:
        """The entry of a submission."""
        laws: dict[str, bool] = {}
        for verdict in self.verdicts:
            laws[verdict.name] = laws.get(verdict.name, True) and verdict.holds
        broken = tuple(law for law, holds in laws.items() if not holds)
        return Contract(kgbench=__version__, laws=len(laws), broken=broken)


def check_by_name(
    target: str,
    arguments: Mapping[str, str],
    families: Sequence[str] = (),
    progress: Progress | None = None,
) -> CheckedLocalizer:
    """Try every law of a localizer by its name or file; a third party's in a child process.

    Args:
        target: What `--localizer` takes.
        arguments: Parameters as text.
        families: Keys of `PICO_FAMILIES`; by default all.
        progress: Progress callback.

    Raises:
        InputError: It does not load, a parameter does not read, or it ends its process.
    """
    check_name(target)
    return isolated(target, _check_here, target, arguments, families, progress=progress)


def _check_here(
    target: str,
    arguments: Mapping[str, str],
    families: Sequence[str],
    progress: Progress | None = None,
) -> CheckedLocalizer:
    made = create(target, arguments, seed=0)
    total = len(laws_of(made)) * len(families or PICO_FAMILIES)
    verdicts: list[Verdict] = []
    for verdict in check_localizer(made, families):
        verdicts.append(verdict)
        if progress is not None:
            progress(len(verdicts), total, f"{made.name} on {verdict.family}")
    version = " ".join(filter(None, (made.version, fingerprint(target))))
    return CheckedLocalizer(made.name, version, made.kind, tuple(verdicts))


def contract_of(record: Record, localizer: str | None = None) -> Contract:
    """Try every law on a record's method.

    Args:
        record: The record.
        localizer: Its name or `path/to/file.py:Class`; by default the installed one of its name.

    Raises:
        InputError: The code is not at hand or is not what ran, or it ends its process.
    """
    what = record.identity.localizer
    # A seed and the ground truth of a plant belong to a run, not to the method.
    arguments = {}
    for key, value in what.parameters.items():
        if key not in ("seed", "truth", "graded"):
            arguments[key] = argument_text(value)
    checked = _tried(localizer_of(record, localizer), tuple(arguments.items()))
    ran = " ".join(part for part in what.version.split(" ") if part != "scan")
    if (checked.name, checked.version) != (what.name, ran):
        raise InputError(
            f"the code at hand is {checked.name} {checked.version}, and the run is of {what.name} "
            f"{ran}: run it again"
        )
    return checked.contract


@cache
def _tried(target: str, arguments: tuple[tuple[str, str], ...]) -> CheckedLocalizer:
    """The verdicts on a method; several runs of one share them."""
    return check_by_name(target, dict(arguments))


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


# ---------------------------------------------------------------------------- pytest


@dataclass(frozen=True)
class Check:
    """One law, to be tried on one localizer with the models of one family."""

    law: Law
    trial: Trial

    def __call__(self) -> None:
        """Pass, or raise with the reason."""
        self.law(self.trial)

    def __str__(self) -> str:
        """The test's id."""
        made = self.trial.localizer
        given = []
        for each in fields(made):
            value = getattr(made, each.name)
            if value != each.default:
                given.append(f"{each.name}={value}")
        return "-".join((made.name, *given, self.trial.family, self.law.__name__))


def parametrize_with_checks(
    localizers: Iterable[str | type[AbstractLocalizer] | AbstractLocalizer],
    families: Sequence[str] = (),
) -> pytest.MarkDecorator:
    """Make a test of each law of each localizer.

    The decorated test takes one argument, `check`, and calls it::

        @parametrize_with_checks([MyMethod, MyMethod(window=5)])
        def test_contract(check):
            check()

    Args:
        localizers: Classes, instances, or values of `--localizer`: names, `path/to/file.py:Class`.
        families: Keys of `PICO_FAMILIES`; by default all.
    """
    import pytest  # kgbench is used without it

    checks = []
    for each in localizers:
        made = create(each, {}, seed=0) if isinstance(each, str) else each
        if isinstance(made, type):
            made = made()
        for family in families or PICO_FAMILIES:
            trial = Trial(made, family)
            checks += [Check(law, trial) for law in laws_of(made)]
    return pytest.mark.parametrize("check", checks, ids=str)
