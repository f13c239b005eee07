"""Models larger than one device: placement of their layers, and transfer of activations.

A model is divided at its layers. A module outside of them (embeddings, final norm, head) moves its
input to its own device and its output back to the device of the embeddings. A layer moves its input
to its own device and leaves its output there, for the next layer to move.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psutil
import torch
from accelerate.utils import get_balanced_memory, infer_auto_device_map, send_to_device
from torch import nn
from transformers import PreTrainedModel

from kgbench.errors import InputError, check_choice

STRATEGIES = ("auto", "balanced", "sequential")
"""As accelerate's: `auto` and `balanced` fill all accelerators alike, `sequential` one by one.

The processor takes what they have no room for, and computes it.
"""

DeviceMap = str
"""One of `STRATEGIES`."""

_LEFT = 0.1
"""Share of each device's free memory that is left to activations."""

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux holds a container's limit of memory, which may be less than the machine has."""


def usable_device(name: str) -> str:
    """The device of this name; `auto` is an accelerator where there is one.

    Args:
        name: `auto`, or a torch device such as `cuda:1`.

    Raises:
        InputError: There is no such device here.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the device {name!r} cannot be used here: {reason}; expected auto, cpu, "
            "cuda, cuda:N or mps"
        ) from error
    return name


def main_device(device_map: DeviceMap) -> torch.device:
    """An accelerator where there is one, otherwise the processor; sets the default dtype.

    Raises:
        UnknownNameError: There is no such map.
    """
    check_choice("device map", device_map, STRATEGIES)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def devices_of(
    model: nn.Module,
    layers: str,
    device_map: DeviceMap,
    models: int = 1,
    free: Mapping[str, int] | None = None,
) -> dict[str, torch.device]:
    """The device of each layer of a model and of each module outside of them, by accelerate's rules.

    Args:
        model: The recipient.
        layers: Path of its list of layers.
        device_map: How the layers are spread.
        models: How many models of this size will be held, each with its share of free memory.
        free: Bytes that are free on each device, the processor last, before any model is loaded; by
            default those that are now.

    Raises:
        InputError: The models do not fit.
    """
    free = free_memory() if free is None else free
    block = [type(next(model.get_submodule(layers).children())).__name__]
    names = {name if name == "cpu" else int(name.removeprefix("cuda:")): name for name in free}
    room: dict[int | str, int | str] = {}
    for index, name in names.items():
        room[index] = int(free[name] * (1 - _LEFT) / models)
    if device_map != "sequential":
        room = get_balanced_memory(model, room, block)
    devices = infer_auto_device_map(model, room, block, offload_buffers=True)
    if "disk" in devices.values():
        needed = models * sum(t.numel() * t.element_size() for t in model.state_dict().values())
        raise InputError(
            f"the models do not fit: they need {needed / 2**30:.2f} GiB in whole layers, and the "
            f"devices have room for {' + '.join(f'{n / 2**30:.2f}' for n in free.values())} GiB, "
            "of which some is left to activations; try --dtype bfloat16"
        )
    within, placed = f"{layers}.", {}
    for path, _ in model.named_modules():
        parent = path.rpartition(".")[0]
        holds_layers = within.startswith(f"{parent}." if parent else "")
        if path and holds_layers and not within.startswith(f"{path}."):
            holder = next(at for at in devices if f"{path}.".startswith(f"{at}." if at else ""))
            placed[path] = torch.device(names[devices[holder]])
    return placed


def free_memory() -> dict[str, int]:
    """Bytes that are free on each device, the processor last.

    What torch keeps of a device for later use is free.
    """
    free = {}
    for i in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_reserved(i) - torch.cuda.memory_allocated(i)
        free[f"cuda:{i}"] = torch.cuda.mem_get_info(i)[0] + reserved
    left = psutil.virtual_memory().available
    for path in _LIMITS:
        try:
            limit = int(Path(path).read_text("ascii"))
        except (OSError, ValueError):  # no such file, or a word such as `max` in it
            continue
        left = min(left, limit - psutil.Process().memory_info().rss)
    return {**free, "cpu": max(0, left)}


def place(model: PreTrainedModel, devices: Mapping[str, torch.device], layers: str) -> None:
    """Put the parts of a model on their devices, and have activations follow.

    Args:
        model: A model.
        devices: The device of each layer, and of each module outside of them.
        layers: Path of its list of layers.
    """
    modules = {path: model.get_submodule(path) for path in devices}
    home = next(devices[path] for path in devices if modules[path] is model.get_input_embeddings())
    for path, device in devices.items():
        module = modules[path]
        if any(tensor.device != device for tensor in [*module.parameters(), *module.buffers()]):
            module.to(device)
        module.register_forward_pre_hook(
            lambda _, *inputs, device=device: send_to_device(inputs, device), with_kwargs=True
        )
        if not path.startswith(f"{layers}."):
            module.register_forward_hook(lambda *call: send_to_device(call[-1], home))
