"""Weights held once: models of a pair that differ in few tensors share the storage of all others."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

__all__ = ["same_bits", "share_equal", "shared_copy"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A model with modules, parameters and a configuration of its own, whose tensors are the given model's: it takes no memory."""
    own = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    return deepcopy(model, {**own, **{id(buffer): buffer for buffer in model.buffers()}})


def share_equal(recipient: nn.Module, donor: nn.Module) -> None:
    """Let a donor use the recipient's storage for each parameter that is bit for bit the recipient's, and give its own back.

    What writes to a parameter of either model in place writes to both from then on.

    Args:
        recipient: A model.
        donor: A model of the same parameters; their values do not change.
    """
    for name, ours in recipient.named_parameters():
        theirs = donor.get_parameter(name)
        if same_bits(ours.detach(), theirs.detach()):
            theirs.data = ours.data


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have the same bits: 0 and -0 are equal numbers, but other weights."""
    bits = _BITS[one.element_size()]
    return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one.view(bits), other.view(bits))
