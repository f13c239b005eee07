"""Which prompts a data set can fill, and which of them give the answer away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kgbench.data.facts import Dataset
from kgbench.data.prompts import Prompt, builtin_prompts, load_prompts
from kgbench.errors import InputError

__all__ = ["builtin_fitting", "leaks", "own_prompts"]

_JOINED = r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
"""A letter or digit of a script that puts blanks between words."""


def own_prompts(dataset: Dataset) -> Mapping[str, list[Prompt]]:
    """All facts in each of a data set's own templates.

    Raises:
        InputError: A template does not fit, or has the name of a built-in prompt.
    """
    return {name: load_prompts(dataset, [name]) for name in dataset.templates}


def builtin_fitting(dataset: Dataset) -> Mapping[str, list[Prompt]]:
    """All facts in each built-in prompt that the data set has the fields for."""
    found = {}
    for name in builtin_prompts():
        try:
            found[name] = load_prompts(dataset, [name])
        except InputError:
            continue
    return found


def leaks(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The prompts whose text holds the target as words of its own, in capitals or not: a model that can copy needs no knowledge there."""
    return [prompt for prompt in prompts if _holds(prompt.text.casefold(), prompt.target.casefold())]


def _holds(text: str, words: str) -> bool:
    # A boundary only where the target ends with such a letter: "C++" and 東京 have none.
    before, after = (rf"(?{look}{_JOINED})" if re.match(_JOINED, end) else "" for look, end in (("<!", words[0]), ("!", words[-1])))
    return re.search(f"{before}{re.escape(words)}{after}", text) is not None
