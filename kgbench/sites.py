"""The vocabulary of places in a model and a prompt, and the grammar of graft expressions.

graft      := term (";" term)*                 later terms win where they overlap
term       := positions [":" components] ["@" layers] ["=" donor]
positions  := atom ("+" atom)*                 atom := ("ALL" | "NONE" | REGION | "(" positions ")") ["^C"]
components := name ("+" name)*
layers     := part ("," part)*                 "all" | 7 | 8-17 | p/q-r/s | first_half ... fourth_quarter
donor      := name
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import NamedTuple, NoReturn, TypeVar

from kgbench.errors import GraftSyntaxError, InputError, RegionError

__all__ = [
    "BASELINES",
    "COMPONENTS",
    "CONFIGURATIONS",
    "GROUPS",
    "LAYER_GROUPS",
    "OUTSIDE",
    "PATHWAYS",
    "PER_LAYER",
    "RECIPIENT",
    "REGIONS",
    "SCORED_REGIONS",
    "Atom",
    "Graft",
    "Layers",
    "Positions",
    "Site",
    "SiteScores",
    "Term",
    "complement",
    "complement_graft",
    "parse_graft",
    "partition",
]

T = TypeVar("T")

REGIONS = ("FE", "LT", "M", "R", "RP", "P", "BOS")
"""Named token spans of a prompt; they may overlap and need not cover it."""

SCORED_REGIONS = ("LT", "FE", "M", "RP", "R", "P", "BOS", "REST")
"""A partition of a prompt's tokens for scoring: the first that applies to a token."""

PER_LAYER = ("ln_1", "q_norm", "k_norm", "q", "k", "v", "o", "ln_1_post", "ln_2", "gate", "up", "down", "ln_2_post")
"""Weight-bearing parts of a layer, in the order of computation."""

OUTSIDE = ("emb", "pos", "ln_f", "head")
"""Weight-bearing parts outside the layers."""

COMPONENTS = (*OUTSIDE[:2], *PER_LAYER, *OUTSIDE[2:])

GROUPS: Mapping[str, tuple[str, ...]] = {
    "attn": ("q_norm", "k_norm", "q", "k", "v"),
    "ffn": ("gate", "up", "down"),
    "ln": ("ln_1", "ln_1_post", "ln_2", "ln_2_post"),
    "all": (*OUTSIDE[:2], *PER_LAYER),
}
"""Names for several components; `all` holds neither final norm nor head."""

LAYER_GROUPS: Mapping[str, tuple[Fraction, Fraction]] = {
    "first_half": (Fraction(0), Fraction(1, 2)),
    "second_half": (Fraction(1, 2), Fraction(1)),
    "first_quarter": (Fraction(0), Fraction(1, 4)),
    "second_quarter": (Fraction(1, 4), Fraction(1, 2)),
    "third_quarter": (Fraction(1, 2), Fraction(3, 4)),
    "fourth_quarter": (Fraction(3, 4), Fraction(1)),
}

BASELINES = ("PRE", "SFT")
"""Configurations that are no graft: the recipient and the donor by themselves."""

PATHWAYS = ("FE", "LT", "FE+LT", "(FE+LT)^C", "FE^C", "LT^C")
CONFIGURATIONS = (*BASELINES, "ALL", *PATHWAYS)
"""The default suite, in the paper's order."""

RECIPIENT = "recipient"
"""The reserved donor name that puts the recipient's weights back."""


class Site(NamedTuple):
    """What a localizer scores and an intervention addresses."""

    layer: int | None
    """None outside the layers."""
    component: str
    region: str
    """One of `SCORED_REGIONS`."""


SiteScores = Mapping[Site, float]
"""How responsible each site is; higher is more."""


@dataclass(frozen=True)
class Atom:
    """One region, `ALL`, `NONE` or a bracket, possibly complemented."""

    of: str | Positions
    complemented: bool = False

    def tokens(self, regions: Mapping[str, Sequence[int]], n: int) -> frozenset[int]:
        """Token indices, among `range(n)`; see `Positions.tokens`."""
        everything = frozenset(range(n))
        if isinstance(self.of, Positions):
            inside = self.of.tokens(regions, n)
        elif self.of in ("ALL", "NONE"):
            inside = everything if self.of == "ALL" else frozenset()
        elif self.of in regions:
            inside = frozenset(regions[self.of])
        else:
            raise RegionError(f"the prompt has no region {self.of}; it has {', '.join(regions)}")
        return everything - inside if self.complemented else inside

    def __str__(self) -> str:
        inner = f"({self.of})" if isinstance(self.of, Positions) else self.of
        return f"{inner}^C" if self.complemented else inner


@dataclass(frozen=True)
class Positions:
    """A union of atoms: which tokens of a prompt."""

    atoms: tuple[Atom, ...]

    def tokens(self, regions: Mapping[str, Sequence[int]], n: int) -> frozenset[int]:
        """Token indices that the expression names.

        Args:
            regions: Token indices of each region of the prompt.
            n: Number of tokens of the prompt; complements are taken in `range(n)`.

        Raises:
            RegionError: The prompt does not have a region that is named.
        """
        return frozenset().union(*(atom.tokens(regions, n) for atom in self.atoms))

    def regions(self) -> frozenset[str]:
        """Names of all regions that the expression mentions."""
        inner = (a.of.regions() if isinstance(a.of, Positions) else frozenset({a.of}) & frozenset(REGIONS) for a in self.atoms)
        return frozenset().union(*inner)

    def __str__(self) -> str:
        return "+".join(map(str, self.atoms))


