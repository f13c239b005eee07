"""The weights of a plant: the tensors that differ from its recipient's, in the type of the recipient's checkpoint, as safetensors.

Where fewer than half of a matrix's rows differ, as of embeddings of which few tokens were seen, `NAME#rows` holds the numbers of those
rows and `NAME#values` the rows.

Weights of two bytes are stored as two tensors of bytes: `NAME#low` has the lower ones, which are as good as random, and
`NAME#high.TYPE` the higher ones (sign and exponent, of which few are in use), deflated. Files of whole weights are read as well.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kgbench.errors import ModelError

__all__ = ["apply_delta", "read_delta", "stored_hash", "write_delta"]

_ROWS, _VALUES, _LOW, _HIGH = "#rows", "#values", "#low", "#high."
_TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


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
    save_file({part: bytes_ for name, tensor in tensors.items() for part, bytes_ in _packed(name, tensor).items()}, path)


def _entries(name: str, old: Tensor, new: Tensor) -> dict[str, Tensor]:
    rows = (old != new).any(dim=1).nonzero()[:, 0] if new.ndim == 2 else None
    if rows is None or 2 * len(rows) >= len(new):
        return {name: new.contiguous()}
    return {f"{name}{_ROWS}": rows.to(torch.int32), f"{name}{_VALUES}": new[rows].contiguous()}


def _packed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    kind = next((key for key, dtype in _TYPES.items() if tensor.dtype == dtype), None)
    if kind is None:
        return {name: tensor}
    # As int16, since the order of the bytes in memory is the machine's.
    numbers = tensor.contiguous().view(torch.int16).to(torch.int32)
    low, high = (part.to(torch.uint8) for part in (numbers & 255, numbers >> 8 & 255))
    deflated = zlib.compress(high.numpy().tobytes(), 9)
    return {f"{name}{_LOW}": low, f"{name}{_HIGH}{kind}": torch.frombuffer(bytearray(deflated), dtype=torch.uint8)}


def read_delta(path: Path, origin: str) -> dict[str, Tensor]:
    """The tensors of a file: whole ones by name, and `NAME#rows` with `NAME#values`.

    Args:
        path: The file.
        origin: What to call it in an error.

    Raises:
        ModelError: The file does not read.
    """
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{origin} does not load: {path.name} is no safetensors file ({error})") from error
    tensors: dict[str, Tensor] = {}
    for key, tensor in stored.items():
        name, mark, kind = key.partition(_HIGH)
        if mark:
            tensors[name] = _unpacked(stored.get(f"{name}{_LOW}"), tensor, kind, f"{origin} does not load: {path.name}: {name!r}")
        elif not key.endswith(_LOW):
            tensors[key] = tensor
        elif not any(f"{key.removesuffix(_LOW)}{_HIGH}{each}" in stored for each in _TYPES):
            raise ModelError(f"{origin} does not load: {path.name}: {key!r} has no higher bytes beside it")
    return tensors


def _unpacked(low: Tensor | None, high: Tensor, kind: str, what: str) -> Tensor:
    if kind not in _TYPES:
        raise ModelError(f"{what} is of type {kind!r}; expected one of {', '.join(_TYPES)}")
    if low is None or {low.dtype, high.dtype} != {torch.uint8}:
        raise ModelError(f"{what} is not stored as its lower and its higher bytes")
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(high.numpy().tobytes(), low.numel() + 1)  # no more than are wanted, whatever they unfold to
    except zlib.error as error:
        raise ModelError(f"{what}: its higher bytes do not unpack ({error})") from error
    if len(content) != low.numel() or not unpacker.eof:
        raise ModelError(f"{what} has {low.numel()} lower bytes and another number of higher ones")
    upper = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else low.new_empty(0)
    numbers = upper.reshape(low.shape).to(torch.int32) << 8 | low.to(torch.int32)
    return numbers.to(torch.int16).view(_TYPES[kind])


def apply_delta(model: nn.Module, path: Path, origin: str) -> None:
    """Turn a recipient into the donor of which a file holds the differences.

    Args:
        model: The recipient, with input and output embeddings untied; changed in place.
        path: The file.
        origin: What to call it in an error.

    Raises:
        ModelError: The file does not read, or does not fit the model.
    """
    tensors = read_delta(path, origin)
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
