"""Somebody else's localizer in a session: a test after which models or process are not as before fails, and ends the session."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kgbench.errors import InputError
from kgbench.pytest_plugin.session import in_pytest_words, session_of

if TYPE_CHECKING:
    from kgbench.runner.watch import Watch

__all__ = ["guarding"]


class _Guard:
    """A plug-in that looks after each test; weights are read at the end of the fixture, since that takes long."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.told = ""
        """What a test was failed with."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that would pass, and let no other test run."""
        try:
            result = yield
        finally:
            try:
                self._watch.check(weights=False)
            except InputError as error:
                item.session.shouldfail = self.told = f"kgbench: {in_pytest_words(error)}"
        if self.told:
            pytest.fail(self.told, pytrace=False)
        return result


@contextmanager
def guarding(config: pytest.Config) -> Iterator[Watch]:
    """For the life of a fixture that gives the session's localizer, look at what the localizer must not change.

    Args:
        config: The session's configuration.

    Yields:
        The watch, which the models are to be added to. Those of the fixture `model_pair` are.

    Raises:
        InputError: Something, weights included, has changed at the end, and no test was failed for it.
    """
    from kgbench.runner.watch import Watch

    session = session_of(config)
    session.watch = watch = Watch(session.spec.localizer)
    guard = _Guard(watch)
    config.pluginmanager.register(guard)
    try:
        yield watch
        if not guard.told:
            watch.check()
    finally:
        config.pluginmanager.unregister(guard)
        session.watch = None
