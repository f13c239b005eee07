"""Session of the claims: the plug-in's, on the claims' prompts unless others are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kgbench.errors import InputError
from kgbench.pytest_plugin.pytest_session import Session, session_of

if TYPE_CHECKING:
    from kgbench.data import Dataset
    from kgbench.runner import Spec

__all__ = ["PROMPTS", "check_applicable", "chosen_session", "running"]

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
        own = copy(session_of(config))
        if own.spec.model is None and own.spec.recipient is None and own.spec.dataset is None:
            own.spec = replace(own.spec, model=MODEL)
        own.spec = replace(own.spec, prompts=_filled(own.facts, own.spec.prompts))
        config.stash[_KEY] = own
    return config.stash[_KEY]


def running(config: pytest.Config) -> Session:
    """The same, with the one pair of the process and the one baseline."""
    own, whole = chosen_session(config), session_of(config)
    own.pairs, own.baseline = whole.pairs, whole.baseline
    return own


def check_applicable(spec: Spec) -> None:
    """Refuse settings to which the claims do not apply.

    Raises:
        InputError: The localizer ranks, the suite is another one, or the localizer's name or file
            is wrong.
    """
    from kgbench.runner.third_party import method_of

    if spec.suite != type(spec).suite:
        raise InputError(
            f"the claims are about the configurations of suite {type(spec).suite!r}: leave out "
            f"--kgbench-suite {spec.suite}"
        )
    if method_of(spec).kind != "intervention":
        raise InputError(
            f"the claims are about methods that intervene, and localizer {spec.localizer!r} "
            "scores: name another by --kgbench-localizer, "
            "or time this one by kgbench.claims.bench"
        )


def _filled(dataset: Dataset, names: Sequence[str]) -> tuple[str, ...]:
    """Prompts: the given ones, else those of the claims that fit the facts, else the data set's."""
    from kgbench.data import load_prompts

    if names:
        load_prompts(dataset, names, limit=1)
        return tuple(names)
    if found := tuple(name for name in PROMPTS if _fits(dataset, name)) or tuple(dataset.templates):
        return found
    raise InputError(
        f"data set {dataset.name!r} fills none of the prompts {', '.join(PROMPTS)}: choose others "
        "by --kgbench-prompt"
    )


def _fits(dataset: Dataset, name: str) -> bool:
    from kgbench.data import load_prompts

    try:
        return bool(load_prompts(dataset, [name], limit=1))
    except InputError:
        return False
