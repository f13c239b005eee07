"""What can be listed: for each kind, its names and what to say of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Rows = Mapping[str, str | Mapping[str, Any]]
"""By name, a line, or several things to say."""


def _models() -> Rows:
    from kgbench.models.catalog import describe

    return describe()


def _datasets() -> Rows:
    from kgbench.data import data_card, dataset_names

    return {name: _first_sentence(data_card(name)) for name in dataset_names()}


def _prompts() -> Rows:
    from kgbench.data import builtin_prompts

    return {
        name: f"{prompt.text}   ({prompt.source})" for name, prompt in builtin_prompts().items()
    }


def _localizers() -> Rows:
    from kgbench.localizers import describe

    return describe()


def _suites() -> Rows:
    from kgbench.runner import suites

    return suites()


def _first_sentence(card: str) -> str:
    """The first sentence of a Markdown card that is not a heading."""
    paragraphs = (
        part
        for part in card.split("\n\n")
        if part.strip() and not part.lstrip().startswith(("#", "|", "-"))
    )
    text = " ".join(next(paragraphs, "").split())
    return text.partition(". ")[0].rstrip(".")


CATALOGUES: Mapping[str, Callable[[], Rows]] = {
    "models": _models,
    "datasets": _datasets,
    "prompts": _prompts,
    "localizers": _localizers,
    "suites": _suites,
}
"""The kinds of `kgbench ls`, in the order of its help."""


def _costs() -> str:
    from kgbench.localizers import COSTS

    return "cost: " + "; ".join(f"{name}, {meaning}" for name, meaning in COSTS.items())


NOTES: Mapping[str, Callable[[], str]] = {"localizers": _costs}
"""What stands below the table of a kind."""
