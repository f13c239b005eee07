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
from kgbench.runner.third_party_process import isolated
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
        localizer, parameters = self.trial.localizer, []
        for each in fields(localizer):
            value = getattr(localizer, each.name)
            if value != each.default:
                parameters.append(f"{each.name}={value}")
        return "-".join((localizer.name, *parameters, self.trial.family, self.law.__name__))

    @property
    def verdict(self) -> Verdict:
        """Whether the law holds."""
        reason = None
        try:
            self()
        except LawError as error:
            reason = str(error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever an author's code raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
        states = (getdoc(self.law) or "").partition("\n")[0]
        return Verdict(self.law.__name__, states, self.trial.family, reason)


def checks_of(localizer: AbstractLocalizer, families: Sequence[str] = ()) -> list[Check]:
    """Each law of a localizer on each family, in the order of families, then of laws.

    Args:
        localizer: The localizer with its parameters.
        families: Keys of `PICO_FAMILIES`; by default all.
    """
    checks = []
    for family in families or PICO_FAMILIES:
        trial = Trial(localizer, family)
        checks += [Check(law, trial) for law in laws_of(localizer)]
    return checks


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
    for check in checks_of(localizer, families):
        yield check.verdict


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
        localizer = create(each, {}, seed=0) if isinstance(each, str) else each
        checks += checks_of(localizer() if isinstance(localizer, type) else localizer, families)
    return pytest.mark.parametrize("check", checks, ids=str)


# ---------------------------------------------------------------------------- by name


@dataclass(frozen=True)
class CheckedLocalizer:
    """A localizer, and the verdict of each law on each family."""

    name: str
    version: str
    """As in records."""
    kind: str
    verdicts: tuple[Verdict, ...]

    @property
    def laws(self) -> Mapping[str, Sequence[Verdict]]:
        """The verdicts of each law."""
        laws: dict[str, list[Verdict]] = {}
        for verdict in self.verdicts:
            laws.setdefault(verdict.name, []).append(verdict)
        return laws

    @property
    def broken(self) -> tuple[str, ...]:
        """Laws that do not hold."""
        broken = [verdict.name for verdict in self.verdicts if not verdict.holds]
        return tuple(law for law in self.laws if law in broken)


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
    localizer = create(target, arguments, seed=0)
    checks, verdicts = checks_of(localizer, families), []
    for check in checks:
        verdicts.append(check.verdict)
        if progress is not None:
            progress(len(verdicts), len(checks), f"{localizer.name} on {check.trial.family}")
    version = " ".join(filter(None, (localizer.version, fingerprint(target))))
    return CheckedLocalizer(localizer.name, version, localizer.kind, tuple(verdicts))


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
    return Contract(kgbench=__version__, laws=len(checked.laws), broken=checked.broken)


@cache
def _tried(target: str, arguments: tuple[tuple[str, str], ...]) -> CheckedLocalizer:
    """The verdicts on a method; several runs of one share them."""
    return check_by_name(target, dict(arguments))
