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
from collections.abc import Iterable
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from kgbench.errors import ModelError

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
CHANGE, STEP = "#change", "#step"
UP, DOWN = "#up", "#down"
"""Ends of the names of what is stored of a changed tensor."""


def load_tensors(path: Path, origin: str) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        ModelError: It does not read.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{origin} does not load: {path.name} is no safetensors file ({error})"
        ) from error


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
    stored = load_tensors(path, origin)
    changes: dict[str, tuple[Tensor, Tensor]] = {}
    for key in sorted(stored):
        name, mark, end = key.rpartition("#")
        if mark + end in (STEP, DOWN):
            continue
        partner = stored.get(f"{name}{STEP if mark + end == CHANGE else DOWN}")
        if name in changes or partner is None or not _is_change(stored[key], partner):
            raise ModelError(
                f"{origin} does not load: {path.name}: {key!r} is no change with its partner; "
                f"expected NAME{CHANGE} (int8) with NAME{STEP} (float32, one step for each row), or "
                f"NAME{UP} [output, rank] with NAME{DOWN} [rank, input] (bfloat16)"
            )
        changes[name] = stored[key], partner
    return changes


def _is_change(change: Tensor, partner: Tensor) -> bool:
    """Whether two tensors are whole numbers and their steps, or factors of a matrix."""
    types = (change.dtype, partner.dtype)
    if types == (torch.int8, torch.float32):
        rows = [len(change), *[1] * (change.ndim - 1)] if change.ndim > 1 else [1]
        return list(partner.shape) == rows
    is_matrix = change.ndim == partner.ndim == 2 and change.shape[1] == partner.shape[0]
    return types == (torch.bfloat16,) * 2 and is_matrix


def added(change: Tensor, partner: Tensor) -> Tensor:
    """What a change of `read_delta` adds to its weight, in float32."""
    if change.dtype == torch.int8:
        return change.float() * partner
    return change.float() @ partner.float()


def apply_delta(model: nn.Module, path: Path, origin: str) -> None:
    """Turn a recipient into the donor whose changes a file holds.

    Args:
        model: The recipient, with input and output embeddings untied; it gets new parameters, and
            the former ones, which other models may share, are left as they are.
        path: The file.
        origin: What to call it in an error.

    Raises:
        ModelError: The file does not read, or does not fit the model, or a changed weight is not
            finite.
    """
    weights = model.state_dict()
    for name, (change, partner) in read_delta(path, origin).items():
        moved = added(change, partner)
        if name not in weights or weights[name].shape != moved.shape:
            raise ModelError(
                f"{origin} does not fit the recipient: it changes {name!r} of the shape "
                f"{list(moved.shape)}, which the recipient does not have"
            )
        old = weights[name]
        new = (old.float() + moved.to(old.device)).to(old.dtype)
        refuse_non_finite(name, new, origin)
        put_weight(model, name, new)


def stored_hash(directory: Path) -> str:
    """SHA-256 over names, types, shapes and bytes of a checkpoint's tensors.

    How they are spread over files does not count.
    """
    files: dict[str, Any] = {}
    with ExitStack() as opened:
        for path in sorted(directory.glob("*.safetensors")):
            file = opened.enter_context(safe_open(path, framework="pt"))
            files |= dict.fromkeys(file.keys(), file)
        return hash_tensors((name, files[name].get_tensor(name)) for name in sorted(files))


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
    memo: dict[int, Tensor] = {}
    for weight in model.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer
    return deepcopy(model, memo)


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


def same_bits(first: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape have the same bits.

    0 and -0 are equal numbers, but other weights.
    """
    bits = _BITS[first.element_size()]
    return (
        first.dtype == other.dtype
        and first.stride() == other.stride()
        and torch.equal(first.view(bits), other.view(bits))
    )


def hold(model: nn.Module, *others: nn.Module) -> None:
    """Copy weights out of files that may be mapped, which another process may change or truncate.

    Args:
        model: A model; its values do not change.
        others: Models whose storage it may go on using.
    """
    shared: set[int] = set()
    for other in others:
        shared.update(weight.data_ptr() for weight in other.parameters())
    for weight in model.parameters():
        if weight.device.type == "cpu" and weight.data_ptr() not in shared:
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
