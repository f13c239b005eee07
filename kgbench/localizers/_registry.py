"""Localizers by name."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from kgbench.errors import InputError, KgbenchError, UnknownNameError
from kgbench.localizers._base import SCANS, AbstractLocalizer, InterventionLocalizer
from kgbench.registry import Registry, told

__all__ = [
    "check_name",
    "create",
    "describe",
    "fingerprint",
    "is_foreign",
    "names",
    "needs",
    "parameters_of",
    "score_meaning",
]


@cache
def _registry() -> Registry:
    return Registry("localizer", __package__, "kgbench.localizers", AbstractLocalizer)


def names() -> tuple[str, ...]:
    """Names of all localizers, those of installed packages included."""
    return _registry().names()


def describe() -> Mapping[str, Mapping[str, Any]]:
    """What each localizer is: its kind, its needs, its class of cost, its paper, its distribution, and what it does in a line."""
    return {name: _described(_class(name), _registry().origin(name)) for name in names()}


def _described(found: type[AbstractLocalizer], origin: str) -> dict[str, Any]:
    facts = {
        "kind": found.kind,
        "needs": sorted(found.needs),
        "cost": found.cost,
        "paper": found.paper,
    }
    return {**facts, "from": origin, "about": found.about}


def _class(name: str) -> type[AbstractLocalizer]:
    found: type[AbstractLocalizer] = _registry().load(name)
    return found


def check_name(name: str) -> None:
    """Refuse a name that no localizer has; a file is looked at when it is loaded.

    Raises:
        UnknownNameError: There is no such localizer.
    """
    _registry().check(name)


def is_foreign(name: str) -> bool:
    """Whether a localizer is in a file, or of another installed package; its code is not loaded."""
    return not _registry().is_builtin(name)


def fingerprint(name: str) -> str:
    """What tells two states of a localizer's code apart, where it is not built in: a result of the one is none of the other."""
    return _registry().fingerprint(name)


def needs(name: str) -> frozenset[str]:
    """What a localizer must be given.

    Raises:
        UnknownNameError: There is no such localizer.
        InputError: Its file or package does not load.
    """
    return _class(name).needs


def score_meaning(name: str, version: str) -> str:
    """What a site's score says, with its unit, where a localizer of this name and version declares it."""
    found = _class(name) if name in names() else None
    if found is None or found.version != version:
        return f"score of {name} (its own unit)"
    scan = SCANS[found.scanned] if issubclass(found, InterventionLocalizer) else ""
    return found.score_meaning or scan or f"score of {name} (its own unit)"


def create(name: str, arguments: Mapping[str, str], seed: int) -> AbstractLocalizer:
    """Make a localizer.

    Args:
        name: A registered name, or `path/to/file.py:Class`.
        arguments: Parameters as text; they are read as the types that the parameters are annotated with.
        seed: Given to a localizer that has a parameter `seed`, unless `arguments` name it.

    Raises:
        UnknownNameError: There is no such localizer, or it has no such parameter.
        InputError: A parameter's value does not read, or one without a default is not given.
    """
    found = _class(name)
    parameters = {f.name: _default(f) for f in fields(found)}
    unknown = [key for key in arguments if key not in parameters]
    if unknown:
        raise UnknownNameError(
            f"parameter of localizer {name!r}:",
            unknown[0],
            parameters,
            "" if parameters else "It has no parameters.",
        )
    kinds = _kinds(found)
    values = {
        key: _read(f"localizer {name!r}: the parameter {key}", text, kinds[key], parameters[key])
        for key, text in arguments.items()
    }
    if "seed" in parameters:
        values.setdefault("seed", seed)
    needed = [
        key for key, default in parameters.items() if default is MISSING and key not in values
    ]
    if needed:
        raise InputError(
            f"localizer {name!r} needs its parameter {needed[0]!r}: give --localizer-arg {needed[0]}=VALUE"
        )
    try:
        return found(**values)
    except KgbenchError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:  # whatever an author's code raises
        raise InputError(
            f"localizer {name!r} does not take these parameters: {told(error)}"
        ) from error


def parameters_of(name: str) -> dict[str, dict[str, str]]:
    """The parameters of a localizer: for each its `default`, its `values` and what it is `about`.

    Raises:
        UnknownNameError: There is no such localizer.
    """
    found = _class(name)
    kinds, docs = _kinds(found), _docs(found)
    return {
        f.name: {
            "default": "needed" if (default := _default(f)) is MISSING else _written(default),
            "values": _values(kinds[f.name]),
            "about": docs.get(f.name, ""),
        }
        for f in fields(found)
    }


def _written(default: Any) -> str:
    """A default as it is given on the command line."""
    if isinstance(default, bool) or default is None:
        return str(default).lower()
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _values(kind: Any) -> str:
    """What a parameter takes, in words."""
    if get_origin(kind) in (Union, UnionType):
        some = [_values(choice) for choice in get_args(kind) if choice is not NoneType]
        return " or ".join([*some, *(["none"] if NoneType in get_args(kind) else [])])
    if get_origin(kind) is tuple:
        return f"{_values(get_args(kind)[0])}; several with commas"
    if get_origin(kind) is Literal:
        return ", ".join(map(str, get_args(kind)))
    return {bool: "true or false", int: "whole number", float: "number"}.get(kind, "text")


def _docs(found: type[AbstractLocalizer]) -> dict[str, str]:
    """The strings under the fields of a class, and of those that it inherits from."""
    docs: dict[str, str] = {}
    for each in reversed(found.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for line, below in pairwise(body):
            field = line.target if isinstance(line, ast.AnnAssign) else None
            text = below.value if isinstance(below, ast.Expr) else None
            if (
                isinstance(field, ast.Name)
                and isinstance(text, ast.Constant)
                and isinstance(text.value, str)
            ):
                docs[field.id] = " ".join(text.value.split())
    return docs


def _default(parameter: Field[Any]) -> Any:
    made = parameter.default_factory
    return parameter.default if made is MISSING else made()


def _kinds(found: type[AbstractLocalizer]) -> dict[str, Any]:
    """The type of each parameter: as annotated, or where the annotation does not resolve, as the default."""
    try:
        hints = get_type_hints(found)
    except (NameError, TypeError, AttributeError):
        hints = {}
    return {f.name: hints.get(f.name, type(_default(f))) for f in fields(found)}


def _read(what: str, text: str, kind: Any, default: Any) -> Any:
    """A value from its text.

    Args:
        what: The parameter, for messages.
        text: The text; `none` where the type allows it.
        kind: A type: bool, int, float, str, a tuple of one of these, or a union with None. Any other is text.
        default: The parameter's default, as an example.
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
