"""Registry of localizers: lookup, description and construction by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from kgbench import parameters
from kgbench.errors import InputError
from kgbench.localizers._base import SCANS, AbstractLocalizer, InterventionLocalizer
from kgbench.registry import Registry, source_fingerprint

_KIND = "localizer"


@cache
def _registry() -> Registry:
    return Registry(_KIND, __package__, "kgbench.localizers", AbstractLocalizer)


def names() -> tuple[str, ...]:
    """Names of all localizers, including those of installed packages."""
    return _registry().names()


def describe() -> Mapping[str, Mapping[str, Any]]:
    """Of each localizer kind, needs, cost class, paper, distribution, description, parameters."""
    descriptions = {}
    for name in names():
        localizer = _class(name)
        descriptions[name] = {
            "kind": localizer.kind,
            "needs": sorted(localizer.needs),
            "cost": localizer.cost,
            "paper": localizer.paper,
            "from": _registry().origin(name),
            "about": localizer.about,
            "parameters": parameters_of(name),
        }
    return descriptions


def _class(name: str) -> type[AbstractLocalizer]:
    localizer: type[AbstractLocalizer] = _registry().load(name)
    return localizer


def check_name(name: str) -> None:
    """Check that a localizer exists; a file is checked when it is loaded.

    Raises:
        UnknownNameError: There is no such localizer.
    """
    _registry().check(name)


def is_foreign(name: str) -> bool:
    """Whether a localizer is third-party: from a file or another package. Loads no code."""
    return not _registry().is_builtin(name)


def fingerprint(name: str) -> str:
    """Hash of a third-party localizer's code; results of different hashes are not shared."""
    return _registry().fingerprint(name)


def class_fingerprint(localizer: type[AbstractLocalizer]) -> str:
    """The same of a class; empty for kgbench's own.

    Raises:
        InputError: Its source cannot be read.
    """
    if localizer.__module__.startswith(f"{__package__}."):
        return ""
    return source_fingerprint(localizer)


def needs(name: str) -> frozenset[str]:
    """Required inputs of a localizer.

    Raises:
        UnknownNameError: There is no such localizer.
        InputError: Its file or package fails to load.
    """
    return _class(name).needs


def score_meaning(name: str, version: str) -> str:
    """Meaning and unit of a site's score, as declared by the localizer of this name and version."""
    localizer = _class(name) if name in names() else None
    if localizer is None or localizer.version != version:
        return f"score of {name} (its own unit)"
    scan = SCANS[localizer.scanned] if issubclass(localizer, InterventionLocalizer) else ""
    return localizer.score_meaning or scan or f"score of {name} (its own unit)"


def create(name: str, arguments: Mapping[str, str], seed: int) -> AbstractLocalizer:
    """Create a localizer.

    Args:
        name: A registered name, or `path/to/file.py:Class`.
        arguments: Parameters as text; converted to the annotated types.
        seed: Value of the parameter `seed`, if the localizer has one and `arguments` lack it.

    Raises:
        UnknownNameError: There is no such localizer, or it has no such parameter.
        InputError: The value of a parameter is invalid, or a required parameter is missing.
    """
    return parameters.made(_class(name), _KIND, name, arguments, seed)


def created(
    localizer: AbstractLocalizer | type[AbstractLocalizer],
    arguments: Mapping[str, str],
    seed: int,
) -> AbstractLocalizer:
    """A localizer of a class in hand, as `create` makes one; an instance is itself.

    Raises:
        UnknownNameError: It has no such parameter.
        InputError: It is no localizer, or a parameter is invalid, missing, or of an instance.
    """
    if isinstance(localizer, type):
        _registry().checked(localizer)
        return parameters.made(localizer, _KIND, localizer.name, arguments, seed)
    _registry().checked(type(localizer))
    if arguments:
        raise InputError(
            f"{localizer.name!r} is an instance, which has its parameters: leave out "
            "localizer_args, or give the class"
        )
    return localizer


def parameters_of(name: str) -> dict[str, dict[str, str]]:
    """The parameters of a localizer: for each its `default`, its `values` and its description.

    Raises:
        UnknownNameError: There is no such localizer.
    """
    return parameters.described(_class(name))
