"""Localizers by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any

from kgbench.errors import InputError, UnknownNameError
from kgbench.localizers._base import AbstractLocalizer
from kgbench.registry import Registry

__all__ = ["check_name", "create", "describe", "fingerprint", "names"]


@cache
def _registry() -> Registry:
    return Registry("localizer", __package__, "kgbench.localizers", AbstractLocalizer)


def names() -> tuple[str, ...]:
    """Names of all localizers, those of installed packages included."""
    return _registry().names()


def describe() -> Mapping[str, str]:
    """One line on each localizer."""
    return {name: f"{found.kind}: {found.about}" for name, found in ((name, _class(name)) for name in names())}


def _class(name: str) -> type[AbstractLocalizer]:
    found: type[AbstractLocalizer] = _registry().load(name)
    return found


def check_name(name: str) -> None:
    """Refuse a name that no localizer has; a file is looked at when it is loaded.

    Raises:
        UnknownNameError: There is no such localizer.
    """
    _registry().check(name)


def fingerprint(name: str) -> str:
    """What tells two states of a localizer's code apart, where it is not built in: a result of the one is none of the other."""
    return _registry().fingerprint(name)


def create(name: str, arguments: Mapping[str, str], seed: int) -> AbstractLocalizer:
    """Make a localizer.

    Args:
        name: A registered name, or `path/to/file.py:Class`.
        arguments: Parameters as text; they are read as the type of the parameter's default.
        seed: Given to a localizer that has a parameter `seed`, unless `arguments` name it.

    Raises:
        UnknownNameError: There is no such localizer, or it has no such parameter.
        InputError: A parameter's value does not read, or one without a default is not given.
    """
    found = _class(name)
    parameters = {f.name: _default(f) for f in fields(found)}
    unknown = [key for key in arguments if key not in parameters]
    if unknown:
        raise UnknownNameError(f"parameter of localizer {name!r}:", unknown[0], parameters)
    values = {key: _read(key, text, parameters[key]) for key, text in arguments.items()}
    if "seed" in parameters:
        values.setdefault("seed", seed)
    needed = [key for key, default in parameters.items() if default is MISSING and key not in values]
    if needed:
        raise InputError(f"localizer {name!r} needs its parameter {needed[0]!r}: give --localizer-arg {needed[0]}=VALUE")
    return found(**values)


def _default(parameter: Field[Any]) -> Any:
    made = parameter.default_factory
    return parameter.default if made is MISSING else made()


def _read(key: str, text: str, default: Any) -> Any:
    kind = type(default)
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"the localizer's parameter {key} is true or false, not {text!r}")
        return text.lower() == "true"
    try:
        return kind(text) if kind in (int, float) else text
    except ValueError:
        raise InputError(f"the localizer's parameter {key} is a number such as {default}, not {text!r}") from None
