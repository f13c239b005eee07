"""Grafts as treatments: the weight set of each slot at each token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from transformers.pytorch_utils import Conv1D

from kgbench.data import Prompt
from kgbench.engine.edits import HEADS, POINTS, Copy, Edit, Treatment
from kgbench.errors import InputError, RegionError
from kgbench.models.lora import base_module
from kgbench.models.pair import ModelPair
from kgbench.models.parts import with_parts
from kgbench.sites import (
    BASELINES,
    RECIPIENT,
    Graft,
    Positions,
    head_of,
    named_donor,
    parse_graft,
    usual_donor,
)

Configuration = str | Graft
"""`PRE`, `SFT`, or a graft, also as text."""


def n_heads(pair: ModelPair, component: str) -> int:
    """Number of attention heads of `q`, `k`, `v` or `o`; keys and values may have fewer."""
    config = pair.recipient.config
    grouped = getattr(config, "num_key_value_heads", None) if component in ("k", "v") else None
    return int(grouped or config.num_attention_heads)


def heads_width(pair: ModelPair) -> int:
    """Numbers of a token's attention heads side by side: the input of `o`."""
    module = base_module(pair.recipient.get_submodule(pair.family.path(0, "o")))
    return int(module.nx if isinstance(module, Conv1D) else module.in_features)  # type: ignore[arg-type]  # int in both


def donor_index(pair: ModelPair, name: str) -> int:
    """Index of a weight set: 0 for the recipient, then the donors in order.

    `sft` is an alias of the donor of the configuration `SFT` unless a donor has this name.

    Raises:
        UnknownNameError: The pair has no such donor.
        InputError: The pair has several donors, none of which is that of `SFT`.
    """
    return (RECIPIENT, *pair.donors).index(named_donor(name, pair.donors))


def parse_configuration(text: str) -> Configuration:
    """Parse a configuration: `PRE` and `SFT` stay text, all else is a graft expression."""
    return text if text in BASELINES else parse_graft(text)


def parted(pair: ModelPair, configurations: Iterable[Configuration]) -> ModelPair:
    """The pair with all parts of donors that some configurations name; see `with_parts`."""
    names = set[str]()
    for each in configurations:
        parsed = parse_configuration(each) if isinstance(each, str) else each
        names.update(parsed.donors() if isinstance(parsed, Graft) else ())
    return with_parts(pair, names)


def graft_treatments(
    pair: ModelPair, prompts: Sequence[Prompt], configuration: Configuration
) -> list[tuple[Treatment, ...]]:
    """Treatment of each token of each prompt under a configuration.

    Prompts of equal length and regions share one tuple, by which `make_plan` recognises them.

    Args:
        pair: The models; `baseline_donor` gives the donor of `SFT`.
        prompts: Prompts of any lengths.
        configuration: `PRE` (the unmodified recipient), `SFT` (the unmodified donor, with its own
            final norm and head) or a graft, also as text.

    Raises:
        RegionError: A prompt lacks a region of the graft.
        UnknownNameError: The pair has no such donor, or the family no such component.
        InputError: A layer of the graft does not exist, or a term has no sites in this model.
    """
    sets = _weight_sets(pair, configuration)
    names = frozenset[str]().union(*(term.positions.regions() for term in sets.terms))
    by_regions: dict[tuple[object, ...], tuple[Treatment, ...]] = {}
    treatments = []
    for prompt in prompts:
        encoded = pair.encoded(prompt)
        try:
            regions = encoded.located(names)
            layout = (len(encoded.ids), *regions.items())
            if layout not in by_regions:
                by_regions[layout] = _by_token(sets, regions, len(encoded.ids))
        except RegionError as error:
            raise RegionError(
                f"graft '{configuration}' on prompt {prompt.name!r}, fact {prompt.fact.id}: {error}"
            ) from error
        treatments.append(by_regions[layout])
    return treatments


def token_treatments(
    pair: ModelPair, regions: Mapping[str, Sequence[int]], n: int, configuration: Configuration
) -> tuple[Treatment, ...]:
    """Treatment of each of the n tokens of a text with these regions; see `graft_treatments`."""
    return _by_token(_weight_sets(pair, configuration), regions, n)


@dataclass(frozen=True)
class _WeightSets:
    """A configuration resolved to the slots of a model, with positions unresolved."""

    everywhere: np.ndarray
    """Weight set [slot] where no term applies."""
    terms: tuple[_Sets, ...]
    """In order; later ones win."""


@dataclass(frozen=True)
class _Sets:
    """A term resolved to the slots of a model."""

    positions: Positions
    slots: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    """(slot, head) of single heads."""
    weight_set: int


