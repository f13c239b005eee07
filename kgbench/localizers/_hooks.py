"""From graft expressions to activations: which hooks of which tokens an expression keeps, and what a scan of them measures."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Edit, Hook, Run
from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import Slots, Treatment, baseline_donor, donor_index, graft_treatments
from kgbench.errors import NotApplicableError, UnknownNameError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.models.pair import ModelPair
from kgbench.sites import (
    GROUPS,
    OUTSIDE,
    PER_LAYER,
    Graft,
    Site,
    Term,
    parse_graft,
    scored_positions,
)

__all__ = [
    "EMBEDDINGS",
    "Reading",
    "check_choice",
    "donor_runs",
    "hook_units",
    "one_donor",
    "own_run",
    "read",
    "treat_each",
]

EMBEDDINGS = "emb"
"""What the embeddings put into the stream, beside the hook points: the input of layer 0."""

STANDS_FOR: Mapping[str, frozenset[str]] = {
    EMBEDDINGS: frozenset(OUTSIDE[:2]),
    "resid_pre": frozenset(PER_LAYER),
    "attn_out": frozenset(("ln_1", "q_norm", "k_norm", "q", "k", "v", "o", "ln_1_post")),
    "mlp_out": frozenset(("ln_2", "gate", "up", "down", "ln_2_post")),
    "resid_post": frozenset(PER_LAYER),
}
"""The components that an expression must name, if it names any, for a hook to be meant."""


@dataclass(frozen=True, eq=False)
class Reading:
    """What an expression says of a prompt, in the words of a method that treats activations."""

    base: tuple[Treatment, ...]
    """Per token, one weight set for all default components, and the final norm and head that the expression chooses."""
    kept: tuple[Mapping[Hook, int], ...]
    """Per token, the hooks that are to carry a donor's behaviour, in the order of computation, and the number of the donor."""

    def edited(self, edits: Callable[[int], Iterable[Edit]]) -> tuple[Treatment, ...]:
        """The treatments with the edits of each token."""
        return tuple(
            replace(treatment, edits=tuple(edits(token)))
            for token, treatment in enumerate(self.base)
        )


def check_choice(what: str, given: str, known: Sequence[str]) -> None:
    """Refuse a parameter that is none of its choices.

    Raises:
        UnknownNameError: It is none.
    """
    if given not in known:
        raise UnknownNameError(what, given, known)


def one_donor(method: InterventionLocalizer, pair: ModelPair, sites: Graft) -> int:
    """The number of the only donor of an expression, for methods that begin with a donor's run.

    Raises:
        NotApplicableError: The expression names several.
    """
    names = sites.donors() or (baseline_donor(pair),)
    if len(names) > 1:
        raise NotApplicableError(
            f"{method.name} begins with the run of one donor, and this expression names {' and '.join(names)}"
        )
    return donor_index(pair, names[0])


def donor_runs(pair: ModelPair, reading: Reading) -> Mapping[int, Run]:
    """The runs of all donors whose behaviour some token is to carry."""
    donors = {donor for kept in reading.kept for donor in kept.values()}
    return {donor: own_run(pair, len(reading.kept), donor) for donor in donors}


def own_run(pair: ModelPair, n_tokens: int, weight_set: int) -> Run:
    """The run of one of the pair's models by itself."""
    return _own_run(len(Slots(pair.family, pair.n_layers)), n_tokens, weight_set)


@lru_cache(maxsize=1024)  # runs that are one object compare at once
def _own_run(n_slots: int, n_tokens: int, weight_set: int) -> Run:
    return Run([Treatment(bytes([weight_set]) * n_slots)] * n_tokens)


def read(
    method: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    sites: Graft,
    points: Sequence[str],
    weight_set: int = 0,
) -> list[Reading]:
    """Read an expression as activations; prompts whose regions lie alike have one reading.

    Args:
        method: For the reason, where the expression does not fit.
        pair: The models.
        prompts: Prompts of any lengths.
        sites: The expression.
        points: Hook points that the method treats, or `EMBEDDINGS`.
        weight_set: The weights of the run that the method begins with.

    Raises:
        NotApplicableError: A term names components that none of the points stands for.
    """
    grafted = graft_treatments(
        pair, prompts, sites
    )  # an expression that does not fit is an error here as elsewhere
    terms = [
        (term, _hooks(method, pair, term, points), donor_index(pair, term.donor))
        for term in sites.terms
    ]
    slots = Slots(pair.family, pair.n_layers)
    known: dict[tuple[object, ...], Reading] = {}
    readings = []
    for prompt, treatments in zip(prompts, grafted, strict=True):
        encoded = pair.encoded(prompt)
        layout = (len(encoded.ids), *encoded.regions.items())
        if layout not in known:
            kept: list[dict[Hook, int]] = [{} for _ in encoded.ids]
            for term, hooks, donor in terms:
                for token in term.positions.tokens(encoded.regions, len(encoded.ids)):
                    kept[token].update(dict.fromkeys(hooks, donor))
            known[layout] = Reading(
                tuple(_base(slots, t, weight_set) for t in treatments),
                tuple(map(_donors_only, kept)),
            )
        readings.append(known[layout])
    return readings


