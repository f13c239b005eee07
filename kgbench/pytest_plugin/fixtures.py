"""Fixtures: what is evaluated, and the record of it. Each lives as long as the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kgbench.pytest_plugin.session import in_a_line, session_of

if TYPE_CHECKING:
    from kgbench.data import Dataset, Prompt
    from kgbench.localizers import AbstractLocalizer
    from kgbench.models.pair import ModelPair
    from kgbench.records import Record

__all__ = ["evaluation", "facts", "localizer", "model_pair", "prompts"]


@pytest.fixture(scope="session")
def model_pair(pytestconfig: pytest.Config) -> ModelPair:
    """The model pair that the options name, loaded once per process."""
    with in_a_line():
        return session_of(pytestconfig).pair()


@pytest.fixture(scope="session")
def facts(pytestconfig: pytest.Config) -> Dataset:
    """The facts that the donor learned, as many as --kgbench-limit allows."""
    with in_a_line():
        return session_of(pytestconfig).facts


@pytest.fixture(scope="session")
def prompts(pytestconfig: pytest.Config) -> list[Prompt]:
    """The facts in each evaluation prompt: all of the first, then all of the next."""
    with in_a_line():
        return session_of(pytestconfig).prompts()


@pytest.fixture(scope="session")
def localizer(pytestconfig: pytest.Config) -> AbstractLocalizer:
    """The localizer that the options name."""
    from kgbench.localizers import create
    from kgbench.runner.truth import localizer_arguments

    with in_a_line():
        spec = session_of(pytestconfig).spec
        return create(spec.localizer, localizer_arguments(spec), spec.seed)


@pytest.fixture(scope="session")
def evaluation(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of the localizer on the model pair: all prompts, and all configurations of the suite."""
    with in_a_line():
        return session_of(pytestconfig).evaluate(tmp_path_factory.mktemp("kgbench"))
