"""The weights of a slot: tensors of its module, or slices of a fused projection's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kgbench.engine.treatment import baseline_donor
from kgbench.models.family_map import output_width
from kgbench.models.lora import base_module, plain_names
from kgbench.models.pair import ModelPair
from kgbench.sites import RECIPIENT


@dataclass(frozen=True)
class Part:
    """The share of a slot in a tensor of a model."""

    name: str
    """Name of the parameter in the model."""
    dim: int = 0
    """Output dimension."""
    columns: Tensor | None = None
    """Output indices of the slot; None for all."""

    def of(self, tensor: Tensor) -> Tensor:
        """The slot's share of the parameter, or of a tensor of its shape such as its gradient."""
        if self.columns is None:
            return tensor
        return tensor.index_select(self.dim, self.columns.to(tensor.device))


_parts: WeakKeyDictionary[ModelPair, dict[int, tuple[Part, ...]]] = WeakKeyDictionary()


def parts(pair: ModelPair, slot: int) -> tuple[Part, ...]:
    """The tensors of a slot; parts of different slots do not overlap."""
    by_slot = _parts.setdefault(pair, {})
    if slot not in by_slot:
        by_slot[slot] = _parts_of(pair, slot)
    return by_slot[slot]


def _parts_of(pair: ModelPair, slot: int) -> tuple[Part, ...]:
    layer, component = pair.slots.sites[slot]
    paths, place = pair.family.paths(layer, component), pair.family.place(component)
    if not place.fused:
        modules: list[Part] = []
        for path in paths:
            module_names = plain_names(pair.recipient.get_submodule(path))
            modules += [Part(f"{path}.{name}") for name in module_names]
        return tuple(modules)
    (path,), module = paths, base_module(pair.recipient.get_submodule(paths[0]))
    names = plain_names(module)
    transposed = isinstance(module, Conv1D)
    columns = place.columns(output_width(module), pair.recipient.config)
    return tuple(
        Part(f"{path}.{name}", int(transposed and name == "weight"), columns) for name in names
    )


def tensors(pair: ModelPair, model: PreTrainedModel, slot: int) -> tuple[Tensor, ...]:
    """Tensors of a slot in one of the pair's models."""
    return tuple(part.of(model.get_parameter(part.name)) for part in parts(pair, slot))


def changed(pair: ModelPair, name: str | None = None) -> frozenset[int]:
    """Slots whose weights differ between recipient and donor, by default the donor of `SFT`."""
    models = _Comparison(pair, pair.donor(baseline_donor(pair) if name is None else name))
    return frozenset(slot for slot in range(len(pair.slots)) if not models.have_equal_weights(slot))


def equal_slots(pair: ModelPair, name: str) -> frozenset[int]:
    """Slots that compute the same in recipient and donor, without reading weights from disk.

    They have equal weights, and modules of one class and equal attributes. None are of a donor that
    is named like the recipient: forecasts take it for one that is not trained yet.
    """
    if pair.origins.get(name, "") == pair.origins.get(RECIPIENT):
        return frozenset()
    models, slots = _Comparison(pair, pair.donor(name)), range(len(pair.slots))
    return frozenset(
        slot for slot in slots if models.are_alike(slot) and models.have_equal_weights(slot)
    )


class _Comparison:
    """A recipient and a donor, whose modules are looked up once for all slots."""

    def __init__(self, pair: ModelPair, donor: PreTrainedModel) -> None:
        self.pair = pair
        self.modules = [
            dict(model.named_modules(remove_duplicate=False)) for model in (pair.recipient, donor)
        ]
        self.equal = cache(torch.equal)
        """Tied tensors are of several slots."""

    def are_alike(self, slot: int) -> bool:
        """Whether modules are of one class and have equal numbers, such as a norm's epsilon."""
        for path in self.pair.family.paths(*self.pair.slots.sites[slot]):
            first, other = (modules[path] for modules in self.modules)
            if type(first) is not type(other):
                return False
            if _plain_attributes(first) != _plain_attributes(other):
                return False
        return True

    @torch.no_grad()
    def have_equal_weights(self, slot: int) -> bool:
        """Whether the tensors of a slot are equal."""
        for part in parts(self.pair, slot):
            path, _, name = part.name.rpartition(".")
            ours, theirs = (modules[path].get_parameter(name) for modules in self.modules)
            if ours is theirs:
                continue
            if ours.is_meta or theirs.is_meta or ours.shape != theirs.shape:
                return False
            # Most slots of a finetuned model differ in what they make of their first input.
            if ours.ndim > 1:
                few, others = (tensor.narrow(1 - part.dim, 0, 1) for tensor in (ours, theirs))
                if not torch.equal(part.of(few), part.of(others)):
                    return False
            equal = self.equal if part.columns is None else torch.equal
            if not equal(part.of(ours), part.of(theirs)):
                return False
        return True


def _plain_attributes(module: nn.Module) -> dict[str, object]:
    plain = (bool, int, float, str)
    return {name: value for name, value in vars(module).items() if isinstance(value, plain)}


def numel(pair: ModelPair) -> Mapping[tuple[int | None, str], int]:
    """Number of weights of each (layer, component)."""
    slots = pair.slots
    with torch.no_grad():
        sizes = {}
        for slot, site in enumerate(slots.sites):
            sizes[site] = sum(t.numel() for t in tensors(pair, pair.recipient, slot))
        return sizes
