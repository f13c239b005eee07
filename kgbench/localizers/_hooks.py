"""Translate graft expressions into activations at hooks, and define scans over hooks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Edit, Hook, SourceRun, Treatment
from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import baseline_donor, donor_index, graft_treatments
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.models.family_map import Slots
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

EMBEDDINGS = "emb"
"""Pseudo hook point for the output of the embeddings: the input of layer 0."""

STANDS_FOR: Mapping[str, frozenset[str]] = {
    EMBEDDINGS: frozenset(OUTSIDE[:2]),
    "resid_pre": frozenset(PER_LAYER),
    "attn_out": frozenset(("ln_1", "q_norm", "k_norm", "q", "k", "v", "o", "ln_1_post")),
    "mlp_out": frozenset(("ln_2", "gate", "up", "down", "ln_2_post")),
    "resid_post": frozenset(PER_LAYER),
}
"""Components represented by each hook point.

An expression with components selects a hook point only if it names all of them.
"""


@dataclass(frozen=True, eq=False)
class Reading:
    """A graft expression on a prompt, for methods that treat activations."""

    base: tuple[Treatment, ...]
    """Per token, a treatment without edits: one weight set for all default components, and the
    final norm and head of the expression."""
    kept: tuple[Mapping[Hook, int], ...]
    """Per token, the donor's weight set at each hook that carries a donor's behaviour, in the order
    of computation."""

    def edited(self, edits: Callable[[int], Iterable[Edit]]) -> tuple[Treatment, ...]:
        """The base treatments with edits, given by token index."""
        return tuple(
            replace(treatment, edits=tuple(edits(token)))
            for token, treatment in enumerate(self.base)
        )


def check_counts(method: InterventionLocalizer, **counts: int) -> None:
    """Check parameters that count something.

    Raises:
        InputError: One is below 1.
    """
    for what, count in counts.items():
        if count < 1:
            raise InputError(f"{method.name} needs {what} of 1 or more, got {count}")


def one_donor(method: InterventionLocalizer, pair: ModelPair, sites: Graft) -> int:
    """Weight set of the only donor of an expression, for methods that start from a donor's run.

    Raises:
        NotApplicableError: The expression names several donors.
    """
    names = sites.donors() or (baseline_donor(pair),)
    if len(names) > 1:
        raise NotApplicableError(
            f"{method.name} begins with the run of one donor, "
            f"and this expression names {' and '.join(names)}"
        )
    return donor_index(pair, names[0])


def donor_runs(pair: ModelPair, reading: Reading) -> Mapping[int, SourceRun]:
    """Unmodified runs of all donors in a reading, by weight set."""
    donors: set[int] = set()
    for hooks in reading.kept:
        donors.update(hooks.values())
    return {donor: own_run(pair, len(reading.kept), donor) for donor in donors}


def own_run(pair: ModelPair, n_tokens: int, weight_set: int) -> SourceRun:
    """The unmodified run of one of the pair's models."""
    return _own_run(len(pair.slots), n_tokens, weight_set)


@lru_cache(maxsize=1024)  # identical objects compare equal without comparing treatments
def _own_run(n_slots: int, n_tokens: int, weight_set: int) -> SourceRun:
    return SourceRun([Treatment(bytes([weight_set]) * n_slots)] * n_tokens)


def read_sites(
    method: InterventionLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    sites: Graft,
    points: Sequence[str],
    weight_set: int = 0,
) -> list[Reading]:
    """Translate an expression into hooks; prompts of equal length and regions share a reading.

    Args:
        method: The method, for error messages.
        pair: The models.
        prompts: Prompts of any lengths.
        sites: The expression.
        points: Hook points that the method treats; may include `EMBEDDINGS`.
        weight_set: Weight set of the run that the method starts from.

    Returns:
        A reading for each prompt.

    Raises:
        NotApplicableError: The components of a term are not those of some of the points.
    """
    grafted = graft_treatments(pair, prompts, sites)  # raises for expressions that do not fit
    if sites.has_heads:
        raise NotApplicableError(
            f"{method.name} treats whole activations, so it cannot tell the heads in '{sites}' apart"
        )
    terms = []
    for term in sites.terms:
        terms.append((term, _hooks(method, pair, term, points), donor_index(pair, term.donor)))
    slots = pair.slots
    by_site: dict[tuple[object, ...], Reading] = {}
    readings = []
    for prompt, treatments in zip(prompts, grafted, strict=True):
        encoded = pair.encoded(prompt)
        regions = encoded.located(sites.regions())
        layout = (len(encoded.ids), *regions.items())
        if layout not in by_site:
            by_token: list[dict[Hook, int]] = [{} for _ in encoded.ids]
            for term, hooks, donor in terms:
                for token in term.positions.tokens(regions, len(encoded.ids)):
                    by_token[token].update(dict.fromkeys(hooks, donor))
            by_site[layout] = Reading(
                tuple(_base(slots, t, weight_set) for t in treatments),
                tuple(map(_donors_only, by_token)),
            )
        readings.append(by_site[layout])
    return readings


