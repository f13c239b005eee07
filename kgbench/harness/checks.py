"""What can be wrong with one document of a task, whatever the tokenizer."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kgbench.sites import REGIONS

__all__ = ["Fault", "context_fault", "gold_faults", "has_spans", "span_faults", "target_fault"]

Fault = tuple[str, str]
"""A field, and what is wrong with it."""

MARKED = tuple(region for region in REGIONS if region not in ("LT", "BOS"))
"""Regions that a row can say the place of; the others follow from the tokens."""


def has_spans(doc: Mapping[str, Any]) -> bool:
    """Whether a row says where its regions are, as our model understands it."""
    return isinstance(doc.get("query"), str) and isinstance(doc.get("spans"), Mapping)


def span_faults(doc: Mapping[str, Any]) -> Iterator[Fault]:
    """Spans that do not hold whole words of the query, or not the subject."""
    if not has_spans(doc):
        return
    for region, span in doc["spans"].items():
        if span is not None and (message := _span_fault(doc, region, span)):
            yield f"spans.{region}", message


def context_fault(doc: Mapping[str, Any], context: str) -> Fault | None:
    """A query that is not what the rendered context ends with."""
    if not has_spans(doc) or context.endswith(doc["query"]):
        return None
    place = context.rfind(doc["query"])
    if place < 0:
        return "query", f"{doc['query']!r} is not in the rendered context {context!r}, so that its spans say nothing"
    rest = context[place + len(doc["query"]) :]
    return "query", f"is not at the end of the rendered context, which goes on with {rest!r}, so that the last token is not the query's"


def target_fault(context: str, target: Any) -> str | None:
    """Why a target is none: no text, an empty one, or one that runs into the context."""
    if not isinstance(target, str):
        return (
            f"expected a text, found the {type(target).__name__} {target!r}; name a column of text, or let the template begin with a blank"
        )
    if not target.strip():
        return f"the target {target!r} is empty, so that there is nothing to score"
    if context and _within_word(context[-1], target[0]):
        return f"the target {target!r} runs into the context's last word {context.split()[-1]!r}; begin it with a blank"
    return None


def gold_faults(task: Any, doc: Mapping[str, Any]) -> Iterator[Fault]:
    """A right answer of a task with choices that is none of them, or another one than the row or the template says."""
    choices, gold = task.doc_to_choice(doc), task.doc_to_target(doc)
    written = _written(task, doc)
    meant = {text.strip() for text in (written, doc.get("object")) if isinstance(text, str)} & {choice.strip() for choice in choices}
    for each in gold if isinstance(gold, list) else [gold]:
        number = choices.index(each) if isinstance(each, str) and each in choices else each
        read = f"; lm-eval reads {written!r} as a number" if isinstance(each, int) and written is not None else ""
        if not isinstance(number, int) or not 0 <= number < len(choices):
            yield "doc_to_target", f"{each!r} is none of the {len(choices)} choices, which have the numbers 0 to {len(choices) - 1}{read}"
        elif meant and choices[number].strip() not in meant:
            right = " or ".join(map(repr, sorted(meant)))
            yield "doc_to_target", f"the right choice would be {choices[number]!r}, expected {right}{read}"


def _written(task: Any, doc: Mapping[str, Any]) -> str | None:
    """What a template for the target gives, before lm-eval makes a number of it; None where a column or a function is named."""
    from lm_eval.utils import apply_template

    template = task.config.doc_to_target
    return str(apply_template(template, doc)) if isinstance(template, str) and template not in task.features else None


def _span_fault(doc: Mapping[str, Any], region: str, span: Any) -> str | None:
    query = doc["query"]
    if region not in MARKED:
        return f"is no region that a row can place; expected one of {', '.join(MARKED)}"
    if not _is_pair(span):
        return f"expected the first character and the one after the last, found {span!r}"
    start, end = span
    if not 0 <= start < end <= len(query):
        return f"[{start}, {end}] is not a part of the query {query!r} of {len(query)} characters"
    text = query[start:end]
    if region == "FE" and isinstance(doc.get("subject"), str) and text != doc["subject"]:
        return f"[{start}, {end}] holds {text!r}, expected the subject {doc['subject']!r}"
    if text != text.strip():
        return f"[{start}, {end}] holds {text!r}, with a blank at its edge; expected whole words"
    if _within_word(query[start - 1 : start], text[0]) or _within_word(text[-1], query[end : end + 1]):
        return f"[{start}, {end}] holds {text!r}, which begins or ends within a word of {query!r}"
    return None


def _is_pair(span: Any) -> bool:
    numbers = isinstance(span, Sequence) and all(isinstance(end, int) and not isinstance(end, bool) for end in span)
    return numbers and len(span) == 2


def _within_word(before: str, after: str) -> bool:
    """Whether two characters that follow each other are of one word; scripts of wide characters are written without blanks."""
    wide = any(unicodedata.east_asian_width(character) in "WF" for character in (before + after))
    return before.isalnum() and after.isalnum() and not wide
