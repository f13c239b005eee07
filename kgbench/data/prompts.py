"""Prompts: facts filled into evaluation templates, with character spans."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from kgbench.data.facts import Dataset, Fact, load_dataset
from kgbench.data.templates import Template, parse_template
from kgbench.errors import InputError, UnknownNameError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "WITHHELD",
    "BuiltinPrompt",
    "Prompt",
    "Question",
    "builtin_prompts",
    "load_prompts",
    "prompt_hash",
    "prompt_names",
]


WITHHELD = (
    "an intervention gets prompts without their answer, which treat and fitted are not to know; "
    "a method that needs it says so by needs = frozenset({'donor', 'answer'})"
)
"""Why a question has no target."""


@dataclass(frozen=True)
class Prompt:
    """A fact filled into a template."""

    name: str
    """The template's name, such as "headline"."""
    fact: Fact
    text: str
    target: str
    """The object's text, which the model is to go on with after a blank."""
    spans: Mapping[str, tuple[int, int]] = field(hash=False)
    """Per region (FE, M, R, RP, P) its [start, end) characters in the text."""


class Question(Prompt):
    """A prompt without its answer, as interventions get it: no target, and no field of the fact that is the target.

    Two questions are equal where name, fact, text and tokens are, so that what is learned from one is found again.
    """

    ids: tuple[int, ...]
    """Token ids."""

    def __init__(self, prompt: Prompt, ids: tuple[int, ...]) -> None:
        """Withhold the answer.

        Args:
            prompt: The prompt.
            ids: Its tokens.
        """
        fields = {
            name: value for name, value in prompt.fact.fields.items() if value != prompt.target
        }
        parts = {
            "name": prompt.name,
            "fact": Fact(prompt.fact.id, fields),
            "text": prompt.text,
            "spans": prompt.spans,
            "ids": ids,
        }
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    @property
    def target(self) -> str:
        """Withheld.

        Raises:
            InputError: Always.
        """
        raise InputError(f"fact {self.fact.id}, prompt {self.name!r}: {WITHHELD}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Question) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Question(name={self.name!r}, fact={self.fact!r}, text={self.text!r})"

    @property
    def _key(self) -> tuple[str, str, str, tuple[int, ...]]:
        return self.name, self.fact.id, self.text, self.ids


@dataclass(frozen=True)
class BuiltinPrompt:
    """A row of prompts.toml."""

    text: str
    """The template, with its marks."""
    source: str
    """Where the wording comes from."""


@cache
def builtin_prompts() -> Mapping[str, BuiltinPrompt]:
    """The built-in templates by name, in the order of the file."""
    text = (Path(__file__).parent / "prompts.toml").read_text(encoding="utf-8")
    return MappingProxyType(
        {name: BuiltinPrompt(**row) for name, row in tomllib.loads(text).items()}
    )


def prompt_names() -> tuple[str, ...]:
    """Names of the built-in prompts."""
    return tuple(builtin_prompts())


def prompt_hash(name: str, dataset: str | Dataset) -> str:
    """SHA-256, in hexadecimal, of the template's text with its marks.

    Raises:
        UnknownNameError: Neither a built-in prompt nor one of the data set's own.
    """
    return hashlib.sha256(_template_text(name, _dataset(dataset)).encode()).hexdigest()


def load_prompts(
    dataset: str | Dataset, names: Sequence[str], limit: int | None = None
) -> list[Prompt]:
    """Fill the facts of a data set into templates.

    Args:
        dataset: A data set, or a name or file to load it from.
        names: Names of built-in prompts or of the data set's own.
        limit: Only the first so many facts.

    Returns:
        All facts with the first template, then all with the second, and so on.

    Raises:
        UnknownNameError: No such data set or prompt.
        InputError: The limit is not positive, or a template does not fit the data set.
    """
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InputError(
            f"the limit must be a whole number of facts, 1 or more, got {limit!r}; leave it out for all facts"
        )
    loaded = _dataset(dataset)
    templates = [_template(name, loaded) for name in ([names] if isinstance(names, str) else names)]
    return [
        _prompt(template, fact, loaded.object)
        for template in templates
        for fact in loaded.facts[:limit]
    ]


def _dataset(dataset: str | Dataset) -> Dataset:
    return load_dataset(dataset) if isinstance(dataset, str) else dataset


def _template_text(name: str, dataset: Dataset) -> str:
    builtin = builtin_prompts()
    for own in dataset.templates:
        if own in builtin:
            raise InputError(
                f"data set {dataset.name!r} has a template named {own!r}, as a built-in prompt is; give it another name"
            )
    if name in dataset.templates:
        return dataset.templates[name]
    if name not in builtin:
        raise UnknownNameError("prompt", name, (*builtin, *dataset.templates))
    return builtin[name].text


def _template(name: str, dataset: Dataset) -> Template:
    return parse_template(name, _template_text(name, dataset)).bind(
        dataset.subject, dataset.object, dataset.fields, dataset.name
    )


def _prompt(template: Template, fact: Fact, object: str) -> Prompt:
    text, spans = template.fill(fact.fields)
    return Prompt(template.name, fact, text, fact.fields[object], spans)
