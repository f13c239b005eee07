"""Index arrays of a batch, all moved to a device by one copy.

A copy of a small array costs an accelerator more than most products do, since the device waits for
each. So a batch is planned in numpy first, and nothing is moved before its forward begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Index:
    """One array of whole numbers among those of a batch."""

    batch: Indices
    number: int

    def on(self, device: torch.device) -> Int[Tensor, " *shape"]:
        """It as a tensor; the first call moves all arrays that the batch has by then."""
        return self.batch.moved(device)[self.number]


@dataclass
class Indices:
    """The arrays of a batch; equal ones are one."""

    arrays: list[Int[np.ndarray, " *shape"]] = field(default_factory=list)
    numbers: dict[tuple[bytes, tuple[int, ...]], int] = field(default_factory=dict)
    tensors: dict[torch.device, list[Tensor]] = field(default_factory=dict)

    def add(self, array: Int[np.ndarray, " *shape"]) -> Index:
        """Add an array, which must not change afterwards."""
        array = np.ascontiguousarray(array, dtype=np.int64)
        number = self.numbers.setdefault((array.tobytes(), array.shape), len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array)
        return Index(self, number)

    def moved(self, device: torch.device) -> list[Tensor]:
        """All arrays as tensors, in the order in which they came."""
        tensors = self.tensors.setdefault(device, [])
        if rest := self.arrays[len(tensors) :]:
            flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in rest]))
            if device.type == "cuda":  # else the copy waits for all that the device has to do
                flat = flat.pin_memory()
            moved = flat.to(device, non_blocking=True)
            parts = torch.split_with_sizes(moved, [array.size for array in rest])
            for part, array in zip(parts, rest, strict=True):
                tensors.append(part if array.ndim == 1 else part.view(array.shape))
        return tensors
