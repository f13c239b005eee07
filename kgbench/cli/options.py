"""Commands made of functions, and options made of fields: declared, completed, and read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cache, partial
from inspect import Parameter, getdoc, signature
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click
from click.core import ParameterSource

from kgbench.cli.output import Output, working
from kgbench.data import ImportOptions
from kgbench.data.templates import named_templates
from kgbench.errors import InputError, UnknownNameError
from kgbench.registry import field_docs
from kgbench.runner.choices import NAMES
from kgbench.runner.spec import RESULTS, Settings, Spec, grafts_of, listed, own_arguments


def _costs() -> str:
    from kgbench.localizers import COSTS

    return "cost: " + "; ".join(f"{name}, {meaning}" for name, meaning in COSTS.items())


def _tasks_folder() -> str:
    from kgbench.harness import tasks_path

    return f"folder, for lm-eval's --include_path: {tasks_path()}"


NOTES: Mapping[str, Callable[[], str]] = {"localizers": _costs, "tasks": _tasks_folder}
"""Note below the table of a kind."""


class FolderOrURL(click.Path):
    """A folder of records; of a URL such as `s3://BUCKET/STUDY` the folder that is its copy."""

    name = "directory"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Find the copy of a URL."""
        from kgbench.records.mirror import folder_of

        return folder_of(value)


EXAMPLES: Mapping[str, str] = {
    "--localizer-arg": "draws=16",
    "--readout-arg": "texts=Sorry",
    "--column": "first_actor=actor",
    "--template": "mine='{first_actor} stars in a movie alongside'",
}


def pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    """Read `KEY=VALUE` texts; the value may hold further equals signs, and a template no name.

    Args:
        option: The option they belong to, a key of `EXAMPLES`.
        values: The texts.

    Raises:
        InputError: A text without key, equals sign or value, or a key given twice.
    """
    if option == "--template" and all("{" in text for text in values):
        return named_templates(values)
    read: dict[str, str] = {}
    for text in values:
        key, _, value = (part.strip() for part in text.partition("="))
        if not (key and value):
            raise InputError(f"{option} {text!r}: expected KEY=VALUE, such as {EXAMPLES[option]}")
        if key in read:
            raise InputError(f"{option}: {key!r} is given twice; give it once")
        read[key] = value
    return read


class AutomaticRange(click.IntRange):
    """A whole number, or `auto`, which leaves the choice to what is run: None."""

    name = "whole number or 'auto'"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        return None if value == "auto" else super().convert(value, param, ctx)


Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def completer(names: Callable[[], Iterable[str]]) -> Completer:
    """Shell completion over some names; after a comma too."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        before, comma, start = incomplete.rpartition(",")
        return [before + comma + name for name in names() if name.startswith(start)]

    return complete


Options = Mapping[str, Any]

FILE_OPTIONS = ("subject", "object", "column", "template")
"""Options about a user's own file of facts."""

# ------------------------------------------------------------------------- types of options

File = Path
"""A file, there or not."""
Folder = Path
ExistingFile = Path
ExistingFolder = Path
Natural = int
"""A whole number from 0."""

TYPES: Mapping[str, Any] = {
    "File": click.Path(path_type=Path, dir_okay=False),
    "Folder": click.Path(path_type=Path, file_okay=False),
    "ExistingFile": click.Path(path_type=Path, exists=True, dir_okay=False),
    "ExistingFolder": click.Path(path_type=Path, exists=True, file_okay=False),
    "Path": FolderOrURL(),
    "Natural": click.IntRange(min=0),
}
"""By the word that an annotation begins with; others are text, numbers from 1, or flags."""


@dataclass(frozen=True)
class Shared:
    """Options of many commands that are no part of a run."""

    records: Path = field(
        default=RESULTS,
        metadata={"flag": "--results", "also": "--output-dir", "parameter": "output_dir"},
    )
    """Where records are."""
    root: Folder = Path("leaderboard")
    """The leaderboard's folder, which holds results/."""
    output: File | None = field(default=None, metadata={"flag": "-o --output"})
    tolerance: float | None = field(
        default=None, metadata={"range": {"min": 0, "min_open": True}, "metavar": "NATS"}
    )
    """Largest difference of log-probabilities.  [default: 0.001 for float32]"""
    dry_run: bool = False
    """Only show what it would take."""
    csv_file: File | None = field(default=None, metadata={"flag": "--csv", "metavar": "FILE"})
    """Write the rows there as CSV."""
    as_json: bool = field(default=False, metadata={"flag": "--json"})
    """One JSON object on stdout."""
    quiet: bool = field(default=False, metadata={"flag": "-q --quiet"})
    """No progress."""


