"""Parameters of plug-ins: the fields of a dataclass, given as text or as values of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from kgbench.errors import InputError, KgbenchError, UnknownNameError
from kgbench.registry import field_docs, told

T = TypeVar("T")


def made(
    plugin: type[T], kind: str, name: str, arguments: Mapping[str, Any], seed: int | None = None
) -> T:
    """Create a plug-in.

    Args:
        plugin: Its class, a dataclass.
        kind: What it is, such as `localizer`; the option of its arguments is named after it.
        name: What it is called in an error.
        arguments: Parameters as text, which is converted to the annotated types, or as values of
            JSON.
        seed: Value of the parameter `seed`, if there is one and `arguments` lack it.

    Raises:
        UnknownNameError: It has no such parameter.
        InputError: The value of a parameter is invalid, or a required parameter is missing.
    """
    kinds = _kinds(plugin)
    defaults = {f.name: _default(f) for f in fields(plugin)}  # type: ignore[arg-type]
    unknown = [key for key in arguments if key not in defaults]
    if unknown:
        hint = "" if defaults else "It has no parameters."
        raise UnknownNameError(f"parameter of {kind} {name!r}:", unknown[0], defaults, hint)
    values = {}
    for key, given in arguments.items():
        what = f"{kind} {name!r}: the parameter {key}"
        values[key] = tuple(given) if isinstance(given, list) else given
        if isinstance(given, str):
            values[key] = _read(what, given, kinds[key])
    if "seed" in defaults and seed is not None:
        values.setdefault("seed", seed)
    for key, default in defaults.items():
        if default is MISSING and key not in values:
            raise InputError(
                f"{kind} {name!r} needs its parameter {key!r}: give --{kind}-arg {key}=VALUE"
            )
    try:
        return plugin(**values)
    except KgbenchError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:  # third-party code may raise anything
        raise InputError(
            f"{kind} {name!r} does not take these parameters: {told(error)}"
        ) from error


def described(plugin: type) -> dict[str, dict[str, str]]:
    """The parameters of a plug-in: for each its `default`, its `values` and its description."""
    kinds, docs = _kinds(plugin), field_docs(plugin)
    by_name = {}
    for field in fields(plugin):
        default = _default(field)
        by_name[field.name] = {
            "default": "needed" if default is MISSING else _argument(default),
            "values": ", ".join(field.metadata.get("choices", ())) or _values(kinds[field.name]),
            "about": " ".join(docs.get(field.name, "").split()),
        }
    return by_name


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


def _kinds(plugin: type) -> dict[str, Any]:
    """Type of each parameter: the annotation, or the default's type if it does not resolve."""
    try:
        hints = get_type_hints(plugin)
    except (NameError, TypeError, AttributeError):
        hints = {}
    return {f.name: hints.get(f.name, type(_default(f))) for f in fields(plugin)}


def _read(what: str, text: str, kind: Any) -> Any:
    """Convert text to the type of a parameter.

    Args:
        what: The parameter, for error messages.
        text: The text; `none` for None if the type allows it, commas between values of a tuple.
        kind: The type; text stays text where it is none of JSON.

    Raises:
        InputError: The text is no value of the type.
    """
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if NoneType in kinds and text.lower() == "none":
        return None
    kinds = tuple(each for each in kinds if each is not NoneType)
    refusal: ValidationError | None = None
    for each in kinds:  # one by one in their order: of a union pydantic keeps text as text
        parts = tuple(filter(None, map(str.strip, text.split(","))))
        try:
            value = parts if get_origin(each) is tuple else text
            return TypeAdapter(each).validate_python(value)
        except PydanticSchemaGenerationError:
            return text
        except ValidationError as error:
            refusal = refusal or error
    assert refusal is not None
    expected = refusal.errors()[0]["msg"].partition(", unable")[0]
    expected = expected.replace("Input should be", "expected")
    raise InputError(f"{what}: {expected}, not {text!r}")
