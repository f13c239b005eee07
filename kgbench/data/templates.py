"""The template language: fields filled from a fact, words marked with their region.

``{first_actor} {R:stars} {RP:in} a movie {P:alongside}`` holds the field ``first_actor``, the
literal words "stars", "in" and "alongside" with their regions, and plain text between. Any name in
capitals can be a region, and a field can be marked too, as ``{TRIGGER:{adverb}}``. A doubled brace
is a literal brace. Spans come from filling the template, so a name that occurs twice, or
holds braces or quotes, is no trouble.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from string import Formatter

from kgbench.data.cases import MESSAGES
from kgbench.errors import InputError, UnknownNameError
from kgbench.sites import FOLLOWING, is_mark

MARKS = ("M", "R", "RP", "P")
"""Regions of facts that a template marks; it can mark others by any name in capitals."""

PLACE = "{}"
"""Place of the subject in a text of a fact."""

_JOINED = (
    r"[^\W_\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""A letter or digit of a script that separates words by blanks."""


def whole_words(text: str, words: str) -> list[tuple[int, int]]:
    """Occurrences of words in a text, as [start, end) characters."""
    if not words or words not in text:
        return []
    # A boundary only where the words end with such a letter: "C++" and 東京 have none.
    before = rf"(?<!{_JOINED})" if re.match(_JOINED, words[0]) else ""
    after = rf"(?!{_JOINED})" if re.match(_JOINED, words[-1]) else ""
    pattern = f"{before}(?={re.escape(words)}{after})"
    return [(match.start(), match.start() + len(words)) for match in re.finditer(pattern, text)]


def escaped(text: str) -> str:
    """A text as part of a template, in which braces are doubled."""
    return text.replace("{", "{{").replace("}", "}}")


def has_place(text: str, subject: str) -> bool:
    """Whether the place of the subject is marked in a text by `{}`."""
    return PLACE in text and PLACE not in subject


def around_subject(text: str, subject: str) -> tuple[str, str] | None:
    """The text before and after the subject: at its mark `{}`, or its one mention.

    Returns:
        None where it is mentioned nowhere, or where several mentions have no mark.
    """
    if has_place(text, subject):
        before, _, after = text.partition(PLACE)
        return before, after.replace(PLACE, subject)
    mentions = whole_words(text, subject)
    if len(mentions) != 1:
        return None
    ((start, end),) = mentions
    return text[:start], text[end:]


@dataclass(frozen=True)
class TemplatePart:
    """A stretch of a template: literal text, or a field to fill."""

    text: str
    """The literal, or the field's name."""
    is_field: bool = False
    regions: tuple[str, ...] = ()
    """Regions whose span this stretch is."""
    subject: str | None = None
    """Of a field whose text mentions the subject: the subject's field."""


