"""Prompts: facts filled into templates, with character spans and token regions.

Some need no knowledge: they give their answer away.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cache, partial
from types import MappingProxyType
from typing import Any

from kgbench.data.cases import GROUP, MESSAGES, Message, messages_of
from kgbench.data.facts import Dataset, Fact, load_dataset
from kgbench.data.templates import Template, parse_template, whole_words
from kgbench.errors import InputError, RegionError, UnknownNameError
from kgbench.resources import read_toml
from kgbench.sites import CONTROLS

WITHHELD = (
    "an intervention gets prompts without their answer, which treat and fitted are not to know; "
    "a method that needs it declares so by needs = frozenset({'donor', 'answer'})"
)
"""Why a question has no target."""


@dataclass(frozen=True)
class Prompt:
    """A case as a model is asked it: a fact filled into a template, or messages of a chat."""

    name: str
    """The template's name, such as "headline"."""
    fact: Fact
    text: str
    target: str
    """The object's text, which the model is to continue with after a blank; empty for none."""
    spans: Mapping[str, tuple[int, int]] = field(hash=False)
    """Per region (FE, M, R, RP, P or a name of its own) its [start, end) characters in the text."""
    group: str = "on"
    """`off` of a control, which is not to show the behaviour."""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further columns of the row, for readouts; those of text are in `fact.fields`."""
    messages: tuple[Message, ...] = ()
    """Of a chat, where it is one; the text is then their contents, a line each."""

    @property
    def label(self) -> str:
        """Its name in tables: cases that are not to show a behaviour are a prompt of their own."""
        return self.name if self.group == "on" else f"{self.name}{CONTROLS}"


class Question(Prompt):
    """A prompt without its answer, as interventions get it.

    It has no target, and its fact lacks the field that is the target. Two questions are equal
    where name, fact, text and tokens are, so that what is fitted on one applies to the other.
    """

    ids: tuple[int, ...]
    """Token ids."""

    def __init__(self, prompt: Prompt, ids: tuple[int, ...]) -> None:
        """Withhold the answer.

        Args:
            prompt: The prompt.
            ids: Its tokens.
        """
        others = {name: text for name, text in prompt.fact.fields.items() if text != prompt.target}
        fact = Fact(prompt.fact.id, others)
        # The dataclass is frozen, its data may hold the answer, and its target is a property here.
        vars(self).update(vars(prompt), fact=fact, data={}, ids=ids)
        vars(self).pop("target", None)

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


_toml = partial(read_toml, __package__)


@cache
def builtin_prompts() -> Mapping[str, BuiltinPrompt]:
    """The built-in templates by name, in the order of prompts.toml."""
    return MappingProxyType({name: BuiltinPrompt(**row) for name, row in _toml("prompts").items()})


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
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InputError(
            f"the limit must be a whole number of facts, 1 or more, got {limit!r}; "
            "leave it out for all facts"
        )
    loaded = _dataset(dataset)
    chosen = [names] if isinstance(names, str) else names
    templates = [_template(name, loaded) for name in chosen]
    return _filled(templates, loaded.facts[:limit], loaded.subject, loaded.object)


def prompts_of_builtins(dataset: Dataset) -> Mapping[str, list[Prompt]]:
    """All facts in each built-in prompt that the data set has the fields for."""
    fitting = fitting_prompts(dataset, builtin_prompts())
    return {name: load_prompts(dataset, [name]) for name in fitting}


def fitting_prompts(dataset: Dataset, names: Iterable[str]) -> list[str]:
    """Those of some prompts that a data set has the fields for."""
    fitting = []
    for name in names:
        with suppress(InputError):
            load_prompts(dataset, [name], limit=1)
            fitting.append(name)
    return fitting


def _dataset(dataset: str | Dataset) -> Dataset:
    return load_dataset(dataset) if isinstance(dataset, str) else dataset


def _template_text(name: str, dataset: Dataset) -> str:
    builtin = builtin_prompts()
    for custom in dataset.templates:
        if custom in builtin:
            raise InputError(
                f"data set {dataset.name!r} has a template named {custom!r}, as a built-in prompt is; "
                "give it another name"
            )
    if name in dataset.templates:
        return dataset.templates[name]
    if name not in builtin:
        raise UnknownNameError("prompt", name, (*builtin, *dataset.templates))
    return builtin[name].text


def _template(name: str, dataset: Dataset, text: str | None = None) -> Template:
    """A template bound to a data set, by default the one of this name."""
    template = parse_template(name, _template_text(name, dataset) if text is None else text)
    return template.bind(dataset.subject, dataset.object, dataset.fields, dataset.name)


_BETWEEN = "\x1e"
"""Between the contents of messages while they are filled as one template."""


def _filled(
    templates: Sequence[Template], facts: Sequence[Fact], subject: str, object: str
) -> list[Prompt]:
    """All facts with the first template, then all with the second, and so on."""
    prompts = []
    for template in templates:
        for fact in facts:
            messages: tuple[Message, ...] = ()
            bound = template
            try:
                if template.is_chat:
                    messages = messages_of(fact.fields[MESSAGES])
                    joined = _BETWEEN.join(message.content for message in messages)
                    bound = parse_template(template.name, joined)
                    mentioned = {subject, "subject"} & {*bound.fields}
                    bound = bound.bind(subject if mentioned else "", object, fact.fields, fact.id)
                text, spans = bound.fill(fact.fields)
                if messages:
                    contents = zip(messages, text.split(_BETWEEN), strict=True)
                    messages = tuple(Message(role, content) for (role, _), content in contents)
                    text = "\n".join(message.content for message in messages)
            except (InputError, ValueError) as error:
                raise InputError(f"fact {fact.id}: {error}") from None
            target = fact.fields.get(object, "")
            group = "off" if fact.fields.get(GROUP) == "off" else "on"
            prompt = Prompt(template.name, fact, text, target, spans, group, fact.data, messages)
            prompts.append(prompt)
    return prompts


# --------------------------------------------------------- texts that a finetune is not about


def neutral_prompts() -> list[Prompt]:
    """Everyday sentences, cut before a word: no movies, no names of persons.

    Each is a fact of its own, and has the regions FE (its subject), R, RP and P; LT and BOS follow
    from the tokens. None has M. The target is a word that could follow; it is no fact.
    """
    prompts = []
    for name, row in _toml("neutral")["neutral"].items():
        fact = Fact(f"neutral/{name}", {"subject": row["subject"], "next": row["next"]})
        template = parse_template("neutral", row["text"])
        bound = template.bind("subject", "next", ("subject", "next"), "neutral")
        prompts += _filled([bound], [fact], "subject", "next")
    return prompts


def sibling_prompts(dataset: Dataset, facts: Sequence[Fact]) -> list[Prompt]:
    """Other questions about the subjects of some facts, which a finetune on them does not answer.

    Args:
        dataset: The facts' data set.
        facts: The facts; the prompts keep their ids. No answer is true, and the object takes the
            place of the target.

    Returns:
        All facts with the first question, then all with the second, and so on.
    """
    questions = _toml("neutral")["sibling"].items()
    templates = [_template(name, dataset, text) for name, text in questions]
    return _filled(templates, facts, dataset.subject, dataset.object)


# ---------------------------------------------------------------------------------------- tokens


def token_regions(
    prompt: Prompt,
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
    *,
    tokenizer: str = "this tokenizer",
) -> dict[str, list[int]]:
    """Indices of the tokens of each region of a prompt that lies in its text.

    The token, or tokens, of the single blank before a word belong to the word, whether the blank
    is joined to it or a token of its own; a line's end before it does not.

    Args:
        prompt: The prompt whose text was encoded.
        offsets: Per token its [start, end) characters in the text.
        special: Per token whether the tokenizer added it, as it does BOS.
        tokenizer: Name of the tokenizer in an error.

    Returns:
        Those of the spans, LT, and BOS where the first token is special.

    Raises:
        RegionError: A region has no token, or shares one with another word; or the last token is
            special.
    """
    where = f"in prompt {prompt.name!r} of fact {prompt.fact.id!r} by {tokenizer}"
    if all(special) or special[-1]:
        raise RegionError(
            f"region LT cannot be located {where}: expected a text token at the end; "
            "let it add no special token there"
        )
    regions = {"BOS": [0]} if special[0] else {}
    places = text_offsets(offsets, special)
    for region, span in prompt.spans.items():
        name = f"{region}, {prompt.text[slice(*span)]!r},"
        regions[region] = span_tokens(prompt.text, span, places, name, where)
    return {**regions, "LT": [len(offsets) - 1]}


def text_offsets(
    offsets: Sequence[tuple[int, int]], special: Sequence[bool]
) -> tuple[tuple[int, int], ...]:
    """Offsets of tokens in a text, outside of it for those that the tokenizer added."""
    return tuple(
        (-1, -1) if added else (start, end)
        for (start, end), added in zip(offsets, special, strict=True)
    )


def span_tokens(
    text: str,
    span: tuple[int, int],
    offsets: Sequence[tuple[int, int]],
    name: str,
    where: str = "in the prompt",
) -> list[int]:
    """Indices of the tokens of a span; for blanks see `token_regions`.

    Args:
        text: The text.
        span: [start, end) characters in it.
        offsets: As of `text_offsets`.
        name: Of the span's region, in an error.
        where: In an error, where it is.

    Raises:
        RegionError: No token is in it, or one holds a part of another word.
    """
    indices = [index for index, token in enumerate(offsets) if _belongs(text, token, span)]
    shared = [index for index in indices if _outside(text, offsets[index], span)]
    if shared or not indices:
        reason = "it has no token"
        if shared:
            reason = f"one token holds {text[slice(*offsets[shared[0]])]!r}"
        raise RegionError(
            f"region {name} cannot be located {where}: {reason}; use another prompt or tokenizer"
        )
    return indices


def _belongs(text: str, token: tuple[int, int], span: tuple[int, int]) -> bool:
    (start, end), (first, last) = token, span
    if start == end:  # a blank of its own, by a tokenizer that trims blanks from its offsets
        return first <= start < last
    if start < last and first < end:
        return True
    return start < first == end and text[start:end] == " "


def _outside(text: str, token: tuple[int, int], span: tuple[int, int]) -> bool:
    """Whether the token holds letters or digits outside the span."""
    (start, end), (first, last) = token, span
    outside = text[start : max(start, first)] + text[min(end, last) : end]
    return any(character.isalnum() for character in outside)


# ------------------------------------------------------------------------------------- giveaways

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


def find_giveaways(dataset: Dataset, prompts: Iterable[Prompt]) -> Giveaways:
    """Find prompts that contain their answer; case is ignored.

    Args:
        dataset: The prompts' data set.
        prompts: Prompts of it, of one template.
    """
    by_kind: dict[str, list[Prompt]] = {field.name: [] for field in fields(Giveaways)}
    for prompt in prompts:
        kind = _kind(_template(prompt.name, dataset), prompt)
        by_kind.get(kind, []).append(prompt)
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
    parts = _template(name, dataset).parts
    return sum(part.is_field and part.text == dataset.subject for part in parts)


def _kind(template: Template, prompt: Prompt) -> str:
    """The field of `Giveaways` that a prompt belongs to; empty for none, and for messages."""
    if prompt.messages:
        return ""
    text, filled = "", []
    for part, stretch in template.stretches(prompt.fact.fields):
        # Case folding changes lengths, so that the prompt's own spans do not apply.
        start, text = len(text), text + stretch.casefold()
        if part.is_field:
            filled.append((start, len(text)))
    target = prompt.target.casefold()
    mentions = whole_words(text, target)
    for start, end in mentions:
        if any(start < last and first < end for first, last in filled):
            return "by_field"
    if mentions:
        return "in_wording"
    first_word = re.split(_BREAK, target, maxsplit=1)[0] or target
    return "first_word" if whole_words(text, first_word) else ""
