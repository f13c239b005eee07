"""What a run, a training or a figure takes: the one forecast behind every `--dry-run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from kgbench.models.catalog import FLOPS, Entry
from kgbench.models.fetching import fetched_model
from kgbench.models.loading import DTYPES
from kgbench.models.pair import ModelPair
from kgbench.models.placement import DeviceMap, free_memory
from kgbench.numbers import duration_text, size_text


@dataclass(frozen=True)
class Cost:
    """What a run, a training or a figure takes, and what that rests on."""

    what: str
    seconds: float = 0.0
    basis: str = ""
    """Where the figures are from."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers of what is computed, such as `token_rows`, `texts` or `steps`."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes held at once, by what they hold."""
    free: int = 0
    """Free bytes where it would be computed, before anything is loaded."""
    device: str = ""
    savings: tuple[str, ...] = ()
    """Options that need less memory."""
    disk: int = 0
    """Bytes written, at most at once."""
    download: int = 0
    """Bytes of models that are not on this machine."""
    done: bool = False
    """Whether it is there, so that nothing would be computed."""

    @property
    def needed(self) -> int:
        """Bytes of memory."""
        return sum(self.memory.values())

    @property
    def fits(self) -> bool:
        """Whether it fits into free memory."""
        return self.needed <= self.free

    @property
    def verdict(self) -> str:
        """Whether it fits into memory, in words, with options to try where it does not."""
        parts = ", ".join(f"{name} {size_text(n)}" for name, n in self.memory.items())
        free = f"{size_text(self.free)} free on {self.device}"
        text = f"needs {size_text(self.needed)} ({parts}), {free}"
        if self.fits:
            return f"fits: {text}"
        options = f"; try {', '.join(self.savings)}" if self.savings else ""
        return f"does not fit: {text}{options}"

    def __add__(self, other: Cost) -> Cost:
        """One after the other; both are taken to need the same download."""
        larger = max(self, other, key=lambda cost: cost.needed)
        return replace(
            larger,
            what=self.what,
            seconds=self.seconds + other.seconds,
            basis="",
            counts={},
            disk=self.disk + other.disk,
            download=max(self.download, other.download),
            done=self.done and other.done,
        )

    def to_json(self) -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        return {**asdict(self), "needed": self.needed, "fits": self.fits, "verdict": self.verdict}


def cost_table(costs: Sequence[Cost]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows of every `--dry-run`: a row for each of several, or the fields of one."""
    table = []
    for cost in costs:
        time = "none: it is there" if cost.done else f"about {duration_text(cost.seconds)}"
        needed = cost.verdict if len(costs) == 1 else size_text(cost.needed)
        sizes = [size_text(size) if size else "none" for size in (cost.disk, cost.download)]
        work = ", ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in cost.counts.items())
        table.append(
            [cost.what, time, needed, *sizes, "; from ".join(filter(None, (work, cost.basis)))]
        )
    names = ["what", "time", "memory", "disk", "download", "work"]
    if len(costs) > 1:
        return names, table
    (_, what), *rows = zip(names, *table, strict=True)
    return ["what", what], list(map(list, rows))


def weights_bytes(pair: ModelPair) -> int:
    """Memory of a pair's weights, shared storage once."""
    sizes: dict[int, int] = {}
    for model in (pair.recipient, *pair.donors.values()):
        for tensor in model.state_dict().values():
            sizes[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
    return sum(sizes.values())


def assumed_seconds(operations: float, device: str) -> tuple[float, str]:
    """Seconds of so many operations on a device, where nothing is measured, and their basis."""
    kind = torch.device(device).type
    return operations / FLOPS[kind], f"{FLOPS[kind] / 1e12:g} Tflop/s assumed on {kind}"


def download_bytes(entry: Entry) -> int:
    """Bytes of the recipient of a catalog pair."""
    if (fetched := fetched_model(entry.recipient)) is not None:
        return fetched.download
    return (entry.parameters or 0) * DTYPES[entry.stored or "float32"].itemsize


def room(
    device: str, device_map: DeviceMap | None, dtype: torch.dtype, loaded: int = 0
) -> dict[str, Any]:
    """Fields of a cost on the memory of a device, and on options that need less of it.

    Args:
        device: The main device.
        device_map: Over which devices the layers are spread.
        dtype: Type of the weights.
        loaded: Bytes of the needed memory that are in use already.
    """
    free = free_memory()
    names = set(free)
    if device_map is None:
        main = torch.device(device)
        # What `free_memory` does not list has the processor's.
        names = {f"cuda:{main.index or 0}" if main.type == "cuda" else "cpu"}
    options = {
        "--dtype bfloat16": dtype.itemsize > torch.bfloat16.itemsize,
        "--device-map auto": device_map is None,
    }
    savings = tuple(option for option, helps in options.items() if helps)
    return {
        "free": sum(free[name] for name in names) + loaded,
        "device": device if device_map is None else "all devices together",
        "savings": savings,
    }
