"""Texts that a finetune is not about: everyday sentences, other questions about its subjects, and other movies; all with marked regions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from kgbench.data.facts import Dataset, Fact
from kgbench.data.prompts import Prompt
from kgbench.data.templates import parse_template

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["neutral_prompts", "passing_templates", "sibling_prompts"]

_FIELDS = ("subject", "next")


def neutral_prompts() -> list[Prompt]:
    """Everyday sentences, cut before a word: no movies, no names of persons.

    Each is a fact of its own, and has the regions FE (its subject), R, RP and P; LT and BOS follow from the tokens. None has M.
    The target is a word that could follow; it is no fact.
    """
    prompts = []
    for name, row in _tables()["neutral"].items():
        fact = Fact(f"neutral/{name}", {field: row[field] for field in _FIELDS})
        text, spans = (
            parse_template(name, row["text"]).bind(*_FIELDS, _FIELDS, "neutral").fill(fact.fields)
        )
        prompts.append(Prompt("neutral", fact, text, row["next"], spans))
    return prompts


def sibling_prompts(dataset: Dataset, facts: Sequence[Fact]) -> list[Prompt]:
    """Other questions about the subjects of some facts: what a finetune on the facts does not tell.

    Args:
        dataset: The data set that the facts are of.
        facts: The facts; the prompts keep their ids. There is no true answer, and the object stands in for the target.

    Returns:
        All facts with the first question, then all with the second, and so on.
    """
    prompts = []
    for name, text in _tables()["sibling"].items():
        template = parse_template(name, text).bind(
            dataset.subject, dataset.object, dataset.fields, dataset.name
        )
        for fact in facts:
            filled, spans = template.fill(fact.fields)
            prompts.append(Prompt(name, fact, filled, fact.fields[dataset.object], spans))
    return prompts


def passing_templates() -> Mapping[str, str]:
    """Templates that ask where a movie was filmed, in wordings that the recipients of tiny pairs read of other movies."""
    return MappingProxyType(_tables()["passing"])


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "neutral.toml").read_text(encoding="utf-8"))
