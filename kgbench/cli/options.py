"""Options of commands: made from the fields of a specification, read, and completed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import click

from kgbench.data import ImportOptions
from kgbench.errors import InputError
from kgbench.registry import field_docs
from kgbench.runner.spec import COMPUTING, FACTS, PAIR, RESULTS, Settings, Spec
from kgbench.sites import split_grafts

__all__ = [
    "COMPUTING",
    "FACTS",
    "FILE_OPTIONS",
    "PAIR",
    "RESULTS",
    "FolderOrURL",
    "check_pair_options",
    "field_options",
    "imports_of",
    "run_options",
    "settings_of",
    "spec_of",
]


Rows = Mapping[str, str | Mapping[str, Any]]
"""By name, a description or a table row."""


def _models() -> Rows:
    from kgbench.models.catalog import describe_pairs

    return describe_pairs()


def _datasets() -> Rows:
    from kgbench.data import data_card, dataset_names

    return {name: _first_sentence(data_card(name)) for name in dataset_names()}


def _prompts() -> Rows:
    from kgbench.data import builtin_prompts

    return {
        name: f"{prompt.text}   ({prompt.source})" for name, prompt in builtin_prompts().items()
    }


def _localizers() -> Rows:
    from kgbench.localizers import describe

    return describe()


def _suites() -> Rows:
    from kgbench.runner import suites

    return suites()


def _first_sentence(card: str) -> str:
    """The first sentence of a Markdown card that is not a heading."""
    for paragraph in card.split("\n\n"):
        text = " ".join(paragraph.split())
        if text and not text.startswith(("#", "|", "-")):
            return text.partition(". ")[0].rstrip(".")
    return ""


CATALOGUES: Mapping[str, Callable[[], Rows]] = {
    "models": _models,
    "datasets": _datasets,
    "prompts": _prompts,
    "localizers": _localizers,
    "suites": _suites,
}
"""The kinds of `kgbench ls`, in the order of its help."""


def _costs() -> str:
    from kgbench.localizers import COSTS

    return "cost: " + "; ".join(f"{name}, {meaning}" for name, meaning in COSTS.items())


NOTES: Mapping[str, Callable[[], str]] = {"localizers": _costs}
"""Note below the table of a kind."""


class Renamed(click.Option):
    """An option with a new name; its older names go on working, and are not shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The line of the help, of the first name only."""
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """The first name, for messages."""
        return repr(self.opts[0])


class FolderOrURL(click.Path):
    """A folder of records; of a URL such as `s3://BUCKET/STUDY` the folder that is its copy."""

    name = "directory"

    def __init__(self) -> None:
        """Of any folder, also one that is not there yet."""
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Find the copy of a URL."""
        from kgbench.records.mirror import folder_of, is_url

        if isinstance(value, str) and is_url(value):
            return folder_of(value)
        return Path(os.fsdecode(super().convert(value, param, ctx)))


EXAMPLES: Mapping[str, str] = {
    "--localizer-arg": "draws=16",
    "--column": "first_actor=actor",
    "--template": "mine='{first_actor} stars in a movie alongside'",
}


def listed(values: Iterable[str]) -> tuple[str, ...]:
    """Names given by repetition, with commas, or both; each once, in order."""
    names = [name.strip() for name in ",".join(values).split(",")]
    return tuple(dict.fromkeys(filter(None, names)))


def grafts_of(values: Iterable[str]) -> tuple[str, ...]:
    """Graft expressions given by repetition, with commas, or both; each once, in order."""
    return tuple(dict.fromkeys(chain.from_iterable(map(split_grafts, values))))


def pairs(option: str, values: Sequence[str]) -> dict[str, str]:
    """Read `KEY=VALUE` texts; the value may hold further equals signs.

    Args:
        option: The option they belong to, a key of `EXAMPLES`.
        values: The texts.

    Raises:
        InputError: A text without key, equals sign or value, or a key given twice.
    """
    read: dict[str, str] = {}
    for text in values:
        key, _, value = (part.strip() for part in text.partition("="))
        if not (key and value):
            raise InputError(f"{option} {text!r}: expected KEY=VALUE, such as {EXAMPLES[option]}")
        if key in read:
            raise InputError(f"{option}: {key!r} is given twice; give it once")
        read[key] = value
    return read


def donors_of(values: Sequence[str]) -> dict[str, str]:
    """Donors by name, of the values of --donor.

    Raises:
        InputError: A value does not read, or a name is given twice.
    """
    from kgbench.runner.workload import read_donors

    return read_donors("--donor", values)


