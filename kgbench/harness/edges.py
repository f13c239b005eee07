"""Whether a span ends where its words end: what stands at its edges."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["edge_fault", "within_word"]

_UNSPACED = ("THAI", "LAO", "KHMER", "MYANMAR")
"""Scripts written without blanks between words, beside those of wide characters."""

_SEPARATORS = ",;:،؛，；：、。"  # noqa: RUF001 (other scripts have marks that look alike)
"""Marks that belong to a sentence, and to no word or name in it."""

_QUOTES = {mark: kind for kind in ("'‘’‚‹›`", '"“”„«»', "*", "_") for mark in kind}  # noqa: RUF001
"""Marks of which the place tells whether they open or close; those of one kind go together, since languages pair them in every way."""

_ABBREVIATIONS = {
    "bros",
    "co",
    "corp",
    "dr",
    "etc",
    "feat",
    "inc",
    "jr",
    "ltd",
    "mr",
    "mrs",
    "ms",
    "mt",
    "no",
    "sr",
    "st",
    "vol",
    "vs",
}


def within_word(before: str, after: str) -> bool:
    """Whether two characters that follow each other are of one word, as far as their script tells."""
    return before.isalnum() and after.isalnum() and not any(map(_is_unspaced, before + after))


def edge_fault(doc: Mapping[str, Any], region: str, start: int, end: int) -> str | None:
    """Why a span has a mark too many or too few, in words that follow on "it holds this".

    Args:
        doc: A row; what another column holds, such as a title, is a right span as it stands.
        region: FE and M are names, which may end with marks of their own, as "Mamma Mia!" does.
        start: The span's first character in the row's query.
        end: The one after its last.
    """
    query, columns = (
        doc["query"],
        {
            value: name
            for name, value in doc.items()
            if isinstance(value, str) and value != doc["query"]
        },
    )
    if query[start:end] in columns:
        return None
    for text in _near(query, start, end):
        if text in columns:
            return f"expected {text!r}, the row's {columns[text]!r}"
    if within_word(query[start - 1 : start], query[start + 1 : start + 2]) or within_word(
        query[end - 2 : end - 1], query[end : end + 1]
    ):
        return f"which begins or ends within a word of {query!r}"
    pairs = list(_pairs(query))
    if any(
        (start <= i < end) != (start <= j < end)
        and ({i, j} & {start, end - 1} or i == start - 1 or j == end)
        for i, j in pairs
    ):
        return "which has one of two quotation marks or brackets; expected both or neither"
    paired = {place for pair in pairs for place in pair}
    edges = [
        query[place]
        for place in (start, end - 1)
        if place not in paired and _is_foreign(query, region, start, end, place)
    ]
    return f"with {edges[0]!r} at its edge; expected the words alone" if edges else None


def _near(query: str, start: int, end: int) -> Iterator[str]:
    """What a span would hold with either end one mark further in or out."""
    for first in range(max(0, start - 1), start + 2):
        for last in range(end - 1, min(len(query), end + 1) + 1):
            moved = (
                query[min(first, start) : max(first, start)]
                + query[min(last, end) : max(last, end)]
            )
            if first < last and all(
                unicodedata.category(character)[0] in "PS" for character in moved
            ):
                yield query[first:last]


def _pairs(text: str) -> Iterator[tuple[int, int]]:
    """The places of marks that go together; an apostrophe has no other to go with."""
    opened: dict[str, list[int]] = defaultdict(list)
    for place, mark in enumerate(text):
        if mark.isalnum() or mark.isspace():
            continue
        category, before, after = (
            unicodedata.category(mark),
            text[place - 1 : place],
            text[place + 1 : place + 2],
        )
        kind = _QUOTES.get(mark) or ("bracket" if category in ("Ps", "Pe") else None)
        if kind is None:
            continue
        if (
            opened[kind]
            and category != "Ps"
            and (category == "Pe" or (before.strip() and not after.isalnum()))
        ):
            yield opened[kind].pop(), place
        elif category == "Ps" or (kind != "bracket" and after.strip() and not before.isalnum()):
            opened[kind].append(place)


def _is_foreign(query: str, region: str, start: int, end: int, place: int) -> bool:
    """Whether a character at an edge of a span, which goes with no other, is the sentence's."""
    mark = query[place]
    if mark == "." and place == end - 1:
        return not _is_abbreviation(query[start:end]) and (
            region not in ("FE", "M") or _ends_sentence(query[end:])
        )
    is_mark = unicodedata.category(mark).startswith("P") and mark not in "%&#@"
    return mark in _SEPARATORS or (is_mark and region not in ("FE", "M"))


def _is_abbreviation(text: str) -> bool:
    word = text.split()[-1].removesuffix(".").lower()
    return len(word) < 2 or "." in word or word in _ABBREVIATIONS


def _ends_sentence(rest: str) -> bool:
    """Whether a sentence begins after a full stop, as far as capitals tell."""
    following = next((character for character in rest if character.isalnum()), "")
    return (
        rest[:1] not in _SEPARATORS and not following.islower() and not following.isdigit()
        if rest
        else True
    )


def _is_unspaced(character: str) -> bool:
    return (
        unicodedata.east_asian_width(character) in "WF"
        or unicodedata.name(character, "").partition(" ")[0] in _UNSPACED
    )
