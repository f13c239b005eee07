"""Checks of the spans in a task's rows: each holds whole words, FE the subject.

A span off by one character still grafts at some token, and the result looks like any other. So a
span is refused unless its ends are ends of words, marks of the sentence are left out, and quotation
marks and brackets come in pairs.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kgbench.sites import REGIONS

Fault = tuple[str, str]
"""Column of a row or key of a task, and what is wrong with it."""

PLACED = tuple(region for region in REGIONS if region not in ("LT", "BOS"))
"""Regions that a row places; LT and BOS follow from the tokens."""

_UNSPACED = ("THAI", "LAO", "KHMER", "MYANMAR")
"""Scripts without blanks between words, besides those of wide characters."""

_SEPARATORS = ",;:،؛，；：、。"  # noqa: RUF001 (other scripts have marks that look alike)
"""Marks of a sentence that are part of no word or name in it."""

_QUOTES: dict[str, str] = {}
for _kind in ("'‘’‚‹›`", '"“”„«»', "*", "_"):  # noqa: RUF001
    _QUOTES |= dict.fromkeys(_kind, _kind)
"""Marks that open or close by their place; any two of a kind can pair, as languages differ."""

_ABBREVIATIONS = " bros co corp dr etc feat inc jr ltd mr mrs ms mt no sr st vol vs "

_REGION_IN_TEXT = re.compile(rf"""["'](?:{"|".join(PLACED)})\\?["']""")


def has_spans(doc: Mapping[str, Any]) -> bool:
    """Whether a row places its regions in a form that the model reads."""
    return isinstance(doc.get("query"), str) and isinstance(doc.get("spans"), Mapping)


def span_faults(doc: Mapping[str, Any]) -> Iterator[Fault]:
    """Faults of the spans of a row, and spans in a form that the model would ignore."""
    if not has_spans(doc):
        if message := _ignored_spans(doc):
            yield "spans", message
        return
    for region, span in doc["spans"].items():
        if span is not None and (message := _span_fault(doc, region, span)):
            yield f"spans.{region}", message


def context_fault(doc: Mapping[str, Any], context: str) -> Fault | None:
    """A query that is not in the rendered context; text before and after it is no fault."""
    if not has_spans(doc) or doc["query"] in context:
        return None
    found = f"{doc['query']!r} is not in the rendered context {context!r}"
    return "query", f"{found}, so that its spans place nothing"


def target_fault(context: Any, target: Any) -> str | None:
    """Why a target cannot be scored: not a text, an empty one, or one that continues a word.

    Args:
        context: The text before it.
        target: The target; None where the model generates.
    """
    if not isinstance(context, str):
        return f"expected a text before it, found the {type(context).__name__} {context!r}"
    if target is None:
        return None
    if not isinstance(target, str):
        found = f"expected a text, found the {type(target).__name__} {target!r}"
        return f"{found}; name a column of text, or let the template begin with a blank"
    if not target.strip():
        return f"the target {target!r} is empty, so that there is nothing to score"
    if context and _within_word(context[-1], target[0]):
        last = context.split()[-1]
        return f"the target {target!r} runs into the last word {last!r}; begin it with a blank"
    return None


def _ignored_spans(doc: Mapping[str, Any]) -> str | None:
    """Why the model would ignore spans that name its regions."""
    spans = doc.get("spans")
    text = spans if isinstance(spans, str) else repr(spans)
    if spans is None or not _REGION_IN_TEXT.search(text):
        return None
    if not isinstance(spans, Mapping):
        found = f"expected [start, end] by region, found the {type(spans).__name__} {spans!r}"
        return f"{found}; the model would ignore them"
    if all(span is None for span in spans.values()):
        return None
    return "they place regions in a text 'query', which is missing; the model would ignore them"


def _span_fault(doc: Mapping[str, Any], region: str, span: Any) -> str | None:
    query = doc["query"]
    if region not in PLACED:
        return f"is no region that a row can place; expected one of {', '.join(PLACED)}"
    if not _is_pair(span):
        return f"expected the first character and the one after the last, found {span!r}"
    start, end = span
    if not 0 <= start < end <= len(query):
        return f"[{start}, {end}] is not a part of the query {query!r} of {len(query)} characters"
    message = _text_fault(doc, region, start, end)
    return f"[{start}, {end}] holds {query[start:end]!r}, {message}" if message else None


def _is_pair(span: Any) -> bool:
    if not isinstance(span, Sequence) or len(span) != 2:
        return False
    return all(isinstance(end, int) and not isinstance(end, bool) for end in span)


def _text_fault(doc: Mapping[str, Any], region: str, start: int, end: int) -> str | None:
    """What is wrong with the text of a span; FE and M are names, which may hold marks."""
    query = doc["query"]
    text = query[start:end]
    if region == "FE" and isinstance(doc.get("subject"), str) and text != doc["subject"]:
        return f"expected the subject {doc['subject']!r}"
    if text != text.strip():
        return "with a blank at its edge; expected whole words"
    cut = f"which begins or ends within a word of {query!r}"
    if _within_word(query[start - 1 : start], text[0]):
        return cut
    if _within_word(text[-1], query[end : end + 1]):
        return cut
    # A text that another column holds, such as a title, is whole, whatever its marks.
    columns = {value: name for name, value in doc.items() if isinstance(value, str)}
    del columns[query]
    if text in columns:
        return None
    for near in _neighbors(query, start, end):
        if near in columns:
            return f"expected {near!r}, the row's {columns[near]!r}"
    # An apostrophe or hyphen at an edge joins the word on either side of it.
    if _within_word(query[start - 1 : start], query[start + 1 : start + 2]):
        return cut
    if _within_word(query[end - 2 : end - 1], query[end : end + 1]):
        return cut
    return _mark_fault(query, region, start, end)


def _mark_fault(query: str, region: str, start: int, end: int) -> str | None:
    """What is wrong with the marks at the edges of a span."""
    paired: set[int] = set()
    for opening, closing in _pairs(query):
        paired |= {opening, closing}
        split = (start <= opening < end) != (start <= closing < end)
        at_edge = {opening, closing} & {start, end - 1} or opening == start - 1 or closing == end
        if split and at_edge:
            return "which has one of two quotation marks or brackets; expected both or neither"
    for place in (start, end - 1):
        if place not in paired and _is_foreign(query, region, start, end, place):
            return f"with {query[place]!r} at its edge; expected the words alone"
    return None


def _within_word(before: str, after: str) -> bool:
    """Whether two adjacent characters are of one word, as far as their script shows."""
    letters = before.isalnum() and after.isalnum()
    return letters and not any(map(_is_unspaced, before + after))


def _is_unspaced(character: str) -> bool:
    script = unicodedata.name(character, "").partition(" ")[0]
    return unicodedata.east_asian_width(character) in "WF" or script in _UNSPACED


def _neighbors(query: str, start: int, end: int) -> Iterator[str]:
    """Texts of the span with either end moved by one mark."""
    for first in range(max(0, start - 1), start + 2):
        for last in range(end - 1, min(len(query), end + 1) + 1):
            moved = query[min(first, start) : max(first, start)]
            moved += query[min(last, end) : max(last, end)]
            if first < last and all(unicodedata.category(mark)[0] in "PS" for mark in moved):
                yield query[first:last]


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """Places of marks that pair; an apostrophe pairs with nothing."""
    opened: dict[str, list[int]] = defaultdict(list)
    for place, mark in enumerate(text):
        category = unicodedata.category(mark)
        kind = _QUOTES.get(mark) or ("bracket" if category in ("Ps", "Pe") else None)
        if kind is None:
            continue
        before, after = text[place - 1 : place], text[place + 1 : place + 2]
        closes = category == "Pe" or bool(before.strip() and not after.isalnum())
        if opened[kind] and category != "Ps" and closes:
            yield opened[kind].pop(), place
        elif category == "Ps" or (kind != "bracket" and after.strip() and not before.isalnum()):
            opened[kind].append(place)


def _is_foreign(query: str, region: str, start: int, end: int, place: int) -> bool:
    """Whether an unpaired character at an edge of a span belongs to the sentence."""
    mark, is_name = query[place], region in ("FE", "M")
    if mark == "." and place == end - 1:
        abbreviated = _is_abbreviation(query[start:end])
        return not abbreviated and (not is_name or _is_sentence_end(query[end:]))
    is_mark = unicodedata.category(mark).startswith("P") and mark not in "%&#@"
    return mark in _SEPARATORS or (is_mark and not is_name)


def _is_abbreviation(text: str) -> bool:
    word = text.split()[-1].removesuffix(".").lower()
    return len(word) < 2 or "." in word or f" {word} " in _ABBREVIATIONS


def _is_sentence_end(rest: str) -> bool:
    """Whether a full stop before this text ends a sentence, as far as capitals show."""
    if not rest:
        return True
    following = next((character for character in rest if character.isalnum()), "")
    return rest[:1] not in _SEPARATORS and not (following.islower() or following.isdigit())
