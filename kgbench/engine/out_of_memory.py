"""What happens where a device runs out of memory: less is computed at once, and that is printed."""

from __future__ import annotations

import warnings

import torch

from kgbench.errors import InputError
from kgbench.models.pair import ModelPair


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device could not allocate what was asked for.

    Only CUDA has an error of its own for it; the processor's allocator and MPS are known by their
    texts. A process that Linux ends because it promised more memory than it has cannot be caught.
    """
    texts = ("DefaultCPUAllocator: ", "MPS backend out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in texts)


def less_at_once(pair: ModelPair, possible: bool, error: RuntimeError) -> None:
    """Warn that less is computed at once from here on.

    Args:
        pair: Whose device ran out of memory.
        possible: Whether less can be computed at once.
        error: What the device raised.

    Raises:
        RuntimeError: The error, which is another one.
        InputError: One prompt under one configuration is too large already.
    """
    if not is_out_of_memory(error):
        raise error
    device = str(pair.device)
    if not possible:
        raise InputError(
            f"the memory of the device {device!r} is too small for a prompt under "
            "one configuration: try --dtype bfloat16, or --device-map auto"
        ) from error
    warnings.warn(
        f"the device {device!r} ran out of memory: fewer token rows are computed "
        "at once from here on",
        stacklevel=3,
    )
