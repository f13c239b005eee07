"""Weights of models: changes stored on disk, storage shared in memory, hashes.

Donors can be stored as differences from the recipient in 8-bit steps, as safetensors. `NAME#change`
holds whole numbers from -127 to 127 (int8), and `NAME#step` the size of a step of each row
(float32; of a vector, one step in all): a weight is the recipient's + change × step, computed in
float32. A change of low rank is stored as `NAME#up` [output, rank] and `NAME#down` [rank, input]
(bfloat16), whose product it is; of a matrix that holds [input, output], the other way about. A
weight that is not named, and one whose change is 0, equals the recipient's bit for bit.
The donor is what is stored: figures are measured on it.

Models of a pair that differ in few tensors share the storage of all others.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from kgbench.errors import ModelError

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHANGE, _STEP = "#change", "#step"
_UP, _DOWN = "#up", "#down"
_PARTNERS = {_CHANGE: _STEP, _STEP: _CHANGE, _UP: _DOWN, _DOWN: _UP}
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


def write_low_rank(factors: Mapping[str, tuple[Tensor, Tensor]], path: Path) -> None:
    """Write changes of low rank.

    Args:
        factors: By parameter, two matrices whose product is its change, in bfloat16.
        path: The file.
    """
    tensors: dict[str, Tensor] = {}
    for name, (up, down) in factors.items():
        tensors |= {f"{name}{_UP}": up, f"{name}{_DOWN}": down}
    save_file(tensors, path)


def read_delta(path: Path, origin: str) -> dict[str, tuple[Tensor, Tensor]]:
    """The changes of a file by tensor.

    They are whole numbers (int8) and the size of their steps (float32), or the two factors of a
    change of low rank (bfloat16).

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
        partner = stored.get(f"{name}{_PARTNERS.get(mark + rest)}")
        if partner is None:
            raise ModelError(
                f"{origin} does not load: {path.name}: {key!r} is not one of a pair; "
                f"expected NAME{_CHANGE} with NAME{_STEP}, or NAME{_UP} with NAME{_DOWN}, for each "
                "tensor that changed"
            )
        if mark + rest in (_CHANGE, _UP):
            if name in changes:
                raise ModelError(f"{origin} does not load: {path.name}: {name!r} has two changes")
            changes[name] = tensor, partner
    for name, (change, step) in changes.items():
        what = f"{origin} does not load: {path.name}: {name!r}"
        if f"{name}{_UP}" in stored:
            _check_factors(change, step, what)
            continue
        if (change.dtype, step.dtype) != (torch.int8, torch.float32):
            raise ModelError(
                f"{what} has changes of {change.dtype} and steps of {step.dtype}; expected int8 "
                "and float32"
            )
        if step.shape != _step(change.float()).shape:
            raise ModelError(
                f"{what} has changes of {list(change.shape)} and steps of {list(step.shape)}; "
                "expected one step for each row"
            )
    return changes


def _check_factors(up: Tensor, down: Tensor, what: str) -> None:
    if (up.dtype, down.dtype) != (torch.bfloat16,) * 2:
        raise ModelError(f"{what} has factors of {up.dtype} and {down.dtype}; expected bfloat16")
    if (up.ndim, down.ndim) != (2, 2) or up.shape[1] != down.shape[0]:
        raise ModelError(
            f"{what} has factors of {list(up.shape)} and {list(down.shape)}; expected "
            "[output, rank] and [rank, input]"
        )


def _dense(change: Tensor, other: Tensor) -> Tensor:
    """A change in single precision, from its steps or its factors."""
    if change.dtype == torch.int8:
        return change.float() * other
    return change.float() @ other.float()


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
    for name, stored in read_delta(path, origin).items():
        if name not in weights:
            raise ModelError(
                f"{origin} does not fit the recipient: it changes {name!r}, which the recipient "
                "does not have"
            )
        old, change = weights[name], _dense(*stored)
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
    files: dict[str, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping
                files[name] = path

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, path in sorted(files.items()):
            with safe_open(path, framework="pt") as file:
                yield name, file.get_tensor(name)

    return hash_tensors(tensors())


def hash_tensors(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors, in the order given."""
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


# -------------------------------------------------------------------------------- sharing


def shared_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model with separate modules and parameters that share its tensors."""
    kept: dict[int, Tensor] = {}
    for weight in model.parameters():
        kept[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
    for buffer in model.buffers():
        kept[id(buffer)] = buffer
    return deepcopy(model, kept)


def put_weight(model: nn.Module, name: str, weight: Tensor) -> None:
    """Put a weight, without a gradient, in the place of a model's own."""
    owner, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(owner), leaf, nn.Parameter(weight, requires_grad=False))


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
    kept: set[int] = set()
    for other in others:
        kept.update(weight.data_ptr() for weight in other.parameters())
    try:
        lines = Path("/proc/self/maps").read_text("utf-8", errors="replace").splitlines()
        mapped = []
    except OSError:  # the system lists no maps: all could be one
        lines, mapped = [], [range(sys.maxsize)]
    for line in lines:
        addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
        if inode != "0":  # memory without a file has none
            first, last = addresses.split("-")
            mapped.append(range(int(first, 16), int(last, 16)))
    for weight in model.parameters():
        at = weight.data_ptr()
        if weight.device.type == "cpu" and at not in kept and any(at in file for file in mapped):
            weight.data = weight.data.clone()


def refuse_non_finite(name: str, tensor: Tensor, origin: str) -> None:
    """Refuse a weight that holds NaN or infinite numbers.

    Args:
        name: Its name.
        tensor: Its values.
        origin: What to call the checkpoint in an error.

    Raises:
        ModelError: It holds such numbers.
    """
    if not tensor.is_floating_point() or not tensor.numel():
        return
    low, high = tensor.detach().aminmax()  # one pass, and no copy; NaN goes through
    if not (low.isfinite() and high.isfinite()):
        nan, wrong = int(tensor.isnan().sum()), int((~tensor.isfinite()).sum())
        kind = str(tensor.dtype).removeprefix("torch.")
        raise ModelError(
            f"{origin} does not load: {name!r} holds {wrong} numbers of {tensor.numel()} that are "
            f"not finite in {kind} ({nan} NaN, "
            f"{wrong - nan} infinite; the largest of the type is "
            f"{torch.finfo(tensor.dtype).max:.3g}); expected finite weights: give a "
            "checkpoint without them, or where they are too large for the type another --dtype"
        )
