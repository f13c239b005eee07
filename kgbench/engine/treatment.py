"""Treatments: the weight sets, edits and cuts of one token in a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from kgbench.data import Prompt
from kgbench.engine.edits import Cut, Edit
from kgbench.errors import InputError, RegionError, UnknownNameError
from kgbench.models.encoding import Encoded
from kgbench.models.family_map import Family
from kgbench.models.pair import ModelPair
from kgbench.sites import BASELINES, OUTSIDE, RECIPIENT, Graft, Positions, parse_graft

__all__ = [
    "Configuration",
    "Slots",
    "Treatment",
    "baseline_donor",
    "donor_index",
    "graft_treatments",
    "parse_configuration",
]

Configuration = str | Graft
"""`PRE`, `SFT`, or a graft."""


@dataclass(frozen=True, slots=True)
class Treatment:
    """Treatment of one token; equal tokens with equal treatments up to here compute the same."""

    weights: bytes
    """Weight set of each slot of the model: 0 for the recipient, then the donors in order."""
    edits: tuple[Edit, ...] = ()
    """Edits of activations; several at one hook apply in this order."""
    cuts: tuple[Cut, ...] = ()
    """Attention edges of the token that are cut."""
    scale: float = 1.0
    """A donor's weights W' are replaced by W + scale (W' - W), W the recipient's."""


@dataclass(frozen=True)
class Slots:
    """The slots of a model: its (layer, component) places, in a fixed order.

    A treatment has one weight set per slot.
    """

    family: Family
    n_layers: int

    @cached_property
    def sites(self) -> tuple[tuple[int | None, str], ...]:
        """All (layer, component); layer None is outside the layers."""
        inside = [c for c in self.family.components if c not in OUTSIDE]
        sites: list[tuple[int | None, str]] = []
        sites += [(None, c) for c in OUTSIDE[:2] if c in self.family.outside]
        sites += product(range(self.n_layers), inside)
        sites += [(None, c) for c in OUTSIDE[2:] if c in self.family.outside]
        return tuple(sites)

    @cached_property
    def index(self) -> dict[tuple[int | None, str], int]:
        """Slot of each (layer, component)."""
        return {site: i for i, site in enumerate(self.sites)}

    @cached_property
    def readout(self) -> tuple[int, ...]:
        """Final norm and head: slots with an effect at readout tokens only."""
        sites = ((None, "ln_f"), (None, "head"))
        return tuple(self.index[site] for site in sites if site in self.index)

    def __len__(self) -> int:
        return len(self.sites)


def donor_index(pair: ModelPair, name: str) -> int:
    """Index of a weight set: 0 for the recipient, then the donors in order.

    `sft` is an alias of the donor of the configuration `SFT` unless a donor has this name.

    Raises:
        UnknownNameError: The pair has no such donor.
    """
    names = (RECIPIENT, *pair.donors)
    if name == "sft" and name not in names and ("relation" in names or len(pair.donors) == 1):
        name = baseline_donor(pair)
    if name not in names:
        raise UnknownNameError("donor", name, names, f"Give it with --donor {name}=PATH.")
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
                known[layout] = _by_token(sets, encoded)
            except RegionError as error:
                raise RegionError(
                    f"graft '{configuration}' on prompt {prompt.name!r}, "
                    f"fact {prompt.fact.id}: {error}"
                ) from error
        treatments.append(known[layout])
    return treatments


@dataclass(frozen=True)
class _WeightSets:
    """A configuration resolved to the slots of a model, with positions unresolved."""

    everywhere: np.ndarray
    """Weight set [slot] where no term applies."""
    terms: tuple[tuple[Positions, tuple[int, ...], int], ...]
    """Positions, slots and weight set of each term."""


def _weight_sets(pair: ModelPair, configuration: Configuration) -> _WeightSets:
    slots = Slots(pair.family, pair.n_layers)
    everywhere = np.zeros(len(slots), dtype=np.uint8)
    if isinstance(configuration, str):
        everywhere[:] = 0 if configuration == "PRE" else donor_index(pair, baseline_donor(pair))
        return _WeightSets(everywhere, ())
    pair.family.check(configuration)
    terms = []
    for term in configuration.terms:
        columns = tuple(
            slots.index[site] for site in term.sites(slots.n_layers) if site in slots.index
        )
        if not columns:
            raise InputError(
                f"the term '{term}' names nothing in a model of {slots.n_layers} layers"
            )
        terms.append((term.positions, columns, donor_index(pair, term.donor)))
    return _WeightSets(everywhere, tuple(terms))


def _by_token(sets: _WeightSets, encoded: Encoded) -> tuple[Treatment, ...]:
    n = len(encoded.ids)
    table = np.tile(sets.everywhere, (n, 1))
    for positions, columns, weight_set in sets.terms:
        table[np.ix_(sorted(positions.tokens(encoded.regions, n)), columns)] = weight_set
    return tuple(Treatment(row.tobytes()) for row in table)


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
        f"SFT needs a donor named 'sft' or 'relation'; this pair has {', '.join(pair.donors)}"
    )
