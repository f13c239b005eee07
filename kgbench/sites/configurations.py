"""The configurations of a job: baselines, grafts with their complements, and the best-ranked sites up to a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kgbench.errors import InputError
from kgbench.sites.graft import Atom, Graft, Layers, Positions, Term
from kgbench.sites.grammar import complement_graft, parse_graft
from kgbench.sites.vocabulary import BASELINES, COMPONENTS, GROUPS, REGIONS

__all__ = [
    "BEST",
    "REST",
    "Top",
    "budget_labels",
    "canonical",
    "complements",
    "configurations",
    "parse_top",
]

BEST, REST = "top k", "(top k)^C"
"""As many of a ranking's best sites as the truth has, and all default sites but these."""

_TOP = "top "


@dataclass(frozen=True)
class Top:
    """A configuration that a ranking fills."""

    percent: float | None
    """Of all default components × tokens; None for as many sites as the truth has."""
    left_out: bool = False
    """All default sites but these."""


def budget_labels(budgets: Sequence[float]) -> dict[str, float]:
    """Names of the configurations of some budgets, such as `top 0.1%`."""
    return {f"{_TOP}{budget:g}%": float(budget) for budget in budgets}


def parse_top(label: str) -> Top | None:
    """What the name of a configuration says of a ranking; None where it is a baseline or a graft."""
    if label in (BEST, REST):
        return Top(None, label == REST)
    return (
        Top(float(label.removeprefix(_TOP).removesuffix("%"))) if label.startswith(_TOP) else None
    )


def configurations(grafts: Sequence[str], layers: str | None = None) -> dict[str, str | None]:
    """Everything to run for some grafts: `PRE`, `SFT`, `ALL`, the grafts, and the complements that necessity needs.

    Args:
        grafts: Graft expressions; `PRE` and `SFT` are run anyway. Equal ones are run once, however they are written.
        layers: Layers for every term that names none.

    Returns:
        Each configuration in canonical form with its complement, which is one of the others; None where it is not run or not one.

    Raises:
        GraftSyntaxError: A graft or the layers do not parse.
    """
    found: dict[str, str | None] = dict.fromkeys((*BASELINES, "ALL"))
    for graft in (
        _on_layers(canonical(parse_graft(text)), layers) for text in grafts if text not in BASELINES
    ):
        if str(graft) not in found:
            others = complement_graft(graft)
            found[str(graft)] = None if others is None else str(canonical(others))
    for name, opposite in [(g, o) for g, o in found.items() if o is not None]:
        found.setdefault(opposite, name)
    return found


def complements(labels: Sequence[str], floor: str) -> dict[str, str | None]:
    """Each configuration that was run and its complement, as far as that was run too.

    Args:
        labels: The configurations.
        floor: Of the localizer; with `destroyed_donor` nothing is the complement of everything, else the recipient is.
    """
    opposites = {
        BEST: REST,
        REST: BEST,
        **({"ALL": "NONE", "NONE": "ALL"} if floor == "destroyed_donor" else {}),
    }
    others = {label: opposites.get(label) or _opposite(label) for label in labels}
    return {label: other if other in others else None for label, other in others.items()}


def _opposite(label: str) -> str | None:
    if label in (*BASELINES, "ALL") or parse_top(label) is not None:
        return None
    others = complement_graft(parse_graft(label))
    return None if others is None else str(canonical(others))


def _on_layers(graft: Graft, layers: str | None) -> Graft:
    if layers is None:
        return graft
    outside = [
        t
        for t in graft.terms
        if t.layers is None and set(t.components or ()) & {"emb", "pos", "ln_f", "head"}
    ]
    if outside:
        raise InputError(
            f"--layers {layers} does not go with the term '{outside[0]}', which lies outside the layers"
        )
    (wanted,) = parse_graft(f"ALL@{layers}").terms
    return Graft(tuple(replace(t, layers=t.layers or wanted.layers) for t in graft.terms))


def canonical(graft: Graft) -> Graft:
    """The same graft in the one spelling that all its spellings share, but for groups of components and of layers."""
    return Graft(tuple(_term(term) for term in graft.terms))


def _term(term: Term) -> Term:
    layers = (
        Layers(tuple(sorted(dict.fromkeys(term.layers.parts), key=_layer_order)))
        if term.layers is not None
        else None
    )
    return replace(
        term,
        positions=_positions(term.positions),
        components=_components(term, layers),
        layers=layers,
    )


def _layer_order(part: str) -> tuple[int, str]:
    first = part.partition("-")[0]
    return (int(first), part) if first.isdigit() else (-1, part)


def _components(term: Term, layers: Layers | None) -> tuple[str, ...] | None:
    """Names in the order of computation, each once; None where they are the default."""
    everything = replace(term, components=None, layers=layers)
    if term.components is None or term.component_names() == everything.component_names():
        return None
    return tuple(
        sorted(
            dict.fromkeys(term.components),
            key=lambda name: COMPONENTS.index(GROUPS.get(name, (name,))[0]),
        )
    )


def _positions(positions: Positions) -> Positions:
    """Regions in their order, each once; brackets only where a complement needs them."""
    atoms: dict[Atom, None] = {}
    for atom in positions.atoms:
        atoms |= dict.fromkeys(_atoms(atom))
    return Positions(tuple(sorted(atoms, key=_atom_order)))


def _atoms(atom: Atom) -> tuple[Atom, ...]:
    if not isinstance(atom.of, Positions):
        return (atom,)
    inner = _positions(atom.of)
    if not atom.complemented:
        return inner.atoms
    if len(inner.atoms) > 1:
        return (Atom(inner, True),)
    (only,) = inner.atoms
    return _atoms(Atom(only.of, not only.complemented))


def _atom_order(atom: Atom) -> tuple[int, str]:
    return (
        REGIONS.index(atom.of) if isinstance(atom.of, str) and atom.of in REGIONS else len(REGIONS),
        str(atom),
    )