@dataclass(frozen=True)
class Template:
    """A parsed template."""

    name: str
    parts: tuple[TemplatePart, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that it names, each once."""
        return tuple(dict.fromkeys(part.text for part in self.parts if part.is_field))

    @property
    def is_chat(self) -> bool:
        """Whether it stands for the messages of each row, whose contents are templates."""
        return MESSAGES in self.fields

    def subject_text(self, subject: str) -> str | None:
        """The field in whose text the subject is to be found: the only one, if it is another."""
        fields = self.fields
        if not subject or self.is_chat or len(fields) != 1 or fields[0] in (subject, "subject"):
            return None
        return fields[0]

    def bind(self, subject: str, object: str, fields: Collection[str], dataset: str) -> Template:
        """Resolve aliases and regions for one data set, and check that it can be filled.

        Args:
            subject: The data set's subject field, also written ``{subject}``; its first mention
                is FE. A template of one other field finds it in the text of that. Empty for none.
            object: The data set's object field, also written ``{object}``, which must not be
                mentioned. Empty for none.
            fields: All fields of the data set.
            dataset: Its name, for messages.

        Raises:
            InputError: A field is lacking, the object is mentioned, or the subject is not.
        """
        alias = {"subject": subject or "subject", "object": object or "object"}
        pending = {"FE": subject, "M": "movie_title"}
        text = self.subject_text(subject)
        if any("M" in part.regions for part in self.parts) or text is not None:
            del pending["M"]
        bound = []
        for part in self.parts:
            if part.is_field:
                field = alias.get(part.text, part.text)
                if field == object:
                    raise InputError(
                        f"prompt {self.name!r} mentions {field!r}, the object of data set "
                        f"{dataset!r}, and so gives the answer away"
                    )
                if field not in fields:
                    raise InputError(
                        f"prompt {self.name!r} needs the field {field!r}, which data set "
                        f"{dataset!r} lacks (it has {', '.join(fields)}); choose another --prompt, "
                        f"name the column that holds it by --column {field}=COLUMN, or give a "
                        f"template of your own by --template TEXT, such as '{{{subject}}} …'"
                    )
                if part.regions and field == text:
                    raise InputError(
                        f"prompt {self.name!r} marks {field!r}, in whose text the subject "
                        f"{subject!r} is to be found; mark words in a template that names the subject"
                    )
                regions = tuple(region for region, target in pending.items() if target == field)
                for region in regions:
                    del pending[region]
                regions = (*part.regions, *regions)
                part = TemplatePart(field, True, regions, subject if field == text else None)
            bound.append(part)
        if self.is_chat and len(bound) > 1:
            raise InputError(
                f"prompt {self.name!r}: {{{MESSAGES}}} stands for all messages of a row; leave out "
                "the words around it"
            )
        if subject and "FE" in pending and text is None and not self.is_chat:
            raise InputError(self.lacks_subject(subject))
        return Template(self.name, tuple(bound))

    def lacks_subject(self, subject: str) -> str:
        """Message on a template that does not mention the subject."""
        written = " or ".join(dict.fromkeys((f"{{{subject}}}", "{subject}")))
        return f"prompt {self.name!r} does not mention the subject: write {written} in its template"

    def stretches(self, values: Mapping[str, str]) -> Iterator[tuple[TemplatePart, str]]:
        """The texts of which a prompt consists, each with the part that it is of.

        Raises:
            InputError: A text that should mention the subject once does not.
        """
        for part in self.parts:
            text = values[part.text] if part.is_field else part.text
            if part.subject is None:
                yield part, text
                continue
            subject = values[part.subject]
            if (around := around_subject(text, subject)) is None:
                number = len(whole_words(text, subject))
                raise InputError(
                    f"{self.lacks_subject(part.subject)}, or give texts in which it stands once, "
                    f"or has {{}} in its place; {text!r} mentions {subject!r} {number} times"
                )
            yield part, around[0]
            yield replace(part, regions=("FE",)), subject
            yield part, around[1]

    def fill(self, values: Mapping[str, str]) -> tuple[str, dict[str, tuple[int, int]]]:
        """Put values in place of fields.

        Returns:
            The text, and per region its [start, end) characters in it.

        Raises:
            InputError: A text that should mention the subject once does not.
        """
        text, spans = "", {}
        for part, stretch in self.stretches(values):
            start, text = len(text), text + stretch
            spans.update(dict.fromkeys(part.regions, (start, len(text))))
        return text, spans


NAME = re.compile(r"[\w.-]+")
"""Name of a prompt."""
_SHORT = 30
"""Characters of a name that a template has from its words."""


def named_templates(texts: Iterable[str]) -> dict[str, str]:
    """Templates by name: of `NAME=TEXT` that name, of a text alone its first words.

    Raises:
        InputError: Two templates have one name.
    """
    templates: dict[str, str] = {}
    for entry in texts:
        name, equals, text = (part.strip() for part in entry.partition("="))
        if (
            equals
            and " " in name
            and "{" not in name
            and text
            and entry[entry.index("=") + 1] != " "
        ):
            raise InputError(
                f"--template {entry!r}: {name!r} cannot name a prompt, whose name has no blanks; a "
                f"text that holds '=' is given after a name, as in 'mine={entry.strip()}'"
            )
        if not equals or not NAME.fullmatch(name):
            name, text = _short_name(entry), entry.strip()
        if name in templates:
            raise InputError(
                f"two templates have the name {name!r}: give each one of its own, as in "
                f"'{name}-2={text}'"
            )
        templates[name] = text
    return templates


def prompts_of(
    prompts: str | Sequence[str] | Mapping[str, str] | None,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Names of prompts, and templates by name, of what a caller gives as prompts.

    Args:
        prompts: Templates by name; or names and templates without one, a name or several with commas.

    Returns:
        All names in order, and the templates.

    Raises:
        InputError: Two templates have one name.
    """
    if isinstance(prompts, Mapping):
        return tuple(prompts), dict(prompts)
    texts = list(prompts or ())
    if isinstance(prompts, str):
        texts = [prompts] if "{" in prompts else [name.strip() for name in prompts.split(",")]
    templates = named_templates(text for text in texts if "{" in text)
    remaining = iter(templates)
    return tuple(next(remaining) if "{" in text else text for text in texts), templates


def _short_name(text: str) -> str:
    """The first words of a template, or its fields where it has no words."""
    words = re.findall(r"\w+", re.sub(r"\{(?!\w+:)[^}]*\}|\{\w+:", " ", text))
    name = "-".join(words or re.findall(r"\w+", text)) or "mine"
    return name if len(name) <= _SHORT else name[: _SHORT + 1].rpartition("-")[0] or name[:_SHORT]


def parse_template(name: str, text: str) -> Template:
    """Read a template.

    Raises:
        InputError: Unbalanced braces, an empty or doubled mark, a field without a name, or a blank
            at the end.
        UnknownNameError: A mark that is no region.
    """
    if not NAME.fullmatch(name):
        raise InputError(
            f"{name!r} cannot name a prompt: expected letters, digits, '_', '.' and '-'"
        )
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise InputError(
            f"prompt {name!r}: cannot read the template {text!r}: {error}; "
            "write a literal brace twice"
        ) from None
    parts: list[TemplatePart] = []
    for literal, field, spec, conversion in pieces:
        if literal:
            parts.append(TemplatePart(literal))
        if field is not None:
            if conversion:
                raise InputError(
                    f"prompt {name!r}: the template {text!r} holds the conversion "
                    f"'!{conversion}'; expected plain fields"
                )
            parts.append(_placeholder(name, field, spec or ""))
    marked: list[str] = []
    for part in parts:
        marked += part.regions
    for region in marked:
        if marked.count(region) > 1:
            raise InputError(
                f"prompt {name!r} marks region {region} {marked.count(region)} times in {text!r}; "
                "one span each"
            )
    if text != text.rstrip():
        raise InputError(
            f"prompt {name!r} ends with a blank in {text!r}; end with the last word: "
            "the answer brings its own blank"
        )
    return Template(name, tuple(parts))


def _placeholder(name: str, field: str, spec: str) -> TemplatePart:
    if spec and not is_mark(field):
        hint = (
            f"Prompt {name!r} can mark words with these or any other name in capitals; "
            f"{', '.join(FOLLOWING)} follow by themselves, and a field takes no colon."
        )
        raise UnknownNameError("region", field, MARKS, hint)
    if spec or field in MARKS:
        if inner := re.fullmatch(r"\{([^{}:!]+)\}", spec):
            return TemplatePart(inner[1], True, (field,))
        if not spec or spec != spec.strip() or "{" in spec or "}" in spec:
            raise InputError(
                f"prompt {name!r}: {field} must mark words or one field, no outer blanks or other "
                f"braces, as in {{R:stars}} or {{R:{{verb}}}}; found {spec!r}"
            )
        return TemplatePart(spec, regions=(field,))
    if not field.strip():
        raise InputError(
            f"prompt {name!r}: an empty pair of braces; write the name of a field in it"
        )
    return TemplatePart(field, True)
