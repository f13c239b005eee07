"""`kgbench eval`: run localizers on a model pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kgbench.cli.options import COMPUTING, FACTS, PAIR, run_options
from kgbench.errors import InputError, UnknownNameError

__all__ = []

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
def config_key_in_errors(ctx: click.Context) -> Iterator[None]:
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
    """Texts of the file that no option of the command line replaces, each with its key."""
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
            f"{path}: {key}: expected "
            f"{'a value, a list or a mapping of values' if multiple else 'one value'}"
        )
    texts = [item if isinstance(item, bool) else str(item) for item in items]
    return texts if multiple else texts[0]


@click.command(
    epilog="Exit status: 0 done; 1 ran, and something did not hold; 2 wrong input; 130 "
    "interrupted.",
)
@run_options(
    "localizer",
    "localizer_args",
    *PAIR,
    *FACTS,
    "grafts",
    "suite",
    "layers",
    "limit",
    "metric",
    "seed",
    *COMPUTING,
    "output_dir",
    localizer={
        "multiple": True,
        "default": ["dynamic_graft"],
        "help": "Localizer; several with commas.",
    },
    localizer_args={
        "metavar": "[NAME.]KEY=VALUE",
        "help": "Argument of all localizers, or of the one named; may be repeated.",
    },
    model={
        "multiple": True,
        "metavar": "NAME|all",
        "help": "Model pair by name, see `kgbench ls models`; several with commas; all: every "
        "shipped pair, or plant of --suite planted.",
    },
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=read_config,
    help="YAML with these options as keys; options given here win.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only say what it would take: forwards, token rows, memory, seconds.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help='One JSON object on stdout, all else on stderr; of several runs {"runs": [...]}.',
)
@click.option("-q", "--quiet", is_flag=True, help="The verdict only, with --json not even that.")
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Say where a finetuned fact is retrieved from, as a localizer sees it.

    Runs every configuration of the suite on every prompt, prints a table that
    ends with a verdict, and writes a record and a picture. A run whose record
    exists already is not computed again.

    \b
    kgbench eval --localizer dynamic_graft --model tiny-gemma
    kgbench eval --model all --localizer dynamic_graft,activation_patch
    kgbench eval --model tiny-gemma --prompt qa --graft "LT:o+ffn@second_half,FE"
    kgbench eval --suite planted --localizer oracle,random,weight_delta
    kgbench eval --recipient before/ --donor after/ --dataset facts.jsonl
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.cli.jobs import run_all

    with config_key_in_errors(ctx):
        return run_all(options)
