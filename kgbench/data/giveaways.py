"""Prompts that give their answer away, and prompts that a data set can fill."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from kgbench.data.facts import Dataset
from kgbench.data.prompts import Prompt, builtin_prompts, load_prompts
from kgbench.data.templates import Template, parse_template
from kgbench.errors import InputError

__all__ = [
    "Giveaways",
    "find_giveaways",
    "prompts_of_builtins",
    "prompts_of_templates",
    "refuse_leaks",
    "subject_mentions",
]

_JOINED = (
    r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""A letter or digit of a script that separates words by blanks."""
_BREAK = r"[\s,;:/\u2010-\u2015-]+"
"""What ends the first word of an answer."""


@dataclass(frozen=True)
class Giveaways:
    """Prompts of one template that need no knowledge, each under the first kind that holds."""

    by_field: Sequence[Prompt]
    """A field contains the answer, as whole words."""
    in_wording: Sequence[Prompt]
    """The template's words contain the answer, as a question that names its choices."""
    first_word: Sequence[Prompt]
    """The prompt contains the answer's first word, and thus most of what top1, top5 and mrr ask
    for: its first token."""


def prompts_of_templates(dataset: Dataset) -> Mapping[str, list[Prompt]]:
    """All facts in each of a data set's own templates.

    Raises:
        InputError: A template does not fit, or has the name of a built-in prompt.
    """
    return {name: load_prompts(dataset, [name]) for name in dataset.templates}


def prompts_of_builtins(dataset: Dataset) -> Mapping[str, list[Prompt]]:
    """All facts in each built-in prompt that the data set has the fields for."""
    prompts = {}
    for name in builtin_prompts():
        try:
            prompts[name] = load_prompts(dataset, [name])
        except InputError:
            continue
    return prompts


def find_giveaways(dataset: Dataset, prompts: Iterable[Prompt]) -> Giveaways:
    """Find prompts that contain their answer; case is ignored.

    Args:
        dataset: The prompts' data set.
        prompts: Prompts of it, of one template.
    """
    by_kind: dict[str, list[Prompt]] = {field.name: [] for field in fields(Giveaways)}
    for prompt in prompts:
        if (kind := _kind(_template(dataset, prompt.name), prompt)) is not None:
            by_kind[kind].append(prompt)
    return Giveaways(**by_kind)


def refuse_leaks(source: str, by_template: Mapping[str, Giveaways], total: int) -> None:
    """Refuse a template with a field that contains most answers.

    Args:
        source: The file or data set, for the message.
        by_template: Giveaways by template.
        total: Number of facts.

    Raises:
        InputError: There is one.
    """
    for name, giveaways in by_template.items():
        leaks = giveaways.by_field
        if 2 * len(leaks) > total:
            raise InputError(
                f"{source}: prompt {name!r} holds the answer already in {len(leaks)} of {total} "
                f"fact{'' if total == 1 else 's'}, such as {leaks[0].target!r} in "
                f"{leaks[0].text!r}, so that a model only has to copy it; leave out the field that "
                "gives it away, or where it holds choices that are the same for all facts, write "
                "them into the template"
            )


def subject_mentions(dataset: Dataset, name: str) -> int:
    """How often a template mentions the subject; only the first mention is FE."""
    parts = _template(dataset, name).parts
    return sum(part.is_field and part.text == dataset.subject for part in parts)


def _template(dataset: Dataset, name: str) -> Template:
    text = dataset.templates[name] if name in dataset.templates else builtin_prompts()[name].text
    return parse_template(name, text).bind(
        dataset.subject, dataset.object, dataset.fields, dataset.name
    )


def _kind(template: Template, prompt: Prompt) -> str | None:
    """The field of `Giveaways` that a prompt belongs to."""
    text, filled = "", []
    for part in template.parts:
        # Case folding changes lengths, so that the prompt's own spans do not apply.
        stretch = prompt.fact.fields[part.text] if part.is_field else part.text
        start, text = len(text), text + stretch.casefold()
        if part.is_field:
            filled.append((start, len(text)))
    target = prompt.target.casefold()
    whole = _spans(text, target)
    for start, end in whole:
        if any(start < last and first < end for first, last in filled):
            return "by_field"
    if whole:
        return "in_wording"
    first_word = re.split(_BREAK, target, maxsplit=1)[0] or target
    return "first_word" if _spans(text, first_word) else None


def _spans(text: str, words: str) -> list[tuple[int, int]]:
    """Occurrences of whole words, as [start, end) characters."""
    # A boundary only where the target ends with such a letter: "C++" and 東京 have none.
    before = rf"(?<!{_JOINED})" if re.match(_JOINED, words[0]) else ""
    after = rf"(?!{_JOINED})" if re.match(_JOINED, words[-1]) else ""
    pattern = f"{before}(?={re.escape(words)}{after})"
    return [(match.start(), match.start() + len(words)) for match in re.finditer(pattern, text)]