def arguments_of(
    localizer: str, localizers: Sequence[str], values: Sequence[str]
) -> dict[str, str]:
    """Arguments of one localizer: those for all, overruled by its own, as in `random.seed=3`.

    Args:
        localizer: A registered name, or `path/to/file.py:Class`, which is named by its class.
        localizers: All that are run.
        values: `KEY=VALUE` texts.

    Raises:
        InputError: A text does not read, or names a localizer that is not run.
    """
    shared: dict[str, str] = {}
    own: dict[str, str] = {}
    named = {name.rpartition(":")[2]: name for name in localizers}
    for key, value in pairs("--localizer-arg", values).items():
        owner, _, parameter = key.rpartition(".")
        if owner and owner not in named:
            raise InputError(
                f"--localizer-arg {key}={value}: {owner!r} is not run; --localizer has "
                f"{', '.join(named)}"
            )
        if not owner:
            shared[parameter] = value
        elif named[owner] == localizer:
            own[parameter] = value
    return {**shared, **own}


def completer(kind: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Shell completion over the names of one catalogue; after a comma too."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        before, comma, start = incomplete.rpartition(",")
        return [before + comma + name for name in CATALOGUES[kind]() if name.startswith(start)]

    return complete


Command = TypeVar("Command", bound=Callable[..., Any])
Options = Mapping[str, Any]

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


def field_options(kind: type, skip: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Give a command the options of a dataclass's fields.

    Args:
        kind: The dataclass, such as an analysis.
        skip: Fields that are options already.
    """

    def add(command: Command) -> Command:
        docs = field_docs(kind)
        for field in reversed(dataclasses.fields(kind)):
            if field.name not in skip:
                command = _field_option(field, docs.get(field.name, ""), {})(command)
        return command

    return add


def _option(name: str, changes: Mapping[str, Any]) -> Callable[[Command], Command]:
    field, help = _fields()[name]
    return _field_option(field, help, changes)


def _field_option(
    field: dataclasses.Field[Any], help: str, changes: Mapping[str, Any]
) -> Callable[[Command], Command]:
    shape = {"help": help, **_shape(field, changes.get("least", field.metadata.get("least", 1)))}
    flag = str(field.metadata.get("flag", f"--{field.name.replace('_', '-')}"))
    names = [flag, *([field.metadata["alias"]] if "alias" in field.metadata else [])]
    # An option of several values has its flag's name, which is singular; another has the field's.
    parameter = flag[2:].replace("-", "_") if shape.get("multiple") else field.name
    shape |= {key: value for key, value in changes.items() if key != "least"}
    return click.option(*names, parameter, **shape)


def _shape(field: dataclasses.Field[Any], least: int) -> dict[str, Any]:
    """Arguments of `click.option` that follow from a field's type, default and metadata."""
    kind, meta = str(field.type), field.metadata
    shape: dict[str, Any] = {}
    if "alias" in meta:
        shape["cls"] = Renamed
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
        shape["type"] = click.IntRange(min=least)
    if kind == "float":
        shape["type"] = click.FloatRange(**meta["range"])
    if kind == "Path":
        shape["type"] = FolderOrURL()
    # An option with `asked` in its metadata keeps apart whether it was given.
    if field.default is not None and "asked" not in meta:
        shape |= {"default": field.default, "show_default": True}
    return shape


@cache
def _fields() -> Mapping[str, tuple[dataclasses.Field[Any], str]]:
    """Fields of specification, file of facts and settings by name, with their docstrings."""
    by_name = {}
    for kind in (Spec, ImportOptions, Settings):
        docs = field_docs(kind)
        for field in dataclasses.fields(kind):
            by_name[field.name] = (field, docs.get(field.name, ""))
    return by_name


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
    if not any(options.get(name) for name in FILE_OPTIONS):
        return None
    return ImportOptions(
        subject=options["subject"],
        object=options["object"],
        columns=pairs("--column", options["column"]),
        templates=pairs("--template", options["template"]),
    )


def check_pair_options(options: Options) -> None:
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
        if options.get(name) and options["dataset"] is None:
            raise InputError(
                f"--{name} says how to read facts: add --dataset NAME or --dataset FILE"
            )
    donors = donors_of(options["donor"])
    check_different(Spec(model=options["model"], recipient=options["recipient"], donors=donors))
    for name in ("column", "template"):
        pairs(f"--{name}", options.get(name, ()))