def _weight_sets(pair: ModelPair, configuration: Configuration) -> _WeightSets:
    slots = pair.slots
    everywhere = np.zeros(len(slots), dtype=np.uint8)
    if isinstance(configuration, str):
        configuration = parse_configuration(configuration)
    if isinstance(configuration, str):
        everywhere[:] = 0 if configuration == "PRE" else donor_index(pair, "sft")
        return _WeightSets(everywhere, ())
    pair.family.check(configuration)
    terms = []
    for term in configuration.terms:
        modules, heads = [], []
        for layer, name in term.sites(slots.n_layers):
            component, head = head_of(name)
            slot = slots.index.get((layer, component))
            if slot is not None and head is None:
                modules.append(slot)
            elif slot is not None and head is not None:
                if head >= (count := n_heads(pair, component)):
                    raise InputError(
                        f"head {head} of {component} in the term '{term}' does not exist: "
                        f"the model has {count}, 0-{count - 1}"
                    )
                heads.append((slot, head))
        if not modules and not heads:
            raise InputError(
                f"the term '{term}' names nothing in a model of {slots.n_layers} layers"
            )
        donor = donor_index(pair, term.donor)
        terms.append(_Sets(term.positions, tuple(modules), tuple(heads), donor))
    return _WeightSets(everywhere, tuple(terms))


def _by_token(
    sets: _WeightSets, regions: Mapping[str, Sequence[int]], n: int
) -> tuple[Treatment, ...]:
    table = np.tile(sets.everywhere, (n, 1))
    heads: list[dict[tuple[int, int], int]] = [{} for _ in range(n)]
    for term in sets.terms:
        tokens = sorted(term.positions.tokens(regions, n))
        table[np.ix_(tokens, term.slots)] = term.weight_set
        for token in tokens:
            for key in [key for key in heads[token] if key[0] in term.slots]:
                del heads[token][key]
            heads[token] |= dict.fromkeys(term.heads, term.weight_set)
    rows = zip(map(bytes, table), heads, strict=True)
    return tuple(headed_treatment(row, of_token) for row, of_token in rows)


def headed_treatment(weights: bytes, heads: Mapping[tuple[int, int], int]) -> Treatment:
    """A treatment by weights alone.

    Args:
        weights: Weight set of each slot.
        heads: Weight set of single heads, by slot and head; it may be that of the slot.
    """
    apart = []
    for (slot, head), weight_set in sorted(heads.items()):
        if weight_set != weights[slot]:
            apart.append((slot, head, weight_set))
    return Treatment(weights, heads=tuple(apart))


def baseline_donor(pair: ModelPair) -> str:
    """The donor of the configuration `SFT`: `sft`, else `relation`, else the only donor.

    `relation` is the donor of a hybrid graft that was finetuned on the facts.

    Raises:
        InputError: The pair has several donors of other names.
    """
    return usual_donor(pair.donors)


def misfit(pair: ModelPair, treatment: Treatment, tokens: int) -> str | None:
    """Why the models cannot run with a treatment of a token; None where they can.

    Args:
        pair: The models.
        treatment: The treatment.
        tokens: How many tokens the prompt has.
    """
    slots, donors = len(pair.slots), len(pair.donors)
    if len(treatment.weights) != slots or max(treatment.weights, default=0) > donors:
        return f"weights are not one of {donors + 1} weight sets for each of {slots} slots"
    for cut in treatment.cuts:
        if cut.layer not in range(pair.n_layers) or not cut.keys <= set(range(tokens)):
            return f"a cut of layer {cut.layer} is of no token"
    for slot, _, of in treatment.heads:
        if slot not in range(slots) or of not in range(donors + 1):
            return f"a head is of slot {slot}"
    for edit in treatment.edits:
        if wrong := _misfit_edit(pair, edit, tokens):
            return wrong
    return None


def _misfit_edit(pair: ModelPair, edit: Edit, tokens: int) -> str | None:
    (layer, point), points = edit.hook, (*POINTS, HEADS)
    if layer not in range(pair.n_layers) or point not in points:
        expected = f"{', '.join(points)} of layers 0 to {pair.n_layers - 1}"
        return f"an edit is at {point!r} of layer {layer}, not at one of {expected}"
    copies = isinstance(edit, Copy)
    value = edit.basis if isinstance(edit, Copy) else edit.value
    if value is not None:
        shape, width = value.tensor.shape, heads_width(pair) if point == HEADS else pair.width
        if len(shape) != 1 + copies or shape[-1] != width:
            expected = f"[k, {width}]" if copies else f"[{width}]"
            return f"an edit at {point!r} has numbers of shape {list(shape)}, not {expected}"
        if not bool(value.tensor.isfinite().all()):
            return "an edit has numbers that are not finite"
    sources = edit.source.treatments if isinstance(edit, Copy) else ()
    if sources and len(sources) != tokens:
        return f"a source run has {len(sources)} tokens"
    return next(filter(None, (misfit(pair, of, tokens) for of in sources)), None)