def treat_each(
    prompts: Sequence[Prompt],
    readings: Sequence[Reading],
    treat: Callable[[Prompt, Reading], tuple[Treatment, ...]],
    apart: Callable[[Prompt], Hashable] = lambda prompt: None,
) -> Treatments:
    """Treatments of each prompt, computed once per reading and group.

    Args:
        prompts: The prompts.
        readings: Reading of each prompt.
        treat: Treatments of a prompt.
        apart: Group of a prompt; prompts with one reading in different groups are treated apart.
    """
    by_key: dict[Hashable, tuple[Treatment, ...]] = {}
    treatments = []
    for prompt, reading in zip(prompts, readings, strict=True):
        key = (reading, apart(prompt))
        if key not in by_key:
            by_key[key] = treat(prompt, reading)
        treatments.append(by_key[key])
    return treatments


def _base(slots: Slots, treatment: Treatment, weight_set: int) -> Treatment:
    row = np.full(len(slots), weight_set, dtype=np.uint8)
    for slot in slots.readout:
        row[slot] = treatment.weights[slot]
    return Treatment(row.tobytes())


def _donors_only(hooks: Mapping[Hook, int]) -> Mapping[Hook, int]:
    """Hooks in the order of computation, without those that a later term gave to the recipient.

    The order makes equal treatments compare equal.
    """
    order = sorted(hooks, key=lambda hook: (hook.layer, POINTS.index(hook.point)))
    return {hook: hooks[hook] for hook in order if hooks[hook]}


def _hooks(
    method: InterventionLocalizer, pair: ModelPair, term: Term, points: Sequence[str]
) -> tuple[Hook, ...]:
    """The hooks of a term."""
    components = frozenset(pair.family.components)
    named = components & frozenset(term.component_names()) - frozenset(OUTSIDE[2:])
    default = components & frozenset(GROUPS["all"]) - frozenset(OUTSIDE if term.layers else ())
    selected = [point for point in points if components & STANDS_FOR[point] <= named]
    covered = frozenset().union(*(components & STANDS_FOR[point] for point in selected))
    # A hook carries all of its components or none: the term must name exactly those of some hooks.
    if named not in (default, covered):
        raise NotApplicableError(_reason(method, pair, named, points))
    layers = sorted(term.layers.resolve(pair.n_layers)) if term.layers else range(pair.n_layers)
    hooks = [Hook(0, "resid_pre")] if EMBEDDINGS in selected else []
    for layer in layers:
        hooks += [Hook(layer, point) for point in selected if point != EMBEDDINGS]
    return tuple(hooks)


def _reason(
    method: InterventionLocalizer, pair: ModelPair, named: frozenset[str], points: Sequence[str]
) -> str:
    def listed(names: frozenset[str]) -> str:
        return "+".join(c for c in pair.family.components if c in names)

    each = "; ".join(f"{point} stands for {listed(STANDS_FOR[point])} together" for point in points)
    return (
        f"{method.name} treats whole activations ({each}), "
        f"so it cannot tell {listed(named)} apart from the rest"
    )


# ------------------------------------------------------------------------------------------- scans


def hook_units(
    pair: ModelPair, prompts: Sequence[Prompt], points: Sequence[str], window: int = 1
) -> list[Unit]:
    """Measurements of a scan over hooks, in every region.

    A hook's value is credited to its components. The residual stream carries everything upstream,
    so a layer is credited with the difference between its output and its input. Without a hook of
    their own, the embeddings share the value of the first hook after them.

    Args:
        pair: The models.
        prompts: Prompts with the same region names.
        points: Hook points; may include `EMBEDDINGS`.
        window: Number of layers treated at once, centred at the credited layer.
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
                continue  # resid_pre of layer 0, which the unit of `EMBEDDINGS` measures
            minus = first + len(units) - 1 if residual and units else None
            units.append(Unit(parse_graft(f"{positions}{named}{layers}"), tuple(credited), minus))
    return units


def _window(pair: ModelPair, layer: int, window: int) -> str:
    low, high = max(0, layer - window // 2), min(pair.n_layers, layer - window // 2 + window) - 1
    return str(low) if low == high else f"{low}-{high}"


def _credited(sites: Sequence[Site], point: str, layer: int) -> tuple[Site, ...]:
    """Sites credited to a hook: its components in the last layer that it covers."""
    source = {EMBEDDINGS: None, "resid_pre": layer - 1}.get(point, layer)
    return tuple(
        site for site in sites if site.layer == source and site.component in STANDS_FOR[point]
    )
