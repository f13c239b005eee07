"""What can be wrong with one document of a task, whatever the tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kgbench.harness.edges import edge_fault, within_word
from kgbench.harness.originals import Spans
from kgbench.sites import REGIONS

__all__ = ["Fault", "context_fault", "gold_faults", "has_spans", "span_faults", "target_fault"]

Fault = tuple[str, str]
"""A field, and what is wrong with it."""

MARKED = tuple(region for region in REGIONS if region not in ("LT", "BOS"))
"""Regions that a row can say the place of; the others follow from the tokens."""


def has_spans(doc: Mapping[str, Any]) -> bool:
    """Whether a row says where its regions are, as our model understands it."""
    return isinstance(doc.get("query"), str) and isinstance(doc.get("spans"), Mapping)


def span_faults(doc: Mapping[str, Any], original: Spans = MappingProxyType({})) -> Iterator[Fault]:
    """Spans that do not hold whole words of the query, or not the subject, or that our model would not understand.

    Args:
        doc: A row.
        original: The spans of the prompt that the row was made of, where it is known; those here must be the same.
    """
    if not has_spans(doc):
        if (message := _unread_spans(doc)) is not None:
            yield "spans", message
        return
    for region, span in doc["spans"].items():
        if span is not None and (message := _span_fault(doc, region, span, original.get(region))):
            yield f"spans.{region}", message


def context_fault(doc: Mapping[str, Any], context: str) -> Fault | None:
    """A query that is not in the rendered context; what comes before and after it is no fault."""
    if not has_spans(doc) or doc["query"] in context:
        return None
    return (
        "query",
        f"{doc['query']!r} is not in the rendered context {context!r}, so that its spans say nothing",
    )


def target_fault(context: str, target: Any) -> str | None:
    """Why a target is none: no text, an empty one, or one that runs into the context."""
    if not isinstance(target, str):
        return (
            f"expected a text, found the {type(target).__name__} {target!r}; "
            "name a column of text, or let the template begin with a blank"
        )
    if not target.strip():
        return f"the target {target!r} is empty, so that there is nothing to score"
    if context and within_word(context[-1], target[0]):
        return f"the target {target!r} runs into the context's last word {context.split()[-1]!r}; begin it with a blank"
    return None


def gold_faults(task: Any, doc: Mapping[str, Any]) -> Iterator[Fault]:
    """A right answer of a task with choices that is none of them, or another one than the row or the template says."""
    choices, gold = task.doc_to_choice(doc), task.doc_to_target(doc)
    written = _written(task, doc)
    named = {
        text.strip()
        for text in (written, doc.get("object") if _is_ours(doc) else None)
        if isinstance(text, str)
    }
    meant = named & {choice.strip() for choice in choices}
    for each in gold if isinstance(gold, list) else [gold]:
        number = choices.index(each) if isinstance(each, str) and each in choices else each
        read = (
            f"; lm-eval reads {written!r} as a number"
            if isinstance(each, int) and written is not None
            else ""
        )
        if not isinstance(number, int) or not 0 <= number < len(choices):
            yield (
                "doc_to_target",
                f"{each!r} is none of the {len(choices)} choices, which have the numbers 0 to {len(choices) - 1}{read}",
            )
        elif meant and choices[number].strip() not in meant:
            right = " or ".join(map(repr, sorted(meant)))
            yield (
                "doc_to_target",
                f"the right choice would be {choices[number]!r}, expected {right}{read}{_ADVICE if read else ''}",
            )


_ADVICE = ", not as that choice; if a number is meant, name a column of whole numbers"


def _is_ours(doc: Mapping[str, Any]) -> bool:
    """Whether a row is one of kgbench's by its shape, so that its column `object` is the answer."""
    return isinstance(doc.get("fingerprint"), str) or (
        has_spans(doc) and bool(doc.keys() & {"candidates", "gold"})
    )


def _written(task: Any, doc: Mapping[str, Any]) -> str | None:
    """What a template for the target gives, before lm-eval makes a number of it.

    None where a column or a function is named, or the template gives a number by itself, which can only be that of a choice.
    """
    from lm_eval.utils import apply_template

    template = task.config.doc_to_target
    if not isinstance(template, str) or template in task.features:
        return None
    written = str(apply_template(template, doc))
    return None if written.isdigit() and _gives_number(template, doc) else written


def _gives_number(template: str, doc: Mapping[str, Any]) -> bool:
    """Whether a template is one expression with a whole number for a value, such as the name of a column of labels."""
    from lm_eval.utils import env

    found = re.fullmatch(r"\s*\{\{-?((?:(?!\}\}).)*?)-?\}\}\s*", template, re.DOTALL)
    return found is not None and isinstance(env.compile_expression(found[1])(**doc), int)


def _unread_spans(doc: Mapping[str, Any]) -> str | None:
    """Why spans that name our regions are none to our model."""
    spans = doc.get("spans")
    said = spans if isinstance(spans, str) else repr(spans)
    if spans is None or not (isinstance(doc.get("fingerprint"), str) or _REGION_NAMED.search(said)):
        return None
    if isinstance(spans, Mapping):
        if all(span is None for span in spans.values()):
            return None
        return f"they are places in a text 'query', but the row has {_kind(doc.get('query'))} there; our model would take no notice of them"
    return f"expected [start, end] by region, found the {_kind(spans)} {spans!r}; our model would take no notice of it"


_REGION_NAMED = re.compile(rf"""["'](?:{"|".join(MARKED)})\\?["']""")


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _span_fault(
    doc: Mapping[str, Any], region: str, span: Any, original: tuple[int, int] | None
) -> str | None:
    query = doc["query"]
    if region not in MARKED:
        return f"is no region that a row can place; expected one of {', '.join(MARKED)}"
    if not _is_pair(span):
        return f"expected the first character and the one after the last, found {span!r}"
    start, end = span
    if not 0 <= start < end <= len(query):
        return f"[{start}, {end}] is not a part of the query {query!r} of {len(query)} characters"
    message = _text_fault(doc, region, (start, end), original)
    return f"[{start}, {end}] holds {query[start:end]!r}, {message}" if message else None


def _text_fault(
    doc: Mapping[str, Any], region: str, span: tuple[int, int], original: tuple[int, int] | None
) -> str | None:
    """Why what a span holds is not what it should, in words that follow on "it holds this"."""
    query, (start, end) = doc["query"], span
    text = query[start:end]
    if region == "FE" and isinstance(doc.get("subject"), str) and text != doc["subject"]:
        return f"expected the subject {doc['subject']!r}"
    if original is not None:
        first, last = original
        return (
            None
            if span == original
            else f"expected [{first}, {last}], {query[first:last]!r}, as in the prompt {doc['prompt']!r}"
        )
    if text != text.strip():
        return "with a blank at its edge; expected whole words"
    if within_word(query[start - 1 : start], text[0]) or within_word(
        text[-1], query[end : end + 1]
    ):
        return f"which begins or ends within a word of {query!r}"
    return edge_fault(doc, region, start, end)


def _is_pair(span: Any) -> bool:
    numbers = isinstance(span, Sequence) and all(
        isinstance(end, int) and not isinstance(end, bool) for end in span
    )
    return numbers and len(span) == 2