def treat_each(
    prompts: Sequence[Prompt],
    readings: Sequence[Reading],
    treat: Callable[[Prompt, Reading], tuple[Treatment, ...]],
    apart: Callable[[Prompt], Hashable] = lambda prompt: None,
) -> Treatments:
    """Treatments of each prompt, made once for all prompts that have one reading and are not to be held apart."""
    made: dict[Hashable, tuple[Treatment, ...]] = {}
    treatments = []
    for prompt, reading in zip(prompts, readings, strict=True):
        key = (reading, apart(prompt))
        if key not in made:
            made[key] = treat(prompt, reading)
        treatments.append(made[key])
    return treatments


def _base(slots: Slots, treatment: Treatment, weight_set: int) -> Treatment:
    row = np.full(len(slots), weight_set, dtype=np.uint8)
    for slot in slots.readout:
        row[slot] = treatment.weights[slot]
    return Treatment(row.tobytes())


def _donors_only(kept: Mapping[Hook, int]) -> Mapping[Hook, int]:
    """In the order of computation, so that equal treatments compare equal; without what a later term put back."""
    order = sorted(kept, key=lambda hook: (hook.layer, POINTS.index(hook.point)))
    return {hook: kept[hook] for hook in order if kept[hook]}


def _hooks(
    method: InterventionLocalizer, pair: ModelPair, term: Term, points: Sequence[str]
) -> tuple[Hook, ...]:
    """The hooks that a term means."""
    has = frozenset(pair.family.components)
    named = has & frozenset(term.component_names()) - frozenset(OUTSIDE[2:])
    default = has & frozenset(GROUPS["all"]) - frozenset(OUTSIDE if term.layers else ())
    meant = [point for point in points if has & STANDS_FOR[point] <= named]
    if named not in (default, frozenset().union(*(has & STANDS_FOR[point] for point in meant))):
        raise NotApplicableError(_reason(method, pair, named, points))
    layers = sorted(term.layers.resolve(pair.n_layers)) if term.layers else range(pair.n_layers)
    hooks = [Hook(layer, point) for layer in layers for point in meant if point != EMBEDDINGS]
    return (*([Hook(0, "resid_pre")] if EMBEDDINGS in meant else []), *hooks)


def _reason(
    method: InterventionLocalizer, pair: ModelPair, named: frozenset[str], points: Sequence[str]
) -> str:
    def listed(names: frozenset[str]) -> str:
        return "+".join(c for c in pair.family.components if c in names)

    each = "; ".join(f"{point} stands for {listed(STANDS_FOR[point])} together" for point in points)
    return f"{method.name} treats whole activations ({each}), so it cannot tell {listed(named)} apart from the rest"


# ------------------------------------------------------------------------------------------------ scans


def hook_units(
    pair: ModelPair, prompts: Sequence[Prompt], points: Sequence[str], window: int = 1
) -> list[Unit]:
    """What a scan of hooks measures, at every region.

    A hook's value goes to the components that it stands for. The residual stream stands for everything before it, so a layer is credited
    with what its output adds to its input. Where no hook is the embeddings' own, they share the value of the first hook behind them.

    Args:
        pair: The models.
        prompts: Prompts that have the same regions.
        points: Hook points, or `EMBEDDINGS`.
        window: Layers that are treated at once, centred at the one that is credited.
    """
    sites = all_sites(pair, prompts)
    regions = [pair.encoded(prompt).regions for prompt in prompts]
    units: list[Unit] = []
    for region in dict.fromkeys(site.region for site in sites):
        here = [site for site in sites if site.region == region]
        units += _region_units(
            pair, scored_positions(region, regions), here, points, window, len(units)
        )
    return units


def _region_units(
    pair: ModelPair,
    positions: str,
    sites: Sequence[Site],
    points: Sequence[str],
    window: int,
    first: int,
) -> list[Unit]:
    units: list[Unit] = []
    for point in points:
        names = "+".join(c for c in pair.family.components if c in STANDS_FOR[point])
        residual = point.startswith("resid")
        for layer in range(1 if point == EMBEDDINGS else pair.n_layers):
            named = "" if residual else f":{names}"
            layers = "" if point == EMBEDDINGS else f"@{_window(pair, layer, window)}"
            credited = _credited(sites, point, layer)
            if not units and EMBEDDINGS not in points:
                credited = (*(s for s in sites if s.layer is None), *credited)
            if not credited:
                continue  # the input of layer 0, which the embeddings' own unit is
            minus = first + len(units) - 1 if residual and units else None
            units.append(Unit(parse_graft(f"{positions}{named}{layers}"), tuple(credited), minus))
    return units


def _window(pair: ModelPair, layer: int, window: int) -> str:
    low, high = max(0, layer - window // 2), min(pair.n_layers, layer - window // 2 + window) - 1
    return str(low) if low == high else f"{low}-{high}"


def _credited(sites: Sequence[Site], point: str, layer: int) -> tuple[Site, ...]:
    """Sites that a hook stands for, and no hook before it."""
    wanted = {EMBEDDINGS: None, "resid_pre": layer - 1}.get(point, layer)
    return tuple(
        site for site in sites if site.layer == wanted and site.component in STANDS_FOR[point]
    )
