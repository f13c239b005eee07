"""How the values of options read: lists, pairs, and names to complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import click

from kgbench.cli.catalogues import CATALOGUES
from kgbench.errors import InputError
from kgbench.sites import split_grafts


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


EXAMPLES: Mapping[str, str] = {
    "--localizer-arg": "draws=16",
    "--column": "first_actor=actor",
    "--template": "mine='{first_actor} stars in a movie alongside'",
}


def listed(values: Iterable[str]) -> tuple[str, ...]:
    """Names given by repetition, with commas, or both; each once, in order."""
    return tuple(
        dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip())
    )


def grafts_of(values: Iterable[str]) -> tuple[str, ...]:
    """Graft expressions given by repetition, with commas, or both; each once, in order."""
    return tuple(dict.fromkeys(graft for value in values for graft in split_grafts(value)))


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
    """The arguments of one localizer: those given to all, and over them those given to it by name, as in `random.seed=3`.

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