VERDICT_ONLY = {"help": "The verdict only, with --json not even that."}
"""Help of --quiet where there is a verdict."""


@dataclass(frozen=True)
class Declared:
    """An option as a field of a dataclass or a parameter of a function declares it."""

    name: str
    kind: str
    """Its annotation."""
    default: Any
    """`MISSING` where there is none."""
    help: str
    metadata: Mapping[str, Any]


@cache
def declared_fields(kind: type) -> Mapping[str, Declared]:
    """The fields of a dataclass by name; their docstrings are the help."""
    docs = field_docs(kind)
    declared = {}
    for each in dataclasses.fields(kind):
        help = docs.get(each.name, "")
        declared[each.name] = Declared(each.name, str(each.type), each.default, help, each.metadata)
    return declared


def options_of(
    names: Sequence[str],
    changes: Mapping[str, Mapping[str, Any]],
    further: Mapping[str, Declared] = MappingProxyType({}),
) -> list[click.Option]:
    """The options of some fields.

    Args:
        names: Fields of `Spec`, `ImportOptions`, `Settings` or `Shared`, or keys of `further`.
        changes: By field, metadata or arguments of `click.Option` that replace those of the field.
        further: Further declarations, which come before fields of the same name.
    """
    declared: dict[str, Declared] = {}
    for kind in (Spec, ImportOptions, Settings, Shared):
        declared |= declared_fields(kind)
    declared |= further
    return [_option(declared[name], changes.get(name, {})) for name in names]


def _option(declared: Declared, changes: Mapping[str, Any]) -> click.Option:
    meta = {"help": declared.help, **declared.metadata, **changes}
    names = str(meta.pop("flag", f"--{declared.name.replace('_', '-')}")).split()
    kind, parameter, shape = declared.kind, declared.name, dict[str, Any]()
    if "names" in meta:
        shape["shell_complete"] = completer(NAMES[meta.pop("names")])
    if kind == "bool":
        shape["is_flag" if "/" not in names[0] else "default"] = "/" not in names[0]
    else:
        shape["type"] = _type_of(kind, meta)
        shape["multiple"] = kind.startswith(("tuple", "Mapping"))
        if shape["multiple"]:
            # A field of several values has its flag's name, which is singular.
            parameter = names[0][2:].replace("-", "_")
        elif declared.default is MISSING:
            shape["required"] = not kind.endswith("None")
        # An option with `asked` in its metadata keeps apart whether it was given.
        elif declared.default is not None and "asked" not in meta:
            shape |= {"default": declared.default, "show_default": "[default" not in meta["help"]}
    # Not `alias`: of a field's metadata pydantic takes it for the field's name in JSON.
    names += filter(None, [meta.pop("also", None)])
    parameter = meta.pop("parameter", parameter)
    unused = ("least", "auto", "range", "asked", "computes")
    shape |= {key: value for key, value in meta.items() if key not in unused}
    return click.Option([*names, parameter], **shape)


def _type_of(annotation: str, meta: Mapping[str, Any]) -> Any:
    """The type of a value, or of each of several; None for text."""
    word = re.split(r"\W", annotation.removeprefix("tuple["))[0]
    if word == "int" and meta.get("auto"):
        return AutomaticRange(min=1)
    if word == "int":
        return click.IntRange(min=meta.get("least", 1))
    if word == "float":
        return click.FloatRange(**meta["range"])
    return TYPES.get(word)


# ------------------------------------------------------------------------- commands


