"""A click group whose commands are imported when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from kgbench.errors import UnknownNameError


class LazyGroup(click.Group):
    """Each command is the object `command` of the module of its name in a package, with underscores for hyphens."""

    def __init__(self, *args: Any, package: str, names: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.package, self.names = package, tuple(names)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order given, which is that of need, not of the alphabet."""
        return list(self.names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, or None."""
        if cmd_name not in self.names:
            return None
        found = import_module(f"{self.package}.{cmd_name.replace('-', '_')}").command
        assert isinstance(found, click.Command)
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but an unknown name is answered with the nearest ones."""
        if args[0] not in self.names and not args[0].startswith("-"):
            raise UnknownNameError("command", args[0], self.names)
        return super().resolve_command(ctx, args)
