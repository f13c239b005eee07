"""Model pairs of a process: several methods in turn look at one that is loaded once."""

from __future__ import annotations

from typing import Any

import torch

from kgbench.engine import load_pair
from kgbench.errors import InputError
from kgbench.models.pair import ModelPair
from kgbench.runner.spec import Settings, Spec

__all__ = ["Pairs"]


class Pairs:
    """Loads model pairs and keeps the last one."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, Any], ModelPair] | None = None

    def load(self, spec: Spec, settings: Settings) -> ModelPair:
        """The pair that a specification names, loaded and checked.

        Raises:
            InputError: The device cannot be used, or a checkpoint does not load or fit.
        """
        wanted: dict[str, Any] = {
            "name": spec.model,
            "recipient": spec.recipient,
            "donors": dict(spec.donors) or None,
            "dtype": spec.dtype,
            "device": _device(settings.device),
            "revision": spec.revision,
            "chat_template": spec.chat_template,
            "attention": settings.attention,
        }
        if self._last is None or self._last[0] != wanted:
            self._last = None  # the one before is freed first
            self._last = (wanted, load_pair(**wanted))
        return self._last[1]

    def forget(self) -> None:
        """Load anew whatever is asked for next."""
        self._last = None


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return name
