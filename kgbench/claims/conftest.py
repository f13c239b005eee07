"""Collection of the claims, and their fixtures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kgbench.claims.session import check_applicable, chosen_session, running
from kgbench.errors import KgbenchError
from kgbench.pytest_plugin.pytest_session import in_a_line, in_pytest_words, is_worker

if TYPE_CHECKING:
    from kgbench.claims.claim import Claim
    from kgbench.data import Prompt
    from kgbench.models.pair import ModelPair
    from kgbench.records import Record
    from kgbench.stats.scores import PromptColumns

COMPARED: Mapping[str, tuple[str, str]] = {
    "test_it_is_the_position_not_the_preposition": ("qa", "headline")
}
"""Claims about a pair of prompts; they are left out where one of the two was not chosen."""

HERE, BENCH = Path(__file__).parent, "bench.py"

_LEFT_OUT = pytest.StashKey[list[str]]()
"""Names of claims that were left out."""


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Leave out a claim that needs a prompt that was not chosen."""
    if collector.path.parent != HERE or name not in COMPARED:
        return None
    with in_a_line():
        if set(COMPARED[name]) <= set(chosen_session(collector.config).spec.prompts):
            return None
    collector.config.stash.setdefault(_LEFT_OUT, []).append(name)
    return []


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """A line on each claim that was left out, and why."""
    return [
        _left_out(name, chosen_session(config).spec.prompts)
        for name in config.stash.get(_LEFT_OUT, ())
    ]


def _left_out(name: str, prompts: Sequence[str]) -> str:
    missing = " and ".join(prompt for prompt in COMPARED[name] if prompt not in prompts)
    return (
        f"kgbench: {name} needs the prompts {' and '.join(COMPARED[name])}, and is left "
        f"out: {missing} not chosen"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each claim on each prompt."""
    if "prompt" in metafunc.fixturenames:
        with in_a_line():
            names = chosen_session(metafunc.config).spec.prompts
        compared = COMPARED.get(metafunc.function.__name__)
        metafunc.parametrize("prompt", compared[:1] if compared else names)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse options that do not fit before anything is loaded; workers leave that to fixtures."""
    ours = {item.path.name for item in session.items if item.path.parent == HERE}
    if not ours or session.config.option.collectonly or is_worker(session.config):
        return
    if BENCH in ours and not session.config.pluginmanager.has_plugin("benchmark"):
        raise pytest.UsageError(
            "kgbench.claims.bench times with pytest-benchmark, which is not there: pip install "
            "pytest-benchmark"
        )
    try:
        if ours != {BENCH}:
            check_applicable(chosen_session(session.config).spec)
    except KgbenchError as error:
        raise pytest.UsageError(f"kgbench: {in_pytest_words(error)}") from None


@pytest.fixture(scope="session")
def model_pair(pytestconfig: pytest.Config) -> ModelPair:
    """The model pair that the options name."""
    with in_a_line():
        return running(pytestconfig).pair()


@pytest.fixture(scope="session")
def prompts(pytestconfig: pytest.Config) -> list[Prompt]:
    """The facts in each prompt of the claims."""
    with in_a_line():
        return running(pytestconfig).prompts()


@pytest.fixture
def own_prompts(prompt: str, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The facts in one prompt."""
    return [each for each in prompts if each.name == prompt]


@pytest.fixture(scope="session")
def evaluation(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of the localizer on all prompts of the claims."""
    with in_a_line():
        session = running(pytestconfig)
        check_applicable(session.spec)
        return session.evaluate(tmp_path_factory.mktemp("kgbench"))


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config, evaluation: Record) -> Mapping[str, PromptColumns]:
    """The per-fact rows behind the record, by prompt."""
    from kgbench.records.store import read_record
    from kgbench.stats.scores import by_prompt

    facts = read_record(running(pytestconfig).folders[evaluation.id]).facts()
    return {prompt.name: prompt for prompt in by_prompt(facts, ())}


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Note a figure in the test's report, as a property in JUnit's XML, whatever the outcome."""
    return lambda figure: request.node.user_properties.append(("figure", figure))


@pytest.fixture
def claim(
    prompt: str, evaluation: Record, rows: Mapping[str, PromptColumns], note: Callable[[str], None]
) -> Claim:
    """The evaluation on one prompt."""
    from kgbench.claims.claim import Claim

    return Claim(prompt, evaluation, rows, note)
