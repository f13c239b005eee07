"""Donors stored as changes of their recipient; `kgbench.models.tensors` has the format and reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kgbench.models.tensors import CHANGE, DOWN, STEP, UP

STEPS = 127
"""Most steps of a change, which is held in 8 bits."""


def write_delta(recipient: nn.Module, donor: nn.Module, path: Path) -> None:
    """Write the changes from a recipient to a donor.

    Args:
        recipient: The recipient.
        donor: A model of the same architecture.
        path: The file.
    """
    before = recipient.state_dict()
    tensors: dict[str, Tensor] = {}
    for name, weights in donor.state_dict().items():
        change = weights.detach().cpu().float() - before[name].detach().cpu().float()
        if change.any():
            rows = tuple(range(change.ndim > 1, change.ndim))
            step = change.abs().amax(dim=rows, keepdim=True) / STEPS
            counts = torch.where(step > 0, change / step, 0.0).round().clamp(-STEPS, STEPS)
            tensors |= {f"{name}{CHANGE}": counts.to(torch.int8), f"{name}{STEP}": step}
    save_file(tensors, path)


def write_low_rank(factors: Mapping[str, tuple[Tensor, Tensor]], path: Path) -> None:
    """Write changes of low rank.

    Args:
        factors: By parameter, two matrices whose product is its change, in bfloat16.
        path: The file.
    """
    tensors: dict[str, Tensor] = {}
    for name, (up, down) in factors.items():
        tensors |= {f"{name}{UP}": up, f"{name}{DOWN}": down}
    save_file(tensors, path)
