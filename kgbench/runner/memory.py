"""What of memory a job needs, and whether it is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kgbench.engine import Budget
from kgbench.errors import InputError
from kgbench.models.checkpoints import Checkpoint
from kgbench.models.configuration import read_config
from kgbench.models.pair import DTYPES, ModelPair
from kgbench.models.placement import free_memory, named_devices
from kgbench.models.reading import read_empty
from kgbench.models.streaming import streamed
from kgbench.runner.pairs import device_map_of
from kgbench.runner.spec import Settings

__all__ = [
    "Memory",
    "activation_bytes",
    "checkpoint_bytes",
    "free_bytes",
    "piece_bytes",
    "refuse_unless_fits",
    "size",
    "weights_bytes",
]

_ROWS, _INNER_ROWS = 8, 4
"""Rows of the stream's and of the MLP's width that a layer holds at once for a token, with those of a second weight set."""


@dataclass(frozen=True)
class Memory:
    """What is needed of a device, against what is free there, in bytes."""

    weights: int
    logits: int
    activations: int
    free: int
    """Before anything is loaded."""
    device: str

    @property
    def needed(self) -> int:
        """All together."""
        return self.weights + self.logits + self.activations

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.needed <= self.free

    def verdict(self, settings: Settings, dtype: str | None = None) -> str:
        """Fits, or not, and what to try then."""
        said = f"needs {size(self.needed)}, {size(self.free)} free on {self.device}"
        if self.fits:
            return f"fits: {said}"
        tries = [
            *(["--dtype bfloat16"] if dtype is None or DTYPES[dtype].itemsize > 2 else []),
            *(["--stream-donor"] if not settings.stream_donors else []),
            *(["--device-map auto"] if settings.device_map is None else []),
        ]
        return f"does not fit: {said}" + (f"; try {', '.join(tries)}" if tries else "")


def size(n: int) -> str:
    """Bytes for a reader."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


def weights_bytes(pair: ModelPair) -> int:
    """What the weights of a pair take, each storage once; of a streamed donor, its largest layer beside what it shares."""
    held: dict[int, int] = {}
    pieces = 0
    for model in (pair.recipient, *pair.donors.values()):
        source, left = streamed(model), dict[str, int]()
        for name, tensor in model.state_dict().items():
            if source is not None and tensor.is_meta:
                group = source.group(name)
                left[group] = left.get(group, 0) + tensor.numel() * tensor.element_size()
            else:
                held[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        pieces += max(left.values(), default=0)
    return sum(held.values()) + pieces


def piece_bytes(parameters: int, layers: int, embeddings: int, itemsize: int) -> int:
    """What a streamed donor holds at once, at most: a layer, or the embeddings.

    Args:
        parameters: Of the model, tied embeddings once.
        layers: Number of its layers.
        embeddings: Number of weights of its embeddings.
        itemsize: Bytes a weight.
    """
    return max((parameters - embeddings) // layers, embeddings) * itemsize


def activation_bytes(shape: Mapping[str, Any], budget: Budget, itemsize: int) -> int:
    """What one forward holds beside weights and logits, at most, roughly: rows of one layer, and attention's scores in float32.

    Args:
        shape: A model's configuration.
        budget: How much is computed at once.
        itemsize: Bytes a number.
    """
    width = next((shape[key] for key in ("hidden_size", "n_embd", "d_model") if shape.get(key)), 0)
    inner = next(
        (shape[key] for key in ("intermediate_size", "n_inner", "ffn_dim") if shape.get(key)),
        4 * width,
    )
    heads = next((shape[key] for key in ("num_attention_heads", "n_head") if shape.get(key)), 1)
    rows = budget.tokens * (_ROWS * width + _INNER_ROWS * inner) * itemsize
    return int(
        rows + heads * budget.tokens * min(budget.tree, budget.tokens) * torch.float32.itemsize
    )


def free_bytes(settings: Settings, device: str) -> tuple[int, str]:
    """Bytes that are free where a job would be computed, and what to call the place."""
    free, wanted = free_memory(), device_map_of(settings)
    if wanted is None:
        return free[_listed(torch.device(device))], device
    named = {_listed(each) for each in named_devices(wanted)} or set(free)
    return sum(free[name] for name in named), "all devices together"


def _listed(device: torch.device) -> str:
    """What `free_memory` calls a device; what it does not list has the processor's."""
    return f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu"


def checkpoint_bytes(place: Checkpoint, dtype: str | None) -> int:
    """What the weights of a checkpoint will take in memory, by its configuration; embeddings and head count apart, as they are held.

    Args:
        place: A checkpoint.
        dtype: Type of the weights; None for that which they are stored in, half precision where the configuration does not say.

    Raises:
        ModelError: The library makes no model of its configuration.
    """
    wanted = (
        DTYPES[dtype]
        if dtype
        else getattr(read_config(place.directory), "dtype", None) or torch.bfloat16
    )
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in read_empty(place, wanted, "eager").state_dict().values()
    )


def refuse_unless_fits(memory: Memory, settings: Settings, dtype: str | None) -> None:
    """Refuse what would not fit before anything of it is loaded.

    Raises:
        InputError: It does not fit.
    """
    if not memory.fits:
        raise InputError(f"{memory.verdict(settings, dtype)}; nothing was loaded")
