"""Session of the claims: the plug-in's, on the claims' prompts unless others are chosen.

A pytest plug-in of its own, whose hooks collect `kgbench.paper.claims`; loading it loads nothing
heavy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kgbench.errors import InputError, KgbenchError
from kgbench.testing.session import Session, in_a_line, in_pytest_words, is_worker, session_of

if TYPE_CHECKING:
    from kgbench.data import Dataset
    from kgbench.runner import Spec

PROMPTS = ("headline", "qa", "movie_title", "new_film")
"""Prompts of the claims, as far as the data set fills them; new_film is a counter-example."""

MODEL = "tiny-gemma"
"""Unless another is named."""

_KEY = pytest.StashKey[Session]()


def chosen_session(config: pytest.Config) -> Session:
    """The session with the model and prompts of the claims; reading it takes no torch.

    Raises:
        InputError: An option's value does not read, or a prompt cannot be filled.
    """
    if _KEY not in config.stash:
        own = replace(session_of(config))
        if own.spec.model is None and own.spec.recipient is None and own.spec.dataset is None:
            own.spec = replace(own.spec, model=MODEL)
        own.spec = replace(own.spec, prompts=_filled(own.facts, own.spec.prompts))
        config.stash[_KEY] = own
    return config.stash[_KEY]


def running(config: pytest.Config) -> Session:
    """The same, with the one pair of the process."""
    own = chosen_session(config)
    own.pairs = session_of(config).pairs
    return own


def check_applicable(spec: Spec) -> None:
    """Refuse settings to which the claims do not apply.

    Raises:
        InputError: The localizer ranks, the suite is another one, or the localizer's name or file
            is wrong.
    """
    from kgbench.runner import check
    from kgbench.runner.third_party import method_of

    if spec.suite != type(spec).suite:
        raise InputError(
            f"the claims are about the configurations of suite {type(spec).suite!r}: leave out "
            f"--kgbench-suite {spec.suite}"
        )
    if method_of(check(spec)).kind != "intervention":
        raise InputError(
            f"the claims are about methods that intervene, and localizer {spec.localizer!r} "
            "scores: name another by --kgbench-localizer"
        )


def _filled(dataset: Dataset, names: Sequence[str]) -> tuple[str, ...]:
    """Prompts: the given ones, else those of the claims that fit the facts, else the data set's."""
    from kgbench.data import fitting_prompts, load_prompts

    if names:
        load_prompts(dataset, names, limit=1)
        return tuple(names)
    if found := fitting_prompts(dataset, PROMPTS) or dataset.templates:
        return tuple(found)
    raise InputError(
        f"data set {dataset.name!r} fills none of the prompts {', '.join(PROMPTS)}: choose others "
        "by --kgbench-prompt"
    )


# -------------------------------------------------------------------------------------- hooks

COMPARED: Mapping[str, tuple[str, str]] = {
    "test_it_is_the_position_not_the_preposition": ("qa", "headline")
}
"""Claims about a pair of prompts; they are left out where one of the two was not chosen."""

CLAIMS = Path(__file__).with_name("claims.py")

_LEFT_OUT = pytest.StashKey[list[str]]()
"""Names of claims that were left out."""


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Leave out a claim that needs a prompt that was not chosen."""
    if collector.path != CLAIMS or name not in COMPARED:
        return None
    with in_a_line():
        if set(COMPARED[name]) <= set(chosen_session(collector.config).spec.prompts):
            return None
    collector.config.stash.setdefault(_LEFT_OUT, []).append(name)
    return []


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """A line on each claim that was left out, and why."""
    lines = []
    for name in config.stash.get(_LEFT_OUT, ()):
        needed, chosen = COMPARED[name], chosen_session(config).spec.prompts
        missing = " and ".join(prompt for prompt in needed if prompt not in chosen)
        lines.append(
            f"kgbench: {name} needs the prompts {' and '.join(needed)}, and is left out: "
            f"{missing} not chosen"
        )
    return lines


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each claim on each prompt."""
    path = metafunc.definition.path
    if path == CLAIMS and "prompt" in metafunc.fixturenames:
        with in_a_line():
            names = chosen_session(metafunc.config).spec.prompts
        compared = COMPARED.get(metafunc.function.__name__)
        metafunc.parametrize("prompt", compared[:1] if compared else names)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse options that do not fit before anything is loaded; workers leave that to fixtures."""
    ours = any(item.path == CLAIMS for item in session.items)
    if not ours or session.config.option.collectonly or is_worker(session.config):
        return
    try:
        check_applicable(chosen_session(session.config).spec)
    except KgbenchError as error:
        raise pytest.UsageError(in_pytest_words(error)) from None
