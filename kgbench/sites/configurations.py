"""Configurations of a job: baselines, grafts with complements, and top-ranked sites by budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kgbench.errors import InputError
from kgbench.sites.graft import Atom, Graft, Layers, Positions, Term
from kgbench.sites.grammar import complement_graft, parse_graft
from kgbench.sites.vocabulary import BASELINES, COMPONENTS, GROUPS, REGIONS, head_of

BEST, REST = "top k", "(top k)^C"
"""The k best-ranked sites, k the number of sites in the ground truth, and their complement."""

_TOP = "top "


@dataclass(frozen=True)
class Top:
    """A configuration whose sites come from a ranking."""

    percent: float | None
    """Share of all default components × tokens; None: the number of sites in the ground truth."""
    left_out: bool = False
    """Whether the configuration is the complement: all default sites but these."""


def budget_labels(budgets: Sequence[float]) -> dict[str, float]:
    """Budgets (percent) by configuration label, such as `top 0.1%`."""
    return {f"{_TOP}{budget:g}%": float(budget) for budget in budgets}


def parse_top(label: str) -> Top | None:
    """Parse the label of a ranked configuration; None for a baseline or a graft."""
    if label in (BEST, REST):
        return Top(None, label == REST)
    if not label.startswith(_TOP):
        return None
    return Top(float(label.removeprefix(_TOP).removesuffix("%")))


def configurations(grafts: Sequence[str], layers: str | None = None) -> dict[str, str | None]:
    """Configurations to run for some grafts, each with its complement.

    These are `PRE`, `SFT`, `ALL`, the grafts, and the complements, which measure necessity.

    Args:
        grafts: Graft expressions; `PRE` and `SFT` are always run. Different spellings of one graft
            are run once.
        layers: Layers for every term without layers.

    Returns:
        Complement of each configuration, both in canonical form; None where there is no complement
        among the configurations.

    Raises:
        GraftSyntaxError: A graft or the layers do not parse.
    """
    by_label: dict[str, str | None] = dict.fromkeys((*BASELINES, "ALL"))
    for text in grafts:
        if text in BASELINES:
            continue
        graft = _on_layers(canonical(parse_graft(text)), layers)
        if str(graft) not in by_label:
            rest = complement_graft(graft)
            by_label[str(graft)] = None if rest is None else str(canonical(rest))
    for label, opposite in list(by_label.items()):
        if opposite is not None:
            by_label.setdefault(opposite, label)
    return by_label


def complements(labels: Sequence[str], floor: str) -> dict[str, str | None]:
    """Complement of each configuration; None where the complement was not run.

    Args:
        labels: The configurations that were run.
        floor: The localizer's floor. With `destroyed_donor`, `NONE` is the complement of `ALL`;
            otherwise the recipient is.
    """
    opposites = {
        BEST: REST,
        REST: BEST,
        **({"ALL": "NONE", "NONE": "ALL"} if floor == "destroyed_donor" else {}),
    }
    others = {label: opposites.get(label) or _opposite(label) for label in labels}
    return {label: other if other in others else None for label, other in others.items()}


@lru_cache(maxsize=1000)
def _opposite(label: str) -> str | None:
    if label in (*BASELINES, "ALL") or parse_top(label) is not None:
        return None
    others = complement_graft(parse_graft(label))
    return None if others is None else str(canonical(others))


def _on_layers(graft: Graft, layers: str | None) -> Graft:
    if layers is None:
        return graft
    for term in graft.terms:
        if term.layers is None and set(term.components or ()) & {"emb", "pos", "ln_f", "head"}:
            raise InputError(
                f"--layers {layers} does not go with the term '{term}', "
                "which lies outside the layers"
            )
    (template,) = parse_graft(f"ALL@{layers}").terms
    return Graft(tuple(replace(t, layers=t.layers or template.layers) for t in graft.terms))


def canonical(graft: Graft) -> Graft:
    """Canonical form of a graft; groups of components and of layers are not expanded."""
    return Graft(tuple(map(_term, graft.terms)))


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
    """Component names in the order of computation, without duplicates; None for the default."""
    everything = replace(term, components=None, layers=layers)
    if term.components is None or term.component_names() == everything.component_names():
        return None

    def order(name: str) -> tuple[int, int]:
        component, head = head_of(name)
        last = -1 if head is None else head
        return COMPONENTS.index(GROUPS.get(component, (component,))[0]), last

    return tuple(sorted(dict.fromkeys(term.components), key=order))


def _positions(positions: Positions) -> Positions:
    """Regions in the order of `REGIONS`, without duplicates; brackets only inside complements."""
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
    (single,) = inner.atoms
    return _atoms(Atom(single.of, not single.complemented))


def _atom_order(atom: Atom) -> tuple[int, str]:
    return (
        REGIONS.index(atom.of) if isinstance(atom.of, str) and atom.of in REGIONS else len(REGIONS),
        str(atom),
    )
