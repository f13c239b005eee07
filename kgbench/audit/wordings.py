"""The wordings that a data set's question can be put in."""

from __future__ import annotations

import re

from kgbench.data import Dataset, builtin_prompts, load_prompts
from kgbench.errors import InputError

__all__ = ["wordings_of"]

_SUPERSEDED = re.compile(r"(.+)_v\d+")
"""Of a name: an earlier state of another prompt, the same wording but for a slip."""


def wordings_of(dataset: Dataset) -> tuple[str, ...]:
    """Names of all evaluation prompts that ask a data set's question: for its object, given its subject.

    Those are its own templates and the built-in prompts that its fields fill, but for earlier versions of one of these, which are no other
    wordings.

    Args:
        dataset: The facts.

    Raises:
        InputError: There is none.
    """
    names = (*dataset.templates, *builtin_prompts())
    earlier = {
        name
        for name in names
        if (found := _SUPERSEDED.fullmatch(name)) is not None and found[1] in names
    }
    fitting = tuple(
        name for name in dict.fromkeys(names) if name not in earlier and _fits(name, dataset)
    )
    if not fitting:
        raise InputError(
            f"no prompt asks for {dataset.object!r} of data set {dataset.name!r}: give wordings with --template NAME=TEXT"
        )
    return fitting


def _fits(name: str, dataset: Dataset) -> bool:
    if name in dataset.templates:
        return True  # what is wrong with one of its own is to be told
    try:
        load_prompts(dataset, [name], 1)
    except InputError:
        return False
    return True