@dataclass(frozen=True)
class Layers:
    """A set of layers, written for models of any depth."""

    parts: tuple[str, ...]
    """Canonical texts: `all`, an integer, `a-b`, `p/q-r/s` or a layer group."""

    def resolve(self, n: int) -> frozenset[int]:
        """Layer indices in a model of `n` layers; a layer group may be empty where `n` is small.

        Raises:
            InputError: An integer names a layer that the model does not have.
        """
        return frozenset().union(*(self._part(part, n) for part in self.parts))

    @staticmethod
    def _part(part: str, n: int) -> range:
        if part == "all":
            return range(n)
        if (ends := _fractions(part)) is not None:
            return range(int(ends[0] * n), int(ends[1] * n))
        first, _, last = part.partition("-")
        if int(last or first) >= n:
            raise InputError(f"layer {last or first} in '@{part}' does not exist: the model has {n} layers, 0-{n - 1}")
        return range(int(first), int(last or first) + 1)

    def __str__(self) -> str:
        return ",".join(self.parts)


def _fractions(part: str) -> tuple[Fraction, Fraction] | None:
    if part in LAYER_GROUPS:
        return LAYER_GROUPS[part]
    if "/" not in part:
        return None
    first, _, last = part.partition("-")
    return Fraction(first), Fraction(last)


@dataclass(frozen=True)
class Term:
    """One donor's weights at some positions, components and layers."""

    positions: Positions
    components: tuple[str, ...] | None = None
    """Names as written (components or groups); None is the default, `all`."""
    layers: Layers | None = None
    donor: str = "sft"

    def sites(self, n_layers: int) -> Iterator[tuple[int | None, str]]:
        """Every (layer, component) that the term names in a model of `n_layers`; layer None is outside the layers."""
        layers = sorted(self.layers.resolve(n_layers)) if self.layers else range(n_layers)
        for component in self.component_names():
            yield from ((layer, component) for layer in layers) if component in PER_LAYER else [(None, component)]

    def component_names(self) -> tuple[str, ...]:
        """Components with groups expanded, in the order of computation."""
        named = self.components or ("all",)
        chosen = {c for name in named for c in GROUPS.get(name, (name,))}
        if self.layers is not None:
            chosen -= set(OUTSIDE)
        return tuple(c for c in COMPONENTS if c in chosen)

    def __str__(self) -> str:
        components = f":{'+'.join(self.components)}" if self.components else ""
        layers = f"@{self.layers}" if self.layers else ""
        return f"{self.positions}{components}{layers}{'' if self.donor == 'sft' else '=' + self.donor}"


@dataclass(frozen=True)
class Graft:
    """Which donor's weights are used at which sites; later terms win."""

    terms: tuple[Term, ...]

    def regions(self) -> frozenset[str]:
        """Names of all regions that the expression mentions."""
        return frozenset().union(*(term.positions.regions() for term in self.terms))

    def donors(self) -> tuple[str, ...]:
        """Donor names in order of first mention, without `recipient`."""
        return tuple(dict.fromkeys(t.donor for t in self.terms if t.donor != RECIPIENT))

    def named_components(self) -> frozenset[str]:
        """Components that are named one by one, not through a group."""
        return frozenset(c for t in self.terms for c in t.components or () if c not in GROUPS)

    def __str__(self) -> str:
        return "; ".join(map(str, self.terms))


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
        return Graft((replace(first, positions=_Parser(complement(str(first.positions))).only_positions()),))
    everywhere = Term(Positions((Atom("ALL"),)), donor=donors[0])
    flipped = tuple(other for term in graft.terms if (other := _flipped(term, donors[0])))
    terms = flipped[1:] if first == everywhere else (everywhere, *flipped)
    return Graft(terms or (replace(everywhere, positions=Positions((Atom("NONE"),))),))


def _flipped(term: Term, donor: str) -> Term | None:
    """The same default sites with donor and recipient exchanged; None where a term puts back nothing of the default components."""
    if term.donor != RECIPIENT:
        return replace(term, donor=RECIPIENT)
    kept = tuple(c for c in term.components or () if c not in OUTSIDE[2:])
    return replace(term, donor=donor, components=kept or None) if kept or not term.components else None


def partition(regions: Mapping[str, Sequence[int]], n: int) -> list[str]:
    """The region that each token of a prompt is scored under.

    Args:
        regions: Token indices of each region of the prompt.
        n: Number of tokens.
    """
    found = ["REST"] * n
    for region in reversed(SCORED_REGIONS[:-1]):
        for token in regions.get(region, ()):
            found[token] = region
    return found


def parse_graft(text: str) -> Graft:
    """Read a graft expression; `str` of the result reads back as the same graft.

    Raises:
        GraftSyntaxError: The text does not parse; the message points at the place and says what could stand there.
    """
    return _Parser(text).graft()


class _Parser:
    """Recursive descent over the grammar at the head of this module."""

    _NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
    _DONOR = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
    _LAYER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9][0-9/]*(?:\s*-\s*[0-9][0-9/]*)?")

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
                self._fail(start, f"components inside the layers, since '@' follows; give {outside[0]} a term of its own")
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
        return self._one_of((*GROUPS, *COMPONENTS), "a component")

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
        return "0/1-1/1" if first == 0 and last == 1 else f"{first}-{last}"  # "0-1" would read back as integers

    def _several(self, one: Callable[[], T], separator: str = "+") -> list[T]:
        found = [one()]
        while self._take(separator):
            found.append(one())
        return found

    def _one_of(self, names: Sequence[str], what: str) -> str:
        self._blank()
        start = self.at
        expected = f"{what} ({', '.join(names)})"
        found = self._match(self._NAME, expected + (" or '('" if what == "a region" else ""))
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
    return next(f"{n} (did you mean {n!r}?)" for n in names if n.lower() == near[0]) if near else None
