"""Options of commands, made from the fields of a specification and its settings.

A field of `Spec`, `ImportOptions` or `Settings` is an option of every command that takes it, with
the field's docstring as help. A new field needs no edit here.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, TypeVar

import click

from kgbench.cli.values import (
    Renamed,
    arguments_of,
    completer,
    donors_of,
    grafts_of,
    listed,
    pairs,
)
from kgbench.data import ImportOptions
from kgbench.errors import InputError
from kgbench.runner.spec import RESULTS, Settings, Spec

__all__ = [
    "COMPUTING",
    "FACTS",
    "FILE_OPTIONS",
    "PAIR",
    "RESULTS",
    "check_pair",
    "imports_of",
    "run_options",
    "sample_size",
    "settings_of",
    "spec_of",
]

Command = TypeVar("Command", bound=Callable[..., Any])
Options = Mapping[str, Any]

PAIR = ("model", "recipient", "donors", "revision", "chat_template")
FACTS = ("dataset", "subject", "object", "columns", "templates", "prompts")
COMPUTING = (
    "dtype",
    "batch_size",
    "device",
    "device_map",
    "stream_donors",
    "executor",
    "attention",
)
"""Fields of a pair, of its facts, and of how it is computed."""

FILE_OPTIONS = ("subject", "object", "column", "template")
"""Options about a user's own file of facts."""


def run_options(*names: str, **changes: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Give a command the options of some fields.

    Args:
        *names: Fields of `Spec`, `ImportOptions` or `Settings`, in the order of the help.
        **changes: By field, arguments of `click.option` that replace those of the field; `multiple`
            makes an option of one value one of several.
    """

    def add(command: Command) -> Command:
        for name in reversed(names):
            command = _option(name, changes.get(name, {}))(command)
        return command

    return add


def _option(name: str, changes: Mapping[str, Any]) -> Callable[[Command], Command]:
    field, help = _fields()[name]
    shape = {"help": help, **_shape(field)}
    flag = str(field.metadata.get("flag", f"--{name.replace('_', '-')}"))
    # An option of several values has its flag's name, which is singular; another has the field's.
    parameter = flag[2:].replace("-", "_") if shape.get("multiple") else name
    return click.option(flag, parameter, **{**shape, **changes})


def _shape(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Arguments of `click.option` that follow from a field's type, default and metadata."""
    kind, meta = str(field.type), field.metadata
    shape: dict[str, Any] = {}
    if "metavar" in meta:
        shape["metavar"] = meta["metavar"]
    if "names" in meta:
        shape["shell_complete"] = completer(meta["names"])
    if kind == "bool":
        shape["is_flag" if "/" not in meta["flag"] else "default"] = "/" not in meta["flag"]
        return shape
    if kind.startswith(("tuple", "Mapping")):
        return {**shape, "multiple": True}
    if kind.startswith("int"):
        shape["type"] = click.IntRange(min=meta.get("least", 1))
    if kind == "Path":
        shape["type"] = click.Path(path_type=Path, file_okay=False)
    # An option with `asked` in its metadata keeps apart whether it was given.
    if field.default is not None and "asked" not in meta:
        shape |= {"default": field.default, "show_default": True}
    return shape


@cache
def _fields() -> Mapping[str, tuple[dataclasses.Field[Any], str]]:
    """Fields of specification, file of facts and settings by name, with their docstrings."""
    by_name = {}
    for kind in (Spec, ImportOptions, Settings):
        docs = _docstrings(kind)
        for field in dataclasses.fields(kind):
            by_name[field.name] = (field, docs.get(field.name, ""))
    return by_name


def _docstrings(kind: type) -> dict[str, str]:
    """Docstrings of a dataclass's fields: the text after each."""
    (definition,) = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
            docs[field.target.id] = inspect.cleandoc(str(text.value.value))
    return docs


def sample_size(default: int, least: int, help: str) -> Callable[[Command], Command]:
    """Option for the number of facts of a sample."""
    return click.option(
        "--limit",
        "--facts",
        "facts",
        cls=Renamed,
        type=click.IntRange(min=least),
        default=default,
        show_default=True,
        metavar="N",
        help=help,
    )


def spec_of(options: Options, **fixed: Any) -> Spec:
    """The specification that options describe.

    Args:
        options: Values of options by parameter; one that is None keeps the field's default.
        **fixed: Fields that the options do not decide.

    Raises:
        InputError: A value does not read.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Spec):
        if field.name in ("imports", "localizer_args", *_READERS):
            continue
        if options.get(field.name) is not None:
            values[field.name] = options[field.name]
    for name, (parameter, reader) in _READERS.items():
        if parameter in options:
            values[name] = reader(options[parameter])
    if "localizer_arg" in options:
        localizer = str(fixed.get("localizer", options["localizer"]))
        localizers = options["localizer"]
        several = [localizers] if isinstance(localizers, str) else listed(localizers)
        values["localizer_args"] = arguments_of(localizer, several, options["localizer_arg"])
    return Spec(**{**values, "imports": imports_of(options), **fixed})


_READERS: Mapping[str, tuple[str, Callable[[Sequence[str]], Any]]] = {
    "donors": ("donor", donors_of),
    "prompts": ("prompt", listed),
    "grafts": ("graft", grafts_of),
}
"""By field that holds several values: its parameter, and what reads them."""


def settings_of(options: Options) -> Settings:
    """The settings that options describe; fields without an option keep their defaults."""
    names = [field.name for field in dataclasses.fields(Settings)]
    return Settings(**{name: options[name] for name in names if name in options})


def imports_of(options: Options) -> ImportOptions | None:
    """How to read a user's own file; None where the options leave that to the file."""
    if not any(options[name] for name in FILE_OPTIONS):
        return None
    return ImportOptions(
        subject=options["subject"],
        object=options["object"],
        columns=pairs("--column", options["column"]),
        templates=pairs("--template", options["template"]),
    )


def check_pair(options: Options) -> None:
    """Refuse options that name no pair, or columns of no file, before anything heavy is loaded.

    Raises:
        InputError: Something is wrong with the options.
    """
    from kgbench.runner.workload import check_different

    if options["model"] is None and options["recipient"] is None:
        raise InputError(
            "which model? Give --model NAME (see `kgbench ls models`), or --recipient PATH "
            "with --donor PATH"
        )
    for name in FILE_OPTIONS:
        if options[name] and options["dataset"] is None:
            raise InputError(
                f"--{name} says how to read facts: add --dataset NAME or --dataset FILE"
            )
    donors = donors_of(options["donor"])
    check_different(Spec(model=options["model"], recipient=options["recipient"], donors=donors))
    for name in ("column", "template"):
        pairs(f"--{name}", options[name])
