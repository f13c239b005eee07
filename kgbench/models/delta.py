"""The weights of a plant: the tensors that differ from its recipient's, in the type of the recipient's checkpoint, as safetensors.

Where fewer than half of a matrix's rows differ, as of embeddings of which few tokens were seen, `NAME#rows` holds the numbers of those
rows and `NAME#values` the rows.
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

__all__ = ["apply_delta", "stored_hash", "write_delta"]

_ROWS, _VALUES = "#rows", "#values"


def write_delta(recipient: nn.Module, donor: nn.Module, dtype: torch.dtype, path: Path) -> None:
    """Write what the weights of a donor differ in from a recipient's.

    Args:
        recipient: The recipient.
        donor: A model of the same architecture.
        dtype: Type of the recipient's checkpoint, to which the weights are rounded.
        path: The file.
    """
    before = recipient.state_dict()
    tensors: dict[str, Tensor] = {}
    for name, weights in donor.state_dict().items():
        old, new = (tensor.detach().cpu().to(dtype) for tensor in (before[name], weights))
        if not torch.equal(old, new):
            tensors.update(_entries(name, old, new))
    save_file(tensors, path)


def _entries(name: str, old: Tensor, new: Tensor) -> dict[str, Tensor]:
    rows = (old != new).any(dim=1).nonzero()[:, 0] if new.ndim == 2 else None
    if rows is None or 2 * len(rows) >= len(new):
        return {name: new.contiguous()}
    return {f"{name}{_ROWS}": rows.to(torch.int32), f"{name}{_VALUES}": new[rows].contiguous()}


def apply_delta(model: nn.Module, path: Path, origin: str) -> None:
    """Turn a recipient into the donor of which a file holds the differences.

    Args:
        model: The recipient, with input and output embeddings untied; changed in place.
        path: The file.
        origin: What to call it in an error.

    Raises:
        ModelError: The file does not read, or does not fit the model.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{origin} does not load: {path.name} is no safetensors file ({error})") from error
    weights = model.state_dict()
    for key, tensor in tensors.items():
        if not key.endswith(_ROWS):
            name = key.removesuffix(_VALUES)
            _put(weights, name, tensor, tensors.get(f"{name}{_ROWS}") if name != key else None, origin)


def _put(weights: Mapping[str, Tensor], name: str, tensor: Tensor, rows: Tensor | None, origin: str) -> None:
    if name not in weights:
        raise ModelError(f"{origin} does not fit the recipient: it changes {name!r}, which the recipient does not have")
    old = weights[name]
    shape = tuple(tensor.shape) if rows is None else (len(old), *tensor.shape[1:])
    fits = shape == tuple(old.shape) and (rows is None or (len(rows) == len(tensor) and int(rows.max()) < len(old)))
    if not fits:
        raise ModelError(
            f"{origin} does not fit the recipient: {name!r} is {list(old.shape)} there, the changed weights are {list(tensor.shape)}"
        )
    new = tensor.to(device=old.device, dtype=old.dtype)
    if rows is None:
        old.copy_(new)
    else:
        old[rows.to(device=old.device, dtype=torch.int64)] = new


def stored_hash(directory: Path) -> str:
    """SHA-256 over names, types, shapes and bytes of a checkpoint's tensors; how they are spread over files does not count."""
    found: dict[str, tuple[Path, str]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found.update({name: (path, name) for name in file.keys()})  # noqa: SIM118  # not a mapping
    digest = hashlib.sha256()
    for name, (path, _) in sorted(found.items()):
        with safe_open(path, framework="pt") as file:
            tensor = file.get_tensor(name)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
