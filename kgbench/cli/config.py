"""`--config FILE.yaml`: the names of the options as keys; options on the command line win."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kgbench.errors import InputError, UnknownNameError

_FILE = "kgbench.config"
"""Key of the context's `meta`: the file that was read."""

OUTSIDE_FILES = ("config", "help")
"""Options that a file cannot hold."""


def read_config(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Take the values of a file as the defaults of all other options.

    Raises:
        InputError: The file does not read, or a value has the wrong shape.
        UnknownNameError: A key is no option.
    """
    if path is not None:
        options = {
            _key(option): option
            for option in ctx.command.params
            if isinstance(option, click.Option)
        }
        for name in OUTSIDE_FILES:
            options.pop(name, None)
        defaults = {}
        for key, value in _mapping(path).items():
            name = str(key).replace("_", "-")
            if name not in options:
                raise UnknownNameError(f"key in {path}", str(key), options)
            read = _value(path, str(key), value, options[name].multiple)
            try:
                options[name].type_cast_value(ctx, read)
            except click.BadParameter as error:
                raise InputError(f"{path}: {key}: {error.message}") from None
            defaults[str(options[name].name)] = read
        ctx.default_map = {**(ctx.default_map or {}), **defaults}
        ctx.meta[_FILE] = path
    return path


@contextmanager
def told_with_key(ctx: click.Context) -> Iterator[None]:
    """Name file and key in an error that quotes a value of the configuration file.

    Raises:
        InputError: As raised within, with file and key.
    """
    try:
        yield
    except InputError as error:
        keys = [key for key, value in _from_file(ctx) if repr(value) in str(error)]
        if not keys:
            raise
        raise InputError(f"{ctx.meta[_FILE]}: {keys[0]}: {error}") from None


def _from_file(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Each text in the file that no option of the command line replaces, with its key; a list of names gives each name."""
    for name, value in (ctx.default_map or {}).items():
        if (
            _FILE not in ctx.meta
            or ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP
        ):
            continue
        for text in value if isinstance(value, list) else [value]:
            parts = (
                dict.fromkeys((text, *text.split(","), text.partition("=")[2]))
                if isinstance(text, str)
                else ()
            )
            yield from ((name, part) for part in parts if part)


def _key(option: click.Option) -> str:
    return next(text for text in option.opts if text.startswith("--"))[2:]


def _mapping(path: Path) -> Mapping[Any, Any]:
    import yaml

    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(read, dict):
        raise InputError(
            f"{path}: expected names of options with their values, such as 'model: tiny-gemma'"
        )
    return read


def _value(path: Path, key: str, value: Any, multiple: bool) -> Any:
    """One value, or for an option that may be repeated a list; a mapping gives KEY=VALUE texts."""
    if multiple and isinstance(value, dict):
        value = [f"{name}={inner}" for name, inner in value.items()]
    items = value if multiple and isinstance(value, list) else [value]
    if any(item is None or isinstance(item, dict | list) for item in items):
        raise InputError(
            f"{path}: {key}: expected {'a value, a list or a mapping of values' if multiple else 'one value'}"
        )
    texts = [item if isinstance(item, bool) else str(item) for item in items]
    return texts if multiple else texts[0]
