"""A click group whose commands are imported when they are asked for, listed under headings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from kgbench.errors import UnknownNameError

__all__ = []


class LazyGroup(click.Group):
    """Commands: the object `command` of the module with the command's name, imported on use."""

    def __init__(
        self,
        *args: Any,
        package: str,
        sections: Mapping[str, Mapping[str, str]],
        aliases: Mapping[str, str],
        **kwargs: Any,
    ) -> None:
        """Import nothing yet.

        Args:
            *args: As click's group.
            package: Package of the commands' modules.
            sections: By heading, the names of commands, each with a line for the help.
            aliases: By older name of a command, its name now; they are not listed.
            **kwargs: As click's group.
        """
        super().__init__(*args, **kwargs)
        self.package, self.sections, self.aliases = package, sections, aliases

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the sections."""
        return [name for names in self.sections.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name or older name, or None."""
        name = self.aliases.get(cmd_name, cmd_name)
        if name not in self.list_commands(ctx):
            return None
        found = import_module(f"{self.package}.{name.replace('-', '_')}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands under their headings; none of them is imported."""
        width = max(map(len, self.list_commands(ctx)))
        for heading, names in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", about) for name, about in names.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the nearest ones."""
        names = self.list_commands(ctx)
        if args[0] not in (*names, *self.aliases) and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], names)
        return super().resolve_command(ctx, args)
