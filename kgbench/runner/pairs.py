"""Loader of model pairs that keeps the last one, for several methods in turn."""

from __future__ import annotations

from typing import Any

from kgbench.engine import load_pair
from kgbench.errors import InputError
from kgbench.models.pair import ModelPair
from kgbench.models.placement import (
    DeviceMap,
    main_device,
    named_devices,
    read_device_map,
    usable_device,
)
from kgbench.runner.spec import Settings, Spec

__all__ = ["Pairs", "device_map_of", "main_device_of"]


class Pairs:
    """Loads model pairs and keeps the last one."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, Any], ModelPair] | None = None

    def load(self, spec: Spec, settings: Settings) -> ModelPair:
        """The pair that a specification names, loaded and checked.

        Raises:
            InputError: The device cannot be used, or a checkpoint does not load or fit.
        """
        wanted = _wanted(spec, settings)
        if not self.holds(spec, settings):
            self.forget()  # the one before is freed first
            self._last = (wanted, load_pair(**wanted))
        assert self._last is not None
        return self._last[1]

    def holds(self, spec: Spec, settings: Settings) -> bool:
        """Whether the pair that a specification names is loaded.

        Raises:
            InputError: The device cannot be used.
        """
        return self._last is not None and self._last[0] == _wanted(spec, settings)

    def forget(self) -> None:
        """Drop the pair, so that its memory is free."""
        self._last = None


def _wanted(spec: Spec, settings: Settings) -> dict[str, Any]:
    """Arguments of `load_pair`."""
    return {
        "name": spec.model,
        "recipient": spec.recipient,
        "donors": dict(spec.donors) or None,
        "dtype": spec.dtype,
        "device": main_device_of(settings),
        "revision": spec.revision,
        "chat_template": spec.chat_template,
        "attention": settings.attention,
        "stream_donors": settings.stream_donors,
        "device_map": device_map_of(settings),
    }


def device_map_of(settings: Settings) -> DeviceMap | None:
    """Device of each layer; None where no map is given.

    Raises:
        InputError: It is no map, names an unusable device, or --device is given too.
    """
    if settings.device_map is None:
        return None
    if settings.device != "auto":
        raise InputError(
            "--device is one device, --device-map says which layers are where: give one of them"
        )
    found = read_device_map(settings.device_map)
    for device in named_devices(found):
        usable_device(str(device))
    return found


def main_device_of(settings: Settings) -> str:
    """The device that answers would be computed on; of several, an accelerator.

    Raises:
        InputError: It cannot be used.
    """
    wanted = device_map_of(settings)
    return usable_device(settings.device) if wanted is None else str(main_device(wanted))
