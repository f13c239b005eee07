"""Which prompts a data set can fill, and which of them give the answer away."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from kgbench.data.facts import Dataset
from kgbench.data.prompts import Prompt, builtin_prompts, load_prompts
from kgbench.data.templates import Template, parse_template
from kgbench.errors import InputError

__all__ = ["Giveaways", "builtin_fitting", "giveaways", "mentions", "own_prompts", "refuse_leaks"]

_JOINED = (
    r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""A letter or digit of a script that puts blanks between words."""
_BREAK = r"[\s,;:/\u2010-\u2015-]+"
"""What ends the first word of an answer."""


@dataclass(frozen=True)
class Giveaways:
    """The prompts of one template in which a model that can copy needs no knowledge, each under the first that holds."""

    by_field: Sequence[Prompt]
    """A field brings the answer in, as words of its own."""
    in_wording: Sequence[Prompt]
    """The template's own words hold the answer, as a question names its choices: they are the same for every fact."""
    first_word: Sequence[Prompt]
    """The first word of the answer stands there, and with it most of what top1, top5 and mrr ask for: the answer's first token."""


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


def giveaways(dataset: Dataset, prompts: Iterable[Prompt]) -> Giveaways:
    """Tell which prompts hold their answer; capitals do not matter.

    Args:
        dataset: Where the prompts are from.
        prompts: Prompts of it, of one template.
    """
    found: dict[str, list[Prompt]] = {field.name: [] for field in fields(Giveaways)}
    for prompt in prompts:
        if (kind := _kind(_template(dataset, prompt.name), prompt)) is not None:
            found[kind].append(prompt)
    return Giveaways(**found)


def refuse_leaks(source: str, found: Mapping[str, Giveaways], total: int) -> None:
    """Refuse a template with a field that brings in most answers.

    Args:
        source: The file or data set, for the message.
        found: By template.
        total: Number of facts.

    Raises:
        InputError: There is one.
    """
    for name, some in ((name, each.by_field) for name, each in found.items()):
        if 2 * len(some) > total:
            raise InputError(
                f"{source}: prompt {name!r} holds the answer already in {len(some)} of {total} fact{'' if total == 1 else 's'}, "
                f"such as {some[0].target!r} in {some[0].text!r}, so that a model only has to copy it; leave out the field that gives "
                "it away, or where it holds choices that are the same for all facts, write them into the template"
            )


def mentions(dataset: Dataset, name: str) -> int:
    """How often a template mentions the subject; only the first mention is FE."""
    return sum(
        part.is_field and part.text == dataset.subject for part in _template(dataset, name).parts
    )


def _template(dataset: Dataset, name: str) -> Template:
    text = dataset.templates[name] if name in dataset.templates else builtin_prompts()[name].text
    return parse_template(name, text).bind(
        dataset.subject, dataset.object, dataset.fields, dataset.name
    )


def _kind(template: Template, prompt: Prompt) -> str | None:
    """The field of `Giveaways` that a prompt belongs to."""
    text, filled = "", []
    for part in template.parts:
        # Case folding changes lengths, so that the prompt's own spans would not do.
        start, text = (
            len(text),
            text + (prompt.fact.fields[part.text] if part.is_field else part.text).casefold(),
        )
        if part.is_field:
            filled.append((start, len(text)))
    target = prompt.target.casefold()
    whole = _places(text, target)
    if any(start < done and begun < end for start, end in whole for begun, done in filled):
        return "by_field"
    if whole:
        return "in_wording"
    return (
        "first_word" if _places(text, re.split(_BREAK, target, maxsplit=1)[0] or target) else None
    )


def _places(text: str, words: str) -> list[tuple[int, int]]:
    """Where words stand by themselves, as [start, end) characters."""
    # A boundary only where the target ends with such a letter: "C++" and 東京 have none.
    before, after = (
        rf"(?{look}{_JOINED})" if re.match(_JOINED, end) else ""
        for look, end in (("<!", words[0]), ("!", words[-1]))
    )
    starts = (
        found.start() for found in re.finditer(f"{before}(?={re.escape(words)}{after})", text)
    )
    return [(start, start + len(words)) for start in starts]
