"""Parser of graft expressions, as used on the command line, in YAML, in records and in Python.

::

    graft      := term (";" term)*                 where terms overlap, the later one wins
    term       := positions [":" components] ["@" layers] ["=" donor]
    positions  := atom ("+" atom)*
    atom       := ("ALL" | "NONE" | REGION | "(" positions ")") ["^C"]
    REGION     := upper-case name | "LT-" 1, 2, ... | substring of the prompt in quotes
    components := name ("+" name)*                 of q, k, v and o also a head, such as o.h3
    layers     := part ("," part)*
    part       := "all" | 7 | 8-17 | p/q-r/s | first_half ... fourth_quarter
    donor      := [share "*"] name ["[" n ["-" m] "]"]    a share of its change; singular directions
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction
from typing import NoReturn, TypeVar

from kgbench.errors import GraftSyntaxError
from kgbench.sites.graft import Atom, Graft, Layers, Positions, Term
from kgbench.sites.vocabulary import (
    COMPONENTS,
    FOLLOWING,
    GROUPS,
    LAYER_GROUPS,
    OUTSIDE,
    PART,
    RECIPIENT,
    REGIONS,
    SYNONYMS,
    DonorPart,
    head_of,
    is_mark,
    part_of,
)

T = TypeVar("T")

_QUOTED = r"'[^']+'|\"[^\"]+\""


def complement(positions: str) -> str:
    """The positions expression of all other tokens, BOS included.

    Raises:
        GraftSyntaxError: The text is not a positions expression.
    """
    return str(_others(_Parser(positions).only_positions()))


def _others(positions: Positions) -> Positions:
    """All other tokens."""
    if len(positions.atoms) > 1:
        return Positions((Atom(positions, True),))
    (atom,) = positions.atoms
    if not atom.complemented:
        return Positions((Atom(atom.of, True),))
    return atom.of if isinstance(atom.of, Positions) else Positions((Atom(atom.of),))


def complement_graft(graft: Graft) -> Graft | None:
    """The graft of all other sites of the default components.

    A graft of all default components at some positions becomes the graft of the other positions:
    `FE+LT` gives `(FE+LT)^C`.

    Returns:
        The complement; None for several donors, whose weights at the other sites are ambiguous.
    """
    donors = graft.donors()
    if len(donors) != 1:
        return None
    first = graft.terms[0]
    if len(graft.terms) == 1 and first.components is None and first.layers is None:
        return Graft((replace(first, positions=_others(first.positions)),))
    everywhere = Term(Positions((Atom("ALL"),)), donor=donors[0])
    # The complement starts from the donor everywhere and exchanges donor and recipient in every
    # term; later terms win in both, so their order stays.
    swaps = [swap for term in graft.terms if (swap := _swap(term, donors[0])) is not None]
    terms = swaps[1:] if first == everywhere else [everywhere, *swaps]
    nowhere = replace(everywhere, positions=Positions((Atom("NONE"),)))
    return Graft(tuple(terms) or (nowhere,))


def _swap(term: Term, donor: str) -> Term | None:
    """Exchange donor and recipient at the term's default sites; None if it has no default site."""
    if term.donor != RECIPIENT:
        return replace(term, donor=RECIPIENT)
    # Final norm and head are no default components: the complement leaves them to the recipient.
    components = tuple(c for c in term.components or () if c not in OUTSIDE[2:])
    if term.components and not components:
        return None
    return replace(term, donor=donor, components=components or None)


def parse_graft(text: str, components: Collection[str] = COMPONENTS) -> Graft:
    """Parse a graft expression; `str` of the result parses to the same graft.

    Args:
        text: The expression, such as `FE:ffn@second_half; LT`.
        components: Those that an error lists, where it is known which the model has.

    Raises:
        GraftSyntaxError: The text does not parse; the message gives the position and the expected
            tokens.
    """
    try:
        return _Parser(text, components).graft()
    except RecursionError:
        raise GraftSyntaxError(text[:40], 0, "fewer brackets within brackets") from None


