"""Readouts: what of a model's output is measured, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from inspect import get_annotations
from typing import Any

from kgbench.errors import InputError
from kgbench.parameters import described, made
from kgbench.readouts._base import Readout, TextReadout
from kgbench.registry import Registry, source_fingerprint

__all__ = [
    "DEFAULT",
    "Readout",
    "TextReadout",
    "describe_readouts",
    "readout_code",
    "readout_named",
    "readout_stored",
    "readouts",
]

DEFAULT = "first_token"
"""What is read where nothing else is said."""


@cache
def readouts() -> Registry:
    """Readouts by name, those of installed packages included."""
    return Registry("readout", __package__, "kgbench.readouts", Readout)


def readout_named(name: str, arguments: Mapping[str, Any], seed: int = 0) -> Readout:
    """A readout with its parameters, as text or as values of JSON.

    Args:
        name: Its name.
        arguments: Its parameters.
        seed: Of the run, for a readout that draws and is given none.

    Raises:
        UnknownNameError: There is no such readout, or it has no such parameter.
        InputError: A parameter is invalid or missing.
    """
    kind: type[Readout] = readouts().load(name)
    return made(kind, "readout", name, arguments, seed)


def readout_stored(stored: Mapping[str, Any], seed: int = 0) -> Readout:
    """A readout as a data set names it: its name, and its parameters or the first of its own.

    Raises:
        UnknownNameError: There is no such readout, or it has no such parameter.
        InputError: A parameter is invalid or missing.
    """
    ((name, given),) = stored.items()
    if given is None or isinstance(given, Mapping):
        return readout_named(name, given or {}, seed)
    kind = readouts().load(name)
    parameters = [parameter.name for parameter in fields(kind)]
    own = [parameter for parameter in parameters if parameter in get_annotations(kind)]
    if not parameters:
        raise InputError(f"readout {name!r} has no parameters, but the data set gives {given!r}")
    return readout_named(name, {(own or parameters)[0]: given}, seed)


def readout_code(readout: Readout) -> str:
    """Hash of the code of a third party's readout; empty for kgbench's own."""
    kind = type(readout)
    return "" if kind.__module__.startswith(f"{__package__}.") else source_fingerprint(kind)


def describe_readouts() -> Mapping[str, Mapping[str, Any]]:
    """Of each readout its distribution, description and parameters."""
    descriptions = {}
    for name in readouts().names():
        kind = readouts().load(name)
        descriptions[name] = {
            "from": readouts().origin(name),
            "about": kind.about,  # type: ignore[attr-defined]
            "parameters": described(kind),
        }
    return descriptions
