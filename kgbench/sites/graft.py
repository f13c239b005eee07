"""Syntax tree of graft expressions: which donor's weights are used at which sites."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from kgbench.errors import InputError, RegionError
from kgbench.sites.vocabulary import (
    COMPONENTS,
    GROUPS,
    LAYER_GROUPS,
    OUTSIDE,
    RECIPIENT,
    head_of,
    is_mark,
)


def missing_region(name: str, regions: Collection[str]) -> str:
    """Message on a prompt that lacks a region; it has the others."""
    close = get_close_matches(name, regions, n=1)
    meant = f" (did you mean {close[0]!r}?)" if close else ""
    mark = f"; a template marks its words, as {{{name}:words}}" if is_mark(name) else ""
    having = ", ".join(regions) or "none that is marked"
    return f"the prompt has no region {name}; it has {having}{meant}{mark}"


@dataclass(frozen=True)
class Atom:
    """One region, `ALL`, `NONE` or a bracket, possibly complemented."""

    of: str | Positions
    """The name of a region; `LT-2` is the second token before LT, `'Qwen'` a substring."""
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
        elif self.of == "REST":
            named = (tokens for name, tokens in regions.items() if name.isidentifier())
            inside = everything.difference(*named)
        elif self.of.startswith("LT-"):
            inside = frozenset({min(regions["LT"]) - int(self.of[3:])})
            if not inside <= everything:
                raise RegionError(
                    f"{self.of} lies before the prompt, which has {n} tokens; name a later token"
                )
        else:
            raise RegionError(missing_region(self.of, regions))
        return everything - inside if self.complemented else inside

    def __str__(self) -> str:
        inner = f"({self.of})" if isinstance(self.of, Positions) else self.of
        return f"{inner}^C" if self.complemented else inner


@dataclass(frozen=True)
class Positions:
    """A union of atoms: a set of tokens of a prompt."""

    atoms: tuple[Atom, ...]

    def tokens(self, regions: Mapping[str, Sequence[int]], n: int) -> frozenset[int]:
        """Token indices of the expression.

        Args:
            regions: Token indices of each region of the prompt.
            n: Number of tokens of the prompt; complements are taken in `range(n)`.

        Raises:
            RegionError: The prompt lacks a region of the expression.
        """
        return frozenset().union(*(atom.tokens(regions, n) for atom in self.atoms))

    def regions(self) -> frozenset[str]:
        """Names of all regions in the expression."""
        names: set[str] = set()
        for atom in self.atoms:
            if isinstance(atom.of, Positions):
                names |= atom.of.regions()
            elif atom.of not in ("ALL", "NONE"):
                names.add(atom.of)
        return frozenset(names)

    def __str__(self) -> str:
        return "+".join(map(str, self.atoms))


@dataclass(frozen=True)
class Layers:
    """A set of layers, independent of the depth of the model."""

    parts: tuple[str, ...]
    """Canonical spelling of each part: `all`, an integer, `a-b`, `p/q-r/s` or a layer group."""

    def resolve(self, n: int) -> frozenset[int]:
        """Layer indices in a model of `n` layers; a layer group may be empty for small `n`.

        Raises:
            InputError: A layer index is out of range.
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
            raise InputError(
                f"layer {last or first} in '@{part}' does not exist: "
                f"the model has {n} layers, 0-{n - 1}"
            )
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
    """Names as written (components, heads or groups); None is the default, `all`."""
    layers: Layers | None = None
    donor: str = "sft"

    def sites(self, n_layers: int) -> Iterator[tuple[int | None, str]]:
        """Every (layer, component) of the term in a model of `n_layers` layers.

        The layer is None for components outside the layers; a head, as (layer, `o.h3`), is a part
        of its component.
        """
        layers = sorted(self.layers.resolve(n_layers)) if self.layers else range(n_layers)
        for component in self.component_names():
            if component not in OUTSIDE:
                for layer in layers:
                    yield layer, component
            else:
                yield None, component

    def component_names(self) -> tuple[str, ...]:
        """Components with groups expanded, in the order of computation, and heads after these."""
        members: set[str] = set()
        for name in self.components or ("all",):
            members.update(GROUPS.get(name, (name,)))
        if self.layers is not None:
            members -= set(OUTSIDE)
        components = [c for c in COMPONENTS if c in members]
        heads = [name for name in members if head_of(name)[1] is not None]
        return (*components, *sorted(heads, key=head_of))

    def __str__(self) -> str:
        components = f":{'+'.join(self.components)}" if self.components else ""
        layers = f"@{self.layers}" if self.layers else ""
        donor = "" if self.donor == "sft" else f"={self.donor}"
        return f"{self.positions}{components}{layers}{donor}"


@dataclass(frozen=True)
class Graft:
    """Which donor's weights are used at which sites; where terms overlap, the later one wins."""

    terms: tuple[Term, ...]

    def regions(self) -> frozenset[str]:
        """Names of all regions in the expression."""
        return frozenset().union(*(term.positions.regions() for term in self.terms))

    def donors(self) -> tuple[str, ...]:
        """Donor names in order of first mention, without `recipient`."""
        return tuple(dict.fromkeys(t.donor for t in self.terms if t.donor != RECIPIENT))

    def sites(self, n_layers: int) -> frozenset[tuple[int | None, str]]:
        """Every (layer, component) of the terms in a model of `n_layers` layers; see `Term.sites`."""
        return frozenset().union(*(term.sites(n_layers) for term in self.terms))

    @property
    def has_heads(self) -> bool:
        """Whether the expression names single attention heads."""
        names: list[str] = []
        for term in self.terms:
            names += term.components or ()
        return any(head_of(name)[1] is not None for name in names)

    def __str__(self) -> str:
        return "; ".join(map(str, self.terms))
