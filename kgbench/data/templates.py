"""The template language: fields filled from a fact, words marked with their region.

``{first_actor} {R:stars} {RP:in} a movie {P:alongside}`` holds the field ``first_actor``, the
literal words "stars", "in" and "alongside" with their regions, and plain text between. A doubled
brace is a literal brace. Spans come from filling the template, so a name that occurs twice, or
holds braces or quotes, is no trouble.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from string import Formatter

from kgbench.errors import InputError, UnknownNameError

MARKS = ("M", "R", "RP", "P")
"""Regions that a template can mark; FE follows from the subject, LT and BOS from the tokens."""


@dataclass(frozen=True)
class TemplatePart:
    """A stretch of a template: literal text, or a field to fill."""

    text: str
    """The literal, or the field's name."""
    is_field: bool = False
    regions: tuple[str, ...] = ()
    """Regions whose span this stretch is."""


@dataclass(frozen=True)
class Template:
    """A parsed template."""

    name: str
    parts: tuple[TemplatePart, ...]

    def bind(self, subject: str, object: str, fields: Collection[str], dataset: str) -> Template:
        """Resolve aliases and regions for one data set, and check that it can be filled.

        Args:
            subject: The data set's subject field, also written ``{subject}``; its first mention
                is FE.
            object: The data set's object field, also written ``{object}``, which must not be
                mentioned.
            fields: All fields of the data set.
            dataset: Its name, for messages.

        Raises:
            InputError: A field is lacking, the object is mentioned, or the subject is not.
        """
        alias = {"subject": subject, "object": object}
        pending = {"FE": subject, "M": "movie_title"}
        if any("M" in part.regions for part in self.parts):
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
                        f"{dataset!r} lacks (it has {', '.join(fields)}); choose another prompt, "
                        f"name the column that holds it by --column {field}=COLUMN, or give a "
                        f"template of your own by --template TEXT, such as '{{{subject}}} …'"
                    )
                regions = tuple(region for region, wanted in pending.items() if wanted == field)
                for region in regions:
                    del pending[region]
                part = TemplatePart(field, True, regions)
            bound.append(part)
        if "FE" in pending:
            written = " or ".join(dict.fromkeys((f"{{{subject}}}", "{subject}")))
            raise InputError(
                f"prompt {self.name!r} does not mention the subject: write {written} in its "
                "template"
            )
        return Template(self.name, tuple(bound))

    def fill(self, values: Mapping[str, str]) -> tuple[str, dict[str, tuple[int, int]]]:
        """Put values in place of fields.

        Returns:
            The text, and per region its [start, end) characters in it.
        """
        text, spans = "", {}
        for part in self.parts:
            start, text = len(text), text + (values[part.text] if part.is_field else part.text)
            spans.update(dict.fromkeys(part.regions, (start, len(text))))
        return text, spans


def parse_template(name: str, text: str) -> Template:
    """Read a template.

    Raises:
        InputError: Unbalanced braces, an empty or doubled mark, a field without a name, or a blank
            at the end.
        UnknownNameError: A mark that is no region.
    """
    if not re.fullmatch(r"[\w.-]+", name):
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
    if spec and field not in MARKS:
        hint = (
            f"Prompt {name!r} can mark words with these; FE, LT and BOS follow by themselves, "
            "and a field takes no colon."
        )
        raise UnknownNameError("region", field, MARKS, hint)
    if field in MARKS:
        if not spec or spec != spec.strip() or "{" in spec or "}" in spec:
            raise InputError(
                f"prompt {name!r}: {field} must mark words, no outer blanks or braces, "
                f"as in {{R:stars}}; found {spec!r}"
            )
        return TemplatePart(spec, regions=(field,))
    if not field.strip():
        raise InputError(
            f"prompt {name!r}: an empty pair of braces; write the name of a field in it"
        )
    return TemplatePart(field, True)