def split_grafts(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of graft expressions.

    Lists of layers contain commas too. After an `@`, a comma starts a new graft only before a
    capital letter, a bracket or a quote, since no layer starts with any: `FE,LT@0,2,FE+LT` is
    `FE`, `LT@0,2` and `FE+LT`. What is in quotes is never split.
    """
    masked: list[str] = []
    for piece in re.sub(_QUOTED, lambda quoted: '"' * len(quoted[0]), text).split(","):
        in_layers = bool(masked) and "@" in masked[-1].rpartition(";")[2]
        if in_layers and not re.match(r"\s*[A-Z('\"]", piece):
            masked[-1] += f",{piece}"
        else:
            masked.append(piece)
    grafts, start = [], 0
    for piece in masked:
        grafts.append(text[start : start + len(piece)].strip())
        start += len(piece) + 1
    return tuple(grafts)


class _Parser:
    """Recursive-descent parser of the grammar in the module's docstring."""

    _NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
    _REGION = re.compile(rf"{_QUOTED}|LT-[1-9][0-9]*|{_NAME.pattern}")
    _LAYER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9/]{0,9}(?:\s*-\s*[0-9][0-9/]{0,9})?")

    def __init__(self, text: str, components: Collection[str] = COMPONENTS) -> None:
        self.text, self.at, self.components = text, 0, components

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
                    "components inside the layers, since '@' follows; "
                    f"give {outside[0]} a term of its own",
                )
        donor = self._donor() if self._take("=") else "sft"
        self._blank()
        if self.at < len(self.text) and self.text[self.at] != ";":
            self._fail(self.at, "'+', '^C', ':' components, '@' layers, '=' donor, ';' or the end")
        return Term(positions, tuple(components) if components else None, layers, donor)

    def _donor(self) -> str:
        self._blank()
        start = self.at
        text = self._match(PART, "a donor's name, a share of it (0.5*sft) or directions (sft[0-3])")
        try:
            part = part_of(text)
        except ValueError:
            self._fail(start, "directions whose first is not after their last, such as sft[0-3]")
        if part.donor == RECIPIENT and part != DonorPart(RECIPIENT):
            self._fail(
                start, "a finetuned model, since the base has no change of which to take a part"
            )
        return str(part)

    def _positions(self) -> Positions:
        return Positions(tuple(self._several(self._atom)))

    def _atom(self) -> Atom:
        if self._take("("):
            of: str | Positions = self._positions()
            if not self._take(")"):
                self._fail(self.at, "'+' or ')'")
        else:
            of = self._region()
        return Atom(of, self._take("^C"))

    def _region(self) -> str:
        names = (*REGIONS, *FOLLOWING[3:], "ALL", "NONE")
        expected = f"a region ({', '.join(names)}, a name in capitals, a quoted text) or '('"
        self._blank()
        start = self.at
        name = self._match(self._REGION, expected)
        if name[0] in "'\"":
            if not name.isprintable():
                self._fail(start, "a quoted text of one line")
            return name if "'" in name[1:-1] else f"'{name[1:-1]}'"
        if not (name in names or name.startswith("LT-") or is_mark(name)):
            self._fail(start, _nearest(name, names) or expected)
        return name

    def _component(self) -> str:
        self._blank()
        name = self._NAME.match(self.text, self.at)
        if name is not None and head_of(name.group())[1] is not None:
            self.at = name.end()
            return name.group()
        names, here, start = (*GROUPS, *COMPONENTS), {*self.components}, self.at
        listed = [name for name in names if here & {*GROUPS.get(name, (name,))}]
        expected = f"a component ({', '.join(listed)})"
        written = self._match(self._NAME, expected)
        component = SYNONYMS.get(written, written)
        if component not in names:
            last = component.rpartition(".")[2]  # of a module's path, such as mlp.down_proj
            self._fail(start, _nearest(SYNONYMS.get(last, last), names) or expected)
        return component

    def _layer(self) -> str:
        self._blank()
        start = self.at
        expected = f"layers (7, 8-17, 0-1/2, {', '.join(('all', *LAYER_GROUPS))})"
        part = re.sub(r"\s", "", self._match(self._LAYER, expected))
        if part == "all" or part in LAYER_GROUPS:
            return part
        if not part[0].isdigit():
            self._fail(start, _nearest(part, ("all", *LAYER_GROUPS)) or expected)
        return self._fraction(part, start) if "/" in part else self._integers(part, start)

    def _integers(self, part: str, start: int) -> str:
        ends = list(map(int, part.split("-")))
        if ends != sorted(ends):
            self._fail(start, "a range whose first layer is not after its last")
        return "-".join(map(str, ends))

    def _fraction(self, part: str, start: int) -> str:
        expected = "two fractions between 0 and 1 with the smaller first, such as 1/2-1"
        ends = part.split("-")
        if len(ends) != 2 or not all(re.fullmatch(r"\d+(/0*[1-9]\d*)?", end) for end in ends):
            self._fail(start, expected)
        first, last = map(Fraction, ends)
        if not 0 <= first < last <= 1:
            self._fail(start, expected)
        # "0-1" would parse as layers 0 and 1.
        return "0/1-1/1" if first == 0 and last == 1 else f"{first}-{last}"

    def _several(self, parse_item: Callable[[], T], separator: str = "+") -> list[T]:
        items = [parse_item()]
        while self._take(separator):
            items.append(parse_item())
        return items

    def _match(self, pattern: re.Pattern[str], expected: str) -> str:
        self._blank()
        match = pattern.match(self.text, self.at)
        if match is None:
            self._fail(self.at, expected)
        self.at = match.end()
        return match.group()

    def _take(self, token: str) -> bool:
        """Consume a token if it comes next."""
        self._blank()
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def _blank(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _fail(self, at: int, expected: str) -> NoReturn:
        raise GraftSyntaxError(self.text, at, expected)


def _nearest(word: str, names: Sequence[str]) -> str | None:
    by_lower_case = {name.lower(): name for name in reversed(names)}
    matches = get_close_matches(word.lower(), list(by_lower_case), n=1, cutoff=0.6)
    if not matches:
        return None
    name = by_lower_case[matches[0]]
    return f"{name} (did you mean {name!r}?)"
