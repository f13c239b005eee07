"""The grammar of graft expressions: one for command line, YAML, records and Python.

::

    graft      := term (";" term)*                 later terms win where they overlap
    term       := positions [":" components] ["@" layers] ["=" donor]
    positions  := atom ("+" atom)*                 atom := ("ALL" | "NONE" | REGION | "(" positions ")") ["^C"]
    components := name ("+" name)*
    layers     := part ("," part)*                 "all" | 7 | 8-17 | p/q-r/s | first_half ... fourth_quarter
    donor      := name
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction
from types import MappingProxyType
from typing import NoReturn, TypeVar

from kgbench.errors import GraftSyntaxError
from kgbench.sites.graft import Atom, Graft, Layers, Positions, Term
from kgbench.sites.vocabulary import (
    COMPONENTS,
    GROUPS,
    LAYER_GROUPS,
    OUTSIDE,
    RECIPIENT,
    REGIONS,
    SYNONYMS,
)

__all__ = ["complement", "complement_graft", "parse_graft", "split_grafts"]

T = TypeVar("T")


def complement(positions: str) -> str:
    """The positions expression of all other tokens, BOS included.

    Raises:
        GraftSyntaxError: The text is not a positions expression.
    """
    parsed = _Parser(positions).only_positions()
    if len(parsed.atoms) == 1:
        (atom,) = parsed.atoms
        if not atom.complemented:
            return str(Positions((Atom(atom.of, True),)))
        return str(atom.of)
    return f"({parsed})^C"


def complement_graft(graft: Graft) -> Graft | None:
    """The graft of all other sites of the default components; None where several donors leave open which one they come from.

    A graft of whole positions becomes the graft of the other positions (`FE+LT` gives `(FE+LT)^C`).
    """
    donors = graft.donors()
    if len(donors) != 1:
        return None
    first = graft.terms[0]
    if len(graft.terms) == 1 and first.components is None and first.layers is None:
        return Graft(
            (replace(first, positions=_Parser(complement(str(first.positions))).only_positions()),)
        )
    everywhere = Term(Positions((Atom("ALL"),)), donor=donors[0])
    flipped = tuple(other for term in graft.terms if (other := _flipped(term, donors[0])))
    terms = flipped[1:] if first == everywhere else (everywhere, *flipped)
    return Graft(terms or (replace(everywhere, positions=Positions((Atom("NONE"),))),))


def _flipped(term: Term, donor: str) -> Term | None:
    """The same default sites with donor and recipient exchanged; None where a term puts back nothing of the default components."""
    if term.donor != RECIPIENT:
        return replace(term, donor=RECIPIENT)
    kept = tuple(c for c in term.components or () if c not in OUTSIDE[2:])
    return (
        replace(term, donor=donor, components=kept or None) if kept or not term.components else None
    )


def parse_graft(text: str) -> Graft:
    """Read a graft expression; `str` of the result reads back as the same graft.

    Raises:
        GraftSyntaxError: The text does not parse; the message points at the place and says what could stand there.
    """
    try:
        return _Parser(text).graft()
    except RecursionError:
        raise GraftSyntaxError(text[:40], 0, "fewer brackets within brackets") from None


def split_grafts(text: str) -> tuple[str, ...]:
    """Graft expressions separated by commas, as written.

    A comma within a list of layers separates nothing: after an `@`, what follows a comma is a graft only where it begins as one does,
    with a capital letter or a bracket, which no layer does. So `FE,LT@0,2,FE+LT` is `FE`, `LT@0,2` and `FE+LT`.
    """
    grafts: list[str] = []
    for piece in text.split(","):
        in_layers = bool(grafts) and "@" in grafts[-1].rpartition(";")[2]
        if in_layers and not re.match(r"\s*[A-Z(]", piece):
            grafts[-1] += f",{piece}"
        else:
            grafts.append(piece)
    return tuple(graft.strip() for graft in grafts)


class _Parser:
    """Recursive descent over the grammar at the head of this module."""

    _NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
    _DONOR = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
    _LAYER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9/]{0,9}(?:\s*-\s*[0-9][0-9/]{0,9})?")

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def graft(self) -> Graft:
        terms = [self._term()]
        while self._take(";"):
            terms.append(self._term())
        self._end("';' and another term")
        return Graft(tuple(terms))

    def only_positions(self) -> Positions:
        positions = self._positions()
        self._end("'+', '^C'")
        return positions

    def _end(self, instead: str) -> None:
        self._blank()
        if self.at < len(self.text):
            self._fail(self.at, f"{instead} or the end")

    def _term(self) -> Term:
        positions = self._positions()
        components = layers = None
        if self._take(":"):
            start = self.at
            components = self._several(self._component)
        if self._take("@"):
            layers = Layers(tuple(self._several(self._layer, ",")))
            outside = [c for c in components or () if c in OUTSIDE]
            if outside:
                self._fail(
                    start,
                    f"components inside the layers, since '@' follows; give {outside[0]} a term of its own",
                )
        donor = self._match(self._DONOR, "a donor's name") if self._take("=") else "sft"
        self._blank()
        if self.at < len(self.text) and self.text[self.at] != ";":
            self._fail(self.at, "'+', '^C', ':' components, '@' layers, '=' donor, ';' or the end")
        return Term(positions, tuple(components) if components else None, layers, donor)

    def _positions(self) -> Positions:
        return Positions(tuple(self._several(self._atom)))

    def _atom(self) -> Atom:
        if self._take("("):
            of: str | Positions = self._positions()
            if not self._take(")"):
                self._fail(self.at, "'+' or ')'")
        else:
            of = self._one_of((*REGIONS, "ALL", "NONE"), "a region")
        return Atom(of, self._take("^C"))

    def _component(self) -> str:
        return self._one_of((*GROUPS, *COMPONENTS), "a component", SYNONYMS)

    def _layer(self) -> str:
        self._blank()
        start = self.at
        expected = f"layers (7, 8-17, 0-1/2, {', '.join(('all', *LAYER_GROUPS))})"
        found = re.sub(r"\s", "", self._match(self._LAYER, expected))
        if found == "all" or found in LAYER_GROUPS:
            return found
        if not found[0].isdigit():
            self._fail(start, _nearest(found, ("all", *LAYER_GROUPS)) or expected)
        return self._fraction(found, start) if "/" in found else self._integers(found, start)

    def _integers(self, found: str, start: int) -> str:
        ends = [int(end) for end in found.split("-")]
        if ends != sorted(ends):
            self._fail(start, "a range whose first layer is not after its last")
        return "-".join(map(str, ends))

    def _fraction(self, found: str, start: int) -> str:
        expected = "two fractions between 0 and 1 with the smaller first, such as 1/2-1"
        ends = found.split("-")
        if len(ends) != 2 or not all(re.fullmatch(r"\d+(/0*[1-9]\d*)?", end) for end in ends):
            self._fail(start, expected)
        first, last = map(Fraction, ends)
        if not 0 <= first < last <= 1:
            self._fail(start, expected)
        return (
            "0/1-1/1" if first == 0 and last == 1 else f"{first}-{last}"
        )  # "0-1" would read back as integers

    def _several(self, one: Callable[[], T], separator: str = "+") -> list[T]:
        found = [one()]
        while self._take(separator):
            found.append(one())
        return found

    def _one_of(
        self, names: Sequence[str], what: str, synonyms: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        self._blank()
        start = self.at
        expected = f"{what} ({', '.join(names)})"
        found = self._match(self._NAME, expected + (" or '('" if what == "a region" else ""))
        found = synonyms.get(found, found)
        if found not in names:
            self._fail(start, _nearest(found, names) or expected)
        return found

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        self._blank()
        found = pattern.match(self.text, self.at)
        if found is None:
            self._fail(self.at, expected)
        self.at = found.end()
        return found.group()

    def _take(self, token: str) -> bool:
        self._blank()
        taken = self.text.startswith(token, self.at)
        self.at += len(token) * taken
        return taken

    def _blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _fail(self, at: int, expected: str) -> NoReturn:
        raise GraftSyntaxError(self.text, at, expected)


def _nearest(found: str, names: Sequence[str]) -> str | None:
    near = get_close_matches(found.lower(), [n.lower() for n in names], n=1, cutoff=0.6)
    return (
        next(f"{n} (did you mean {n!r}?)" for n in names if n.lower() == near[0]) if near else None
    )
