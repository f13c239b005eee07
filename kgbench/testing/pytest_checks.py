"""The contract of localizers as pytest tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from kgbench.localizers import AbstractLocalizer, create
from kgbench.testing.contract import Law, laws_of
from kgbench.testing.pico import PICO_FAMILIES
from kgbench.testing.trial import Trial

if TYPE_CHECKING:
    import pytest

__all__ = ["Check", "parametrize_with_checks"]


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
        given = [
            f"{f.name}={value}"
            for f in fields(made)
            if (value := getattr(made, f.name)) != f.default
        ]
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
        localizers: Classes, instances, or what `--localizer` takes: names, and `path/to/file.py:Class`.
        families: Keys of `PICO_FAMILIES`; by default all.
    """
    import pytest  # kgbench is used without it

    made = [_made(each) for each in localizers]
    trials = [Trial(each, family) for each in made for family in families or PICO_FAMILIES]
    checks = [Check(law, trial) for trial in trials for law in laws_of(trial.localizer)]
    return pytest.mark.parametrize("check", checks, ids=str)


def _made(localizer: str | type[AbstractLocalizer] | AbstractLocalizer) -> AbstractLocalizer:
    if isinstance(localizer, str):
        return create(localizer, {}, seed=0)
    return localizer() if isinstance(localizer, type) else localizer
