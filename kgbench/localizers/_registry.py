"""Registry of localizers: lookup, description and construction by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from kgbench.errors import InputError, KgbenchError, UnknownNameError
from kgbench.localizers._base import SCANS, AbstractLocalizer, InterventionLocalizer
from kgbench.registry import Registry, field_docs, source_fingerprint, told


@cache
def _registry() -> Registry:
    return Registry("localizer", __package__, "kgbench.localizers", AbstractLocalizer)


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
    return _created(_class(name), name, arguments, seed)


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
        return _created(localizer, localizer.name, arguments, seed)
    _registry().checked(type(localizer))
    if arguments:
        raise InputError(
            f"{localizer.name!r} is an instance, which has its parameters: leave out "
            "localizer_args, or give the class"
        )
    return localizer


def _created(
    localizer: type[AbstractLocalizer], name: str, arguments: Mapping[str, str], seed: int
) -> AbstractLocalizer:
    parameters = {f.name: _default(f) for f in fields(localizer)}
    unknown = [key for key in arguments if key not in parameters]
    if unknown:
        raise UnknownNameError(
            f"parameter of localizer {name!r}:",
            unknown[0],
            parameters,
            "" if parameters else "It has no parameters.",
        )
    kinds = _kinds(localizer)
    values = {}
    for key, text in arguments.items():
        what = f"localizer {name!r}: the parameter {key}"
        values[key] = _read(what, text, kinds[key], parameters[key])
    if "seed" in parameters:
        values.setdefault("seed", seed)
    for key, default in parameters.items():
        if default is MISSING and key not in values:
            raise InputError(
                f"localizer {name!r} needs its parameter {key!r}: give --localizer-arg {key}=VALUE"
            )
    try:
        return localizer(**values)
    except KgbenchError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:  # third-party code may raise anything
        raise InputError(
            f"localizer {name!r} does not take these parameters: {told(error)}"
        ) from error


def parameters_of(name: str) -> dict[str, dict[str, str]]:
    """The parameters of a localizer: for each its `default`, its `values` and its description.

    Raises:
        UnknownNameError: There is no such localizer.
    """
    localizer = _class(name)
    kinds, docs = _kinds(localizer), field_docs(localizer)
    parameters = {}
    for field in fields(localizer):
        default = _default(field)
        parameters[field.name] = {
            "default": "needed" if default is MISSING else _argument(default),
            "values": ", ".join(field.metadata.get("choices", ())) or _values(kinds[field.name]),
            "about": " ".join(docs.get(field.name, "").split()),
        }
    return parameters


def _argument(default: Any) -> str:
    """A default in the syntax of the command line."""
    if isinstance(default, bool) or default is None:
        return str(default).lower()
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _values(kind: Any) -> str:
    """Description of the values of a parameter."""
    if get_origin(kind) in (Union, UnionType):
        choices = [_values(choice) for choice in get_args(kind) if choice is not NoneType]
        return " or ".join([*choices, *(["none"] if NoneType in get_args(kind) else [])])
    if get_origin(kind) is tuple:
        return f"{_values(get_args(kind)[0])}; several with commas"
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    return {bool: "true or false", int: "whole number", float: "number"}.get(kind, "text")


def _default(parameter: Field[Any]) -> Any:
    factory = parameter.default_factory
    return parameter.default if factory is MISSING else factory()


def _kinds(localizer: type[AbstractLocalizer]) -> dict[str, Any]:
    """Type of each parameter: the annotation, or the default's type if it does not resolve."""
    try:
        hints = get_type_hints(localizer)
    except (NameError, TypeError, AttributeError):
        hints = {}
    return {f.name: hints.get(f.name, type(_default(f))) for f in fields(localizer)}


def _read(what: str, text: str, kind: Any, default: Any) -> Any:
    """Convert text to the type of a parameter.

    Args:
        what: The parameter, for error messages.
        text: The text; `none` for None if the type allows it.
        kind: bool, int, float, str, a tuple of one of these, or a union with None; other types are
            kept as text.
        default: The parameter's default, as an example in error messages.

    Raises:
        InputError: The text is no value of the type.
    """
    choices = (
        [choice for choice in get_args(kind) if choice is not NoneType]
        if get_origin(kind) in (Union, UnionType)
        else [kind]
    )
    if (
        len(choices) < len(get_args(kind))
        and text.lower() == "none"
        and get_origin(kind) is not tuple
    ):
        return None
    if get_origin(choices[0]) is tuple:
        inner = get_args(choices[0])[0]
        return tuple(
            _read(what, part.strip(), inner, default) for part in text.split(",") if part.strip()
        )
    return _plain(what, text, choices[0], default)


def _plain(what: str, text: str, kind: Any, default: Any) -> Any:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise InputError(f"{what} is true or false, not {text!r}")
        return text.lower() == "true"
    if kind not in (int, float):
        return text
    try:
        return kind(text)
    except ValueError:
        example = default if isinstance(default, int | float) else {int: 3, float: 0.5}[kind]
        raise InputError(
            f"{what} is a {'whole ' if kind is int else ''}number such as {example}, not {text!r}"
        ) from None
