"""The weights of one place of a model: its module's tensors, or where projections are fused, its slices of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kgbench.engine.treatment import Slots, baseline_donor
from kgbench.models.family import module_at
from kgbench.models.lora import base_module, plain_names
from kgbench.models.pair import ModelPair

__all__ = ["Part", "changed", "numel", "parts", "tensors"]


@dataclass(frozen=True)
class Part:
    """A tensor of a model as far as it belongs to one place."""

    name: str
    """Name of the parameter in the model."""
    dim: int = 0
    """Dimension of the outputs."""
    columns: Tensor | None = None
    """Which outputs; None for all."""

    def of(self, tensor: Tensor) -> Tensor:
        """The part's share of the parameter, or of anything of its shape, such as its gradient."""
        return (
            tensor
            if self.columns is None
            else tensor.index_select(self.dim, self.columns.to(tensor.device))
        )


def parts(pair: ModelPair, slot: int) -> tuple[Part, ...]:
    """The tensors of a slot; the slots of a model share none."""
    layer, component = Slots(pair.family, pair.n_layers).sites[slot]
    paths, place = pair.family.paths(layer, component), pair.family.place(component)
    if not place.fused:
        return tuple(
            Part(f"{path}.{name}")
            for path in paths
            for name in plain_names(module_at(pair.recipient, path))
        )
    (path,), module = paths, base_module(module_at(pair.recipient, paths[0]))
    names = plain_names(module)
    transposed = isinstance(module, Conv1D)
    width = module.nf if transposed else module.out_features
    columns = place.columns(int(width), pair.recipient.config)  # type: ignore[arg-type]  # int in both
    return tuple(
        Part(f"{path}.{name}", int(transposed and name == "weight"), columns) for name in names
    )


def tensors(pair: ModelPair, model: PreTrainedModel, slot: int) -> tuple[Tensor, ...]:
    """What a model of the pair has in a slot."""
    return tuple(part.of(model.get_parameter(part.name)) for part in parts(pair, slot))


def changed(pair: ModelPair, name: str | None = None) -> frozenset[int]:
    """Slots in which a donor, by default the one that `SFT` stands for, has other weights than the recipient."""
    donor = pair.donor(baseline_donor(pair) if name is None else name)

    def alike(slot: int) -> bool:
        return all(
            map(torch.equal, tensors(pair, pair.recipient, slot), tensors(pair, donor, slot))
        )

    with torch.no_grad():
        return frozenset(
            slot for slot in range(len(Slots(pair.family, pair.n_layers))) if not alike(slot)
        )


def numel(pair: ModelPair) -> Mapping[tuple[int | None, str], int]:
    """Number of weights of each (layer, component)."""
    slots = Slots(pair.family, pair.n_layers)
    with torch.no_grad():
        return {
            site: sum(t.numel() for t in tensors(pair, pair.recipient, slot))
            for slot, site in enumerate(slots.sites)
        }