class CommandGroup(click.Group):
    """Commands; one that is unknown or left out is answered with those that there are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, but a command must be given.

        Raises:
            InputError: None is.
        """
        if not args and not self.invoke_without_command:
            names = ", ".join(self.list_commands(ctx))
            path = ctx.command_path
            raise InputError(f"{path} what? Its commands are: {names} (see {path} --help)")
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the nearest ones.

        Raises:
            UnknownNameError: There is no such command.
        """
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], names)
        return super().resolve_command(ctx, args)


_LISTS = ("--model", "--localizer", "--prompt", "--graft")
"""Options of several values, with commas between them."""


def usage_text(error: click.UsageError, words: Sequence[str]) -> str:
    """What click found wrong with a command line, and of a word too many what to do with it."""
    text = error.format_message().replace("a valid integer range", "a whole number")
    text = text.removesuffix(".")
    if (found := re.search(r"unexpected extra arguments? \((\S+?)[ )]", text)) is None:
        return text
    extra = found[1]
    option, value = ["", "", *words[: words.index(extra)]][-2:]
    if option in _LISTS:
        return f"{text}; several values have commas between them: {option} {value},{extra}"
    if extra in NAMES["models"]():
        return f"{text}; a pair of models goes by --model {extra}"
    takes = " ".join(error.ctx.command.collect_usage_pieces(error.ctx)) if error.ctx else ""
    return f"{text}; it takes {takes}, and a text with blanks goes in quotes"


def cli_command(
    *names: str,
    group: click.Group | None = None,
    epilog: str | None = None,
    short_help: str | None = None,
    **changes: Mapping[str, Any],
) -> Callable[[Callable[..., Output | None]], click.Command]:
    """Make a command of a function, from its signature and docstring.

    A positional parameter is an argument of the command and a keyword-only one an option; `Args:`
    has the help of each, and its metavar in parentheses. The function does not print: it gives
    what is printed. Its parameter `progress` takes the callback of a progress bar.

    Args:
        *names: Options in the order of the help: fields, see `options_of`, and own ones. Own ones
            that are not among them come first.
        group: The group that the command belongs to.
        epilog: Last paragraph of the help.
        short_help: The command's line in the help of its group.
        **changes: By parameter or field, arguments of `click` that replace those that follow.
    """

    def make(function: Callable[..., Output | None]) -> click.Command:
        about, documented = _documented(function)
        arguments = signature(function).parameters
        further: dict[str, Declared] = {}
        parameters: list[click.Parameter] = []
        for each in arguments.values():
            declared = _declared(each, *documented.get(each.name, (None, None)))
            if each.kind is Parameter.KEYWORD_ONLY and each.name != "progress":
                further[each.name] = declared
            elif each.kind is Parameter.POSITIONAL_OR_KEYWORD:
                parameters.append(_argument(declared, changes.get(each.name, {})))
        order = [*(name for name in further if name not in names), *names]
        parameters += options_of(order, changes, further)
        made = click.Command(
            function.__name__.removesuffix("_command").replace("_", "-"),
            params=parameters,
            callback=_printing(function, arguments),
            help=about,
            epilog=epilog,
            short_help=short_help,
        )
        if group is not None:
            group.add_command(made)
        return made

    return make


def _printing(
    function: Callable[..., Output | None], parameters: Mapping[str, Parameter]
) -> Callable[..., int]:
    """A function that prints what another gives, and returns the exit status."""
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())

    def callback(**options: Any) -> int:
        as_json, quiet = options.get("as_json", False), options.get("quiet", False)
        values = {}
        for name, value in options.items():
            if name in parameters or (takes_all and name not in ("as_json", "quiet")):
                values[name] = value
        with working(as_json, quiet or "progress" not in parameters) as report:
            if "progress" in parameters:
                values["progress"] = report
            output = function(**values)
        return 0 if output is None else output.print(as_json, quiet)

    return callback


_PARAMETER = re.compile(r"^    \**(\w+)(?: \((.+?)\))?: ", re.MULTILINE)
"""A parameter's name, and in parentheses its metavar."""


def _documented(
    function: Callable[..., Any],
) -> tuple[str, Mapping[str, tuple[str | None, str | None]]]:
    """Of a docstring the text before `Args:`, and by parameter metavar and help."""
    about, _, arguments = (getdoc(function) or "").partition("\nArgs:\n")
    _, *parts = _PARAMETER.split(arguments)
    documented = {}
    for name, metavar, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        help = " ".join(text.split()).replace(" [default:", "  [default:")
        documented[name] = (metavar, help)
    return about.rstrip(), documented


