"""Donors stored as changes: differences from the recipient in 8-bit steps, as safetensors.

`NAME#change` holds whole numbers from -127 to 127 (int8), and `NAME#step` the size of a step of
each row (float32; of a vector, one step in all): a weight is the recipient's + change × step,
computed in float32. A weight that is not named, and one whose change is 0, equals the recipient's
bit for bit. The donor is what is stored: figures are measured on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kgbench.errors import ModelError

__all__ = ["apply_delta", "read_delta", "stored_hash", "write_delta"]

_CHANGE, _STEP = "#change", "#step"
_STEPS = 127


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
            step = _step(change)
            counts = torch.where(step > 0, change / step, 0.0).round().clamp(-_STEPS, _STEPS)
            tensors |= {f"{name}{_CHANGE}": counts.to(torch.int8), f"{name}{_STEP}": step}
    save_file(tensors, path)


def _step(change: Tensor) -> Tensor:
    """The size of a step: [rows, 1, …] of a tensor of several dimensions, [1] of a vector."""
    largest = change.abs().amax(dim=tuple(range(change.ndim > 1, change.ndim)), keepdim=True)
    return largest / _STEPS


def read_delta(path: Path, origin: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The changes of a file by tensor: whole numbers (int8), and the size of their steps (float32).

    Args:
        path: The file.
        origin: What to call it in an error.

    Raises:
        ModelError: The file does not read, or holds something else.
    """
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{origin} does not load: {path.name} is no safetensors file ({error})"
        ) from error
    changes: dict[str, tuple[Tensor, Tensor]] = {}
    for key, tensor in stored.items():
        name, mark, rest = key.rpartition("#")
        partner = stored.get(f"{name}{_STEP if mark + rest == _CHANGE else _CHANGE}")
        if mark + rest not in (_CHANGE, _STEP) or partner is None:
            raise ModelError(
                f"{origin} does not load: {path.name}: {key!r} is not one of a pair; "
                f"expected NAME{_CHANGE} with NAME{_STEP} for each tensor that changed"
            )
        if mark + rest == _CHANGE:
            changes[name] = _checked(
                tensor, partner, f"{origin} does not load: {path.name}: {name!r}"
            )
    return changes


def _checked(change: Tensor, step: Tensor, what: str) -> tuple[Tensor, Tensor]:
    if (change.dtype, step.dtype) != (torch.int8, torch.float32):
        raise ModelError(
            f"{what} has changes of {change.dtype} and steps of {step.dtype}; expected int8 and "
            "float32"
        )
    if step.shape != _step(change.float()).shape:
        raise ModelError(
            f"{what} has changes of {list(change.shape)} and steps of {list(step.shape)}; expected "
            "one step for each row"
        )
    return change, step


def apply_delta(model: nn.Module, path: Path, origin: str) -> None:
    """Turn a recipient into the donor whose changes a file holds.

    Args:
        model: The recipient, with input and output embeddings untied; changed in place.
        path: The file.
        origin: What to call it in an error.

    Raises:
        ModelError: The file does not read, or does not fit the model.
    """
    weights = model.state_dict()
    for name, (change, step) in read_delta(path, origin).items():
        if name not in weights:
            raise ModelError(
                f"{origin} does not fit the recipient: it changes {name!r}, which the recipient "
                "does not have"
            )
        _add(weights, name, change.float() * step, origin)


def _add(weights: Mapping[str, Tensor], name: str, change: Tensor, origin: str) -> None:
    old = weights[name]
    if change.shape != old.shape:
        raise ModelError(
            f"{origin} does not fit the recipient: {name!r} is {list(old.shape)} there, the "
            f"changed weights are {list(change.shape)}"
        )
    old.copy_(old.float() + change.to(old.device))


def stored_hash(directory: Path) -> str:
    """SHA-256 over names, types, shapes and bytes of a checkpoint's tensors.

    How they are spread over files does not count.
    """
    found: dict[str, tuple[Path, str]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping
                found[name] = (path, name)
    digest = hashlib.sha256()
    for name, (path, _) in sorted(found.items()):
        with safe_open(path, framework="pt") as file:
            tensor = file.get_tensor(name)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
