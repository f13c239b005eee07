"""Which weights a plant trains, and how far they move.

Where there is a decoy, the size of a change must not tell the two apart. So after every step each tensor of both is put on the sphere
around the recipient's tensor on which its relative change, ‖W' − W‖ / ‖W‖ (Frobenius norms), has one common value; the value grows over
the first steps of training and stays then. A fused projection counts as the tensors of its slices. A tensor of zeros has no relative
change and is not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kgbench.engine.treatment import Slots
from kgbench.engine.weights import Part, parts
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft

__all__ = ["PlantedWeights", "graft_slots"]


def graft_slots(slots: Slots, graft: Graft) -> list[int]:
    """The (layer, component) slots that a graft names, in order."""
    named = {site for term in graft.terms for site in term.sites(slots.n_layers)}
    return [slots.index[site] for site in slots.sites if site in named]


@dataclass(frozen=True)
class _Moved:
    """A part of a tensor that is trained."""

    part: Part
    parameter: Tensor
    start: Tensor
    """The recipient's weights."""

    def change(self) -> Tensor:
        return self.part.of(self.parameter.detach()) - self.start

    def relative(self) -> float:
        return float(self.change().double().norm() / self.start.double().norm())

    def put(self, weights: Tensor) -> None:
        if self.part.columns is None:
            self.parameter.data.copy_(weights)
        else:
            self.parameter.data.index_copy_(
                self.part.dim, self.part.columns.to(weights.device), weights
            )


class PlantedWeights:
    """The trained weights of a pair's donor `sft`; all others are frozen.

    Args:
        pair: Recipient and donor, of equal weights.
        slots: What is trained.
    """

    def __init__(self, pair: ModelPair, slots: Iterable[int]) -> None:
        donor = pair.donor("sft")
        moved = (
            _Moved(
                part,
                donor.get_parameter(part.name),
                part.of(pair.recipient.get_parameter(part.name)).clone(),
            )
            for slot in slots
            for part in parts(pair, slot)
        )
        self._moved = [each for each in moved if each.start.any()]
        trained: dict[str, list[Part]] = {}
        for each in self._moved:
            each.parameter.requires_grad_(True)
            trained.setdefault(each.part.name, []).append(each.part)
        for name, named in trained.items():
            _guard(donor.get_parameter(name), named)

    def rescale(self, relative: float) -> None:
        """Give every trained tensor this relative change, in the direction in which it has moved."""
        for each in self._moved:
            change = each.change()
            if norm := float(change.double().norm()):
                each.put(
                    each.start + change * (relative * float(each.start.double().norm()) / norm)
                )

    def relative_changes(self) -> Mapping[str, float]:
        """Relative change of every trained tensor, by name; slices of one tensor are numbered."""
        named: dict[str, float] = {}
        for each in self._moved:
            name = (
                each.part.name
                if each.part.columns is None
                else f"{each.part.name}[{int(each.part.columns[0])}:]"
            )
            named[name] = each.relative()
        return named


def _guard(parameter: Tensor, trained: list[Part]) -> None:
    """Let no gradient reach the slices of a fused projection that are not trained."""
    columns = [part.columns for part in trained if part.columns is not None]
    if not columns:
        return
    shape = [1] * parameter.ndim
    shape[trained[0].dim] = -1
    mask = torch.zeros(parameter.shape[trained[0].dim], device=parameter.device)
    mask[torch.cat(columns)] = 1
    parameter.register_hook(lambda gradient: gradient * mask.reshape(shape))  # type: ignore[no-untyped-call]  # torch gives it no type