def _declared(parameter: Parameter, metavar: str | None, help: str | None) -> Declared:
    """A parameter; one with the name of a shared option has what else that one has."""
    shared = declared_fields(Shared).get(parameter.name)
    metadata, default = {}, MISSING
    if shared is not None:
        metadata, default, help = dict(shared.metadata), shared.default, help or shared.help
        metadata.pop("parameter", None)
    if metavar is not None:
        metadata["metavar"] = metavar
    if parameter.default is not Parameter.empty:
        default = parameter.default
    return Declared(parameter.name, str(parameter.annotation), default, help or "", metadata)


def _argument(declared: Declared, changes: Mapping[str, Any]) -> click.Argument:
    several = declared.kind.startswith("tuple")
    shape: dict[str, Any] = {"nargs": -1 if several else 1, "type": _type_of(declared.kind, {})}
    shape["required"] = declared.default is MISSING and not declared.kind.endswith("None")
    metavar = declared.metadata.get("metavar")
    return click.Argument([declared.name], **{"metavar": metavar, **shape, **changes})


def refuse_given(allowed: Container[str], why: str) -> None:
    """Refuse options that the command line has and that go with nothing else there.

    Args:
        allowed: Parameters that may be given.
        why: End of the message, after the option.

    Raises:
        InputError: Another one is given.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if typed and isinstance(parameter, click.Option) and name not in allowed:
            raise InputError(f"--{name.replace('_', '-')} {why}")


# ------------------------------------------------------------------------- values of options


def spec_of(options: Options, **fixed: Any) -> Spec:
    """The specification that options describe.

    Args:
        options: Values of options by parameter; one that is None keeps the field's default.
        **fixed: Fields that the options do not decide.

    Raises:
        InputError: A value does not read.
    """
    values = given_fields(options)
    if "localizer_arg" in options:
        arguments = pairs("--localizer-arg", options["localizer_arg"])
        localizers = listed(options["localizer"])
        values["localizer_args"] = own_arguments(fixed["localizer"], localizers, arguments)
    return Spec(**{**values, "imports": imports_of(options), **fixed})


def given_fields(options: Options) -> dict[str, Any]:
    """The fields of a specification that options give, all but `imports` and `localizer_args`.

    Raises:
        InputError: A value does not read.
    """
    values = {}
    for each in dataclasses.fields(Spec):
        parameter, reader = _READERS.get(each.name, (each.name, None))
        if (value := options.get(parameter)) not in (None, ()):
            values[each.name] = value if reader is None else reader(value)
    return values


def _donors(values: Sequence[str]) -> dict[str, str]:
    from kgbench.runner.sources import read_donors

    return read_donors("--donor", values)


_READERS: Mapping[str, tuple[str, Callable[[Sequence[str]], Any]]] = {
    "donors": ("donor", _donors),
    "prompts": ("prompt", listed),
    "grafts": ("graft", grafts_of),
    "readout_args": ("readout_arg", partial(pairs, "--readout-arg")),
}
"""By field that holds several values: its parameter, and what reads them."""


def settings_of(options: Options) -> Settings:
    """The settings that options describe; fields without an option keep their defaults."""
    names = [each.name for each in dataclasses.fields(Settings)]
    return Settings(**{name: options[name] for name in names if name in options})


def imports_of(options: Options) -> ImportOptions | None:
    """How to read a user's own file; None where the options leave that to the file."""
    if not any(map(options.get, FILE_OPTIONS)):
        return None
    return ImportOptions(
        subject=options["subject"],
        object=options["object"],
        columns=pairs("--column", options["column"]),
        templates=pairs("--template", options["template"]),
    )


def check_options(options: Options, named: bool) -> None:
    """Refuse options that name no pair, or columns of no file, before anything heavy is loaded.

    Args:
        options: Values of options by parameter.
        named: Whether the pair has a name.

    Raises:
        InputError: Something is wrong with the options.
    """
    if not named and options["recipient"] is None:
        raise InputError(
            "which model? Give --model NAME (see `kgbench ls models`), or --recipient PATH "
            "with --donor PATH"
        )
    for name in FILE_OPTIONS:
        if options.get(name) and options["dataset"] is None:
            raise InputError(f"--{name} says how to read a file of facts: add --dataset FILE")
