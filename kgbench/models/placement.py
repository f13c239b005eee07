"""Models larger than one device: placement of their layers, and transfer of activations.

A model is divided at its layers. A module outside of them (embeddings, final norm, head) moves its
input to its own device and its output back to the device of the embeddings. A layer moves its input
to its own device and leaves its output there, for the next layer to move.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
from accelerate.utils import get_balanced_memory, infer_auto_device_map, send_to_device
from torch import nn

from kgbench.data.rows import unique_fields
from kgbench.errors import InputError, UnknownNameError

STRATEGIES = ("auto", "balanced", "sequential")
"""As accelerate's: `auto` and `balanced` fill all accelerators alike, `sequential` one by one.

The processor takes what they have no room for, and computes it.
"""

DeviceMap = str | Mapping[str, str | int]
"""One of `STRATEGIES`, or for paths of modules their devices.

The empty path is all that no other names.
"""

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
        raise InputError(f"the device {name!r} cannot be used here: {reason}") from error
    return name


def read_device_map(text: str) -> DeviceMap:
    """A map as it is given on a command line: a strategy, or a JSON object.

    Raises:
        InputError: It is neither.
    """
    if not text.lstrip().startswith("{"):
        if text not in STRATEGIES:
            hint = (
                'Or give a JSON object from paths to devices, such as {"": 0, "model.layers.9": 1}.'
            )
            raise UnknownNameError("device map", text, STRATEGIES, hint)
        return text
    try:
        devices = json.loads(text, object_pairs_hook=unique_fields)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--device-map is no JSON: {error}") from error
    for device in devices.values():
        if not isinstance(device, str | int) or isinstance(device, bool):
            raise InputError(
                "--device-map: expected a device for each path, "
                "as a name such as 'cuda:1' or a number"
            )
    return dict(devices)


def units(model: nn.Module, layers: str) -> tuple[str, ...]:
    """Paths of the modules that a model is divided into, in order.

    These are the layers, and the modules outside of them.

    Args:
        model: A model.
        layers: Path of its list of layers.
    """
    paths: list[str] = []

    def walk(path: str, module: nn.Module) -> None:
        for name, child in module.named_children():
            at = f"{path}.{name}" if path else name
            if at == layers:
                paths.extend(f"{at}.{index}" for index, _ in child.named_children())
            elif f"{layers}.".startswith(f"{at}."):
                walk(at, child)
            else:
                paths.append(at)

    walk("", model)
    return tuple(paths)


def devices_of(
    model: nn.Module,
    layers: str,
    device_map: DeviceMap,
    models: int = 1,
    free: Mapping[str, int] | None = None,
) -> dict[str, torch.device]:
    """The device of each unit of a model.

    Args:
        model: The recipient.
        layers: Path of its list of layers.
        device_map: What was asked for.
        models: How many models of this size will be held.
        free: Bytes that are free on each device, the processor last, before any model is loaded; by
            default those that are now.

    Raises:
        InputError: The map does not name a device for each unit, or names what is none, or they do
            not fit.
    """
    if isinstance(device_map, str):
        device_map = _inferred(
            model, layers, device_map, models, free_memory() if free is None else free
        )
    parts = units(model, layers)
    return _mapped(parts, device_map, set(_weighty(model, parts)))


def _inferred(
    model: nn.Module, layers: str, strategy: str, models: int, free: Mapping[str, int]
) -> dict[str, str | int]:
    """The device of each unit by accelerate's rules, each model with its share of free memory.

    Raises:
        InputError: The models do not fit.
    """
    block = [type(next(model.get_submodule(layers).children())).__name__]
    room: dict[int | str, int | str] = {}
    for name, n in free.items():
        room[name if name == "cpu" else int(name.removeprefix("cuda:"))] = int(
            n * (1 - _LEFT) / models
        )
    if strategy != "sequential":
        room = get_balanced_memory(model, room, block)
    devices = infer_auto_device_map(model, room, block, offload_buffers=True)
    if "disk" in devices.values():
        needed = models * sum(t.numel() * t.element_size() for t in model.state_dict().values())
        raise InputError(
            f"the models do not fit: they need {needed / 2**30:.2f} GiB in whole layers, and the "
            f"devices have room for {' + '.join(f'{n / 2**30:.2f}' for n in free.values())} GiB, "
            "of which some is left to activations; try --dtype bfloat16"
        )
    return dict(devices)


def _weighty(model: nn.Module, paths: Iterable[str]) -> list[str]:
    """Those of some modules that have weights."""
    return [p for p in paths if next(model.get_submodule(p).parameters(), None) is not None]


def named_devices(device_map: DeviceMap) -> tuple[torch.device, ...]:
    """The devices that a map names; none where it is a strategy.

    Raises:
        InputError: It names what is none.
    """
    if isinstance(device_map, str):
        return ()
    return tuple(dict.fromkeys(_device(path, name) for path, name in device_map.items()))


def main_device(device_map: DeviceMap) -> torch.device:
    """An accelerator if a map uses one, otherwise the processor; sets the default dtype.

    Raises:
        InputError: The map names a device that does not exist.
    """
    if isinstance(device_map, str):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return next(
        (device for device in named_devices(device_map) if device.type != "cpu"),
        torch.device("cpu"),
    )


def _mapped(
    parts: Sequence[str], device_map: Mapping[str, str | int], weighty: set[str]
) -> dict[str, torch.device]:
    devices = {path: _device(path, name) for path, name in device_map.items()}
    more = f" … {parts[-1]}" if len(parts) > 3 else ""
    for path in devices:
        if path and not any(f"{part}.".startswith(f"{path}.") for part in parts):
            raise InputError(
                f"--device-map names {path!r}, which is no layer, nor a module outside of them: "
                f"expected some of {', '.join(parts[:3])}{more}"
            )
    placed = {}
    for part in parts:
        holders = [path for path in devices if not path or f"{part}.".startswith(f"{path}.")]
        if holders:
            placed[part] = devices[max(holders, key=len)]
        elif part in weighty:
            raise InputError(
                f"--device-map names no device for {part!r}: add it, "
                'or a device for all else as {"": DEVICE}'
            )
    home = next(placed[part] for part in parts if part in weighty)
    return {part: placed.get(part, home) for part in parts}


def _device(path: str, name: str | int) -> torch.device:
    if name == "disk":
        raise InputError(
            f"--device-map puts {path!r} on disk, and all weights are held in memory: "
            "give 'cpu' or an accelerator"
        )
    try:
        return torch.device(f"cuda:{name}" if isinstance(name, int) else name)
    except RuntimeError as error:
        raise InputError(
            f"--device-map: {name!r} is no device: {str(error).splitlines()[0]}"
        ) from error


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


def place(model: nn.Module, devices: Mapping[str, torch.device], layers: str) -> None:
    """Put the units of a model on their devices, and have activations follow.

    Args:
        model: A model.
        devices: The device of each of its units.
        layers: Path of its list of layers.
    """
    home = devices[_weighty(model, devices)[0]]
    for path, device in devices.items():
        module = model.get_submodule(path)
        if any(tensor.device != device for tensor in [*module.parameters(), *module.buffers()]):
            module.to(device)
        module.register_forward_pre_hook(partial(_to, device), with_kwargs=True)
        if not path.startswith(f"{layers}."):
            module.register_forward_hook(partial(_back, home))


def _to(
    device: torch.device, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    return send_to_device((inputs, options), device)


def _back(home: torch.device, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
    return send_to_device(output, home)
