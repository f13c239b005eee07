"""Model pairs of a process: several methods in turn look at one that is loaded once."""

from __future__ import annotations

from typing import Any

import torch

from kgbench.engine import load_pair
from kgbench.errors import InputError
from kgbench.models.pair import ModelPair
from kgbench.models.placement import read_device_map
from kgbench.runner.spec import Settings, Spec

__all__ = ["Pairs", "usable_device"]


class Pairs:
    """Loads model pairs and keeps the last one."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, Any], ModelPair] | None = None

    def load(self, spec: Spec, settings: Settings) -> ModelPair:
        """The pair that a specification names, loaded and checked.

        Raises:
            InputError: The device cannot be used, or a checkpoint does not load or fit.
        """
        if settings.device_map is not None and settings.device != "auto":
            raise InputError("--device is one device, --device-map says which layers are where: give one of them")
        wanted: dict[str, Any] = {
            "name": spec.model,
            "recipient": spec.recipient,
            "donors": dict(spec.donors) or None,
            "dtype": spec.dtype,
            "device": usable_device(settings.device),
            "revision": spec.revision,
            "chat_template": spec.chat_template,
            "attention": settings.attention,
            "stream_donors": settings.stream_donors,
            "device_map": read_device_map(settings.device_map) if settings.device_map is not None else None,
        }
        if self._last is None or self._last[0] != wanted:
            self._last = None  # the one before is freed first
            self._last = (wanted, load_pair(**wanted))
        return self._last[1]

    def forget(self) -> None:
        """Load anew whatever is asked for next."""
        self._last = None


def usable_device(name: str) -> str:
    """The device of this name; `auto` is an accelerator where there is one.

    Raises:
        InputError: There is no such device here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return name
