"""Grafts as treatments: the weight set of each slot at each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kgbench.data import Prompt
from kgbench.engine.edits import Treatment
from kgbench.errors import InputError, RegionError, check_choice
from kgbench.models.pair import ModelPair
from kgbench.sites import (
    BASELINES,
    RECIPIENT,
    Graft,
    Positions,
    Term,
    head_of,
    parse_graft,
)

Configuration = str | Graft
"""`PRE`, `SFT`, or a graft."""


def n_heads(pair: ModelPair, component: str) -> int:
    """Number of attention heads of `q`, `k`, `v` or `o`; keys and values may have fewer."""
    config = pair.recipient.config
    grouped = getattr(config, "num_key_value_heads", None) if component in ("k", "v") else None
    return int(grouped or config.num_attention_heads)


def donor_index(pair: ModelPair, name: str) -> int:
    """Index of a weight set: 0 for the recipient, then the donors in order.

    `sft` is an alias of the donor of the configuration `SFT` unless a donor has this name.

    Raises:
        UnknownNameError: The pair has no such donor.
    """
    names = (RECIPIENT, *pair.donors)
    if name == "sft" and name not in names and ("relation" in names or len(pair.donors) == 1):
        name = baseline_donor(pair)
    check_choice("donor", name, names, f"Give it with --donor {name}=PATH.")
    return names.index(name)


def parse_configuration(text: str) -> Configuration:
    """Parse a configuration: `PRE` and `SFT` stay text, all else is a graft expression."""
    return text if text in BASELINES else parse_graft(text)


def graft_treatments(
    pair: ModelPair, prompts: Sequence[Prompt], configuration: Configuration
) -> list[tuple[Treatment, ...]]:
    """Treatment of each token of each prompt under a configuration.

    Prompts of equal length and regions share one tuple, by which `make_plan` recognises them.

    Args:
        pair: The models; `baseline_donor` gives the donor of `SFT`.
        prompts: Prompts of any lengths.
        configuration: `PRE` (the unmodified recipient), `SFT` (the unmodified donor, with its own
            final norm and head) or a graft.

    Raises:
        RegionError: A prompt lacks a region of the graft.
        UnknownNameError: The pair has no such donor, or the family no such component.
        InputError: A layer of the graft does not exist, or a term has no sites in this model.
    """
    sets = _weight_sets(pair, configuration)
    known: dict[tuple[object, ...], tuple[Treatment, ...]] = {}
    treatments = []
    for prompt in prompts:
        encoded = pair.encoded(prompt)
        layout = (len(encoded.ids), *encoded.regions.items())
        if layout not in known:
            try:
                known[layout] = _by_token(sets, encoded.regions, len(encoded.ids))
            except RegionError as error:
                raise RegionError(
                    f"graft '{configuration}' on prompt {prompt.name!r}, "
                    f"fact {prompt.fact.id}: {error}"
                ) from error
        treatments.append(known[layout])
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
        everywhere[:] = 0 if configuration == "PRE" else donor_index(pair, baseline_donor(pair))
        return _WeightSets(everywhere, ())
    pair.family.check(configuration)
    terms = []
    for term in configuration.terms:
        whole, heads = [], []
        for layer, name in term.sites(slots.n_layers):
            component, head = head_of(name)
            slot = slots.index.get((layer, component))
            if slot is not None and head is None:
                whole.append(slot)
            elif slot is not None and head is not None:
                _check_head(pair, term, component, head)
                heads.append((slot, head))
        if not whole and not heads:
            raise InputError(
                f"the term '{term}' names nothing in a model of {slots.n_layers} layers"
            )
        donor = donor_index(pair, term.donor)
        terms.append(_Sets(term.positions, tuple(whole), tuple(heads), donor))
    return _WeightSets(everywhere, tuple(terms))


def _check_head(pair: ModelPair, term: Term, component: str, head: int) -> None:
    count = n_heads(pair, component)
    if head >= count:
        raise InputError(
            f"head {head} of {component} in the term '{term}' does not exist: "
            f"the model has {count}, 0-{count - 1}"
        )


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
    return tuple(
        Treatment(row.tobytes(), heads=_apart(row, of_token))
        for row, of_token in zip(table, heads, strict=True)
    )


def _apart(
    row: np.ndarray, heads: Mapping[tuple[int, int], int]
) -> tuple[tuple[int, int, int], ...]:
    """Heads whose weight set is not that of their slot."""
    return tuple(
        (slot, head, weight_set)
        for (slot, head), weight_set in sorted(heads.items())
        if weight_set != row[slot]
    )


def baseline_donor(pair: ModelPair) -> str:
    """The donor of the configuration `SFT`: `sft`, else `relation`, else the only donor.

    `relation` is the donor of a hybrid graft that was finetuned on the facts.

    Raises:
        InputError: The pair has several donors of other names.
    """
    for name in ("sft", "relation"):
        if name in pair.donors:
            return name
    if len(pair.donors) == 1:
        return next(iter(pair.donors))
    raise InputError(
        f"SFT needs a donor named 'sft' or 'relation'; this pair has {', '.join(pair.donors)}: "
        "name so the one that the others are compared with"
    )
