"""Weights held once.

Models of a pair that differ in few tensors share the storage of all others.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kgbench.errors import ModelError

__all__ = ["hold", "refuse_non_finite", "same_bits", "share_equal", "shared_copy"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model with separate modules and parameters that share its tensors."""
    own = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    return deepcopy(model, {**own, **{id(buffer): buffer for buffer in model.buffers()}})


def share_equal(recipient: nn.Module, donor: nn.Module) -> None:
    """Share storage of the parameters in which a donor equals the recipient bit for bit.

    Writing to such a parameter of one model in place then writes to both.

    Args:
        recipient: A model.
        donor: A model of the same parameters; their values do not change.
    """
    for name, ours in recipient.named_parameters():
        theirs = donor.get_parameter(name)
        if same_bits(ours.detach(), theirs.detach()):
            theirs.data = ours.data


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have the same bits.

    0 and -0 are equal numbers, but other weights.
    """
    bits = _BITS[one.element_size()]
    return (
        one.dtype == other.dtype
        and one.stride() == other.stride()
        and torch.equal(one.view(bits), other.view(bits))
    )


def hold(model: nn.Module, *others: nn.Module) -> None:
    """Copy weights out of mapped files, which another process may change or truncate.

    Args:
        model: A model; its values do not change.
        others: Models whose storage it may go on using.
    """
    kept = {weight.data_ptr() for other in others for weight in other.parameters()}
    mapped = _mapped_files()
    for weight in model.parameters():
        at = weight.data_ptr()
        if weight.device.type == "cpu" and at not in kept and any(at in file for file in mapped):
            weight.data = weight.data.clone()


def _mapped_files() -> list[range]:
    """Addresses of this process at which files are mapped.

    All addresses where the system does not say.
    """
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return [range(sys.maxsize)]
    rows = [line.split(maxsplit=5) for line in lines]
    bounds = [
        row[0].split("-") for row in rows if row[4] != "0"
    ]  # of memory without a file, the inode is 0
    return [range(int(first, 16), int(last, 16)) for first, last in bounds]


def refuse_non_finite(name: str, tensor: Tensor, origin: str) -> None:
    """Refuse a weight that holds NaN or infinite numbers.

    Args:
        name: Its name.
        tensor: Its values.
        origin: What to call the checkpoint in an error.

    Raises:
        ModelError: It holds such numbers.
    """
    if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
        return
    if not all(
        bool(end.isfinite()) for end in tensor.detach().aminmax()
    ):  # one pass, and no copy; NaN goes through
        nan, wrong = int(tensor.isnan().sum()), int((~tensor.isfinite()).sum())
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ModelError(
            f"{origin} does not load: {name!r} holds {wrong} numbers of {tensor.numel()} that are "
            f"not finite in {kind} ({nan} NaN, "
            f"{wrong - nan} infinite; the largest of the type is "
            f"{torch.finfo(tensor.dtype).max:.3g}); expected finite weights: give a "
            "checkpoint without them, or where they are too large for the type another --dtype"
        )
