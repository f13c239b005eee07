"""Fixtures of a session: model pair, facts, prompts, localizer, and the record."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from kgbench.errors import InputError
from kgbench.pytest_plugin.pytest_session import in_a_line, in_pytest_words, session_of

if TYPE_CHECKING:
    from kgbench.data import Dataset, Prompt
    from kgbench.localizers import AbstractLocalizer
    from kgbench.models.pair import ModelPair
    from kgbench.records import Record
    from kgbench.runner.watch import Watch

__all__ = ["evaluation", "facts", "guarding", "localizer", "model_pair", "prompts"]

OPTIONS: Mapping[str, str] = {
    "model_pair": "model",
    "facts": "dataset",
    "prompts": "prompt",
    "localizer": "localizer",
}
"""Option that determines each fixture."""

T = TypeVar("T")


@pytest.fixture(scope="session")
def model_pair(pytestconfig: pytest.Config) -> ModelPair:
    """The model pair that the options name, loaded once per process."""
    with in_a_line():
        session = session_of(pytestconfig)
        pair = _note(pytestconfig, "model_pair", session.pair())
        if session.watch is not None:
            session.watch.add(pair)
        return pair


@pytest.fixture(scope="session")
def facts(pytestconfig: pytest.Config) -> Dataset:
    """The facts that the donor learned, as many as --kgbench-limit allows."""
    with in_a_line():
        return _note(pytestconfig, "facts", session_of(pytestconfig).facts)


@pytest.fixture(scope="session")
def prompts(pytestconfig: pytest.Config) -> list[Prompt]:
    """The facts in each evaluation prompt: all of the first, then all of the next."""
    with in_a_line():
        return _note(pytestconfig, "prompts", session_of(pytestconfig).prompts())


@pytest.fixture(scope="session")
def localizer(pytestconfig: pytest.Config) -> Iterator[AbstractLocalizer]:
    """The localizer that the options name; a third party's must not change models or process."""
    from kgbench.localizers import create
    from kgbench.runner.workload import localizer_arguments

    with in_a_line(), guarding(pytestconfig) as watch:
        session = session_of(pytestconfig)
        spec, pair = session.spec, session.fixtures.get("model_pair")
        made = create(spec.localizer, localizer_arguments(spec), spec.seed)
        if pair is not None:
            watch.add(cast("ModelPair", pair))
        yield _note(pytestconfig, "localizer", made)


@pytest.fixture(scope="session")
def evaluation(
    pytestconfig: pytest.Config,
    tmp_path_factory: pytest.TempPathFactory,
    model_pair: ModelPair,
    facts: Dataset,
    prompts: list[Prompt],
    localizer: AbstractLocalizer,
) -> Record:
    """The record of the localizer on the model pair: all prompts and configurations."""
    with in_a_line():
        _check_fixtures(
            pytestconfig,
            {"model_pair": model_pair, "facts": facts, "prompts": prompts, "localizer": localizer},
        )
        return session_of(pytestconfig).evaluate(tmp_path_factory.mktemp("kgbench"))


def _note(config: pytest.Config, name: str, value: T) -> T:
    """Note the value of kgbench's fixture of this name."""
    session_of(config).fixtures[name] = value
    return value


def _check_fixtures(config: pytest.Config, given: Mapping[str, object]) -> None:
    """Refuse fixtures that override kgbench's.

    Raises:
        InputError: There is one.
    """
    for name, value in given.items():
        if session_of(config).fixtures.get(name) is not value:
            raise InputError(
                f"the fixture {name!r} is overridden, and `evaluation` follows the options: give "
                f"--kgbench-{OPTIONS[name]} instead, or write a fixture of your own that calls "
                "kgbench.evaluate"
            )


class _Guard:
    """A check after each test; weights are hashed at the end of the fixture alone."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.failure = ""
        """Message of the test that failed by it."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Fail a test that would pass, and let no other test run."""
        try:
            result = yield
        finally:
            try:
                self._watch.check(weights=False)
            except InputError as error:
                item.session.shouldfail = self.failure = f"kgbench: {in_pytest_words(error)}"
        if self.failure:
            pytest.fail(self.failure, pytrace=False)
        return result


@contextmanager
def guarding(config: pytest.Config) -> Iterator[Watch]:
    """Check that a third-party localizer changes neither models nor process.

    Args:
        config: Configuration of the session, whose localizer a fixture gives within the block.

    Yields:
        The watch, which the models are to be added to. Those of the fixture `model_pair` are.

    Raises:
        InputError: At the end something has changed, weights included, and no test failed by it.
    """
    from kgbench.runner.watch import Watch

    session = session_of(config)
    session.watch = watch = Watch(session.spec.localizer)
    guard = _Guard(watch)
    config.pluginmanager.register(guard)
    try:
        yield watch
        if not guard.failure:
            watch.check()
    finally:
        config.pluginmanager.unregister(guard)
        session.watch = None
