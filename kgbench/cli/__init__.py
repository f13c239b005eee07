"""The command line: parse, call, print."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from pathlib import Path
from typing import Any, TextIO, cast

import click
from click.shell_completion import get_completion_class

from kgbench.analyses import analyses
from kgbench.cli.options import CommandGroup, usage_text
from kgbench.cli.output import TerminalText, terminal_text
from kgbench.errors import KgbenchError, command_line
from kgbench.version import __version__

INTERRUPTED = 130
"""Exit status of a process that ended on Ctrl-C: 128 + SIGINT."""

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Run": {
        "eval": "Measure where a finetuned fact is retrieved from.",
        "answers": "Score whole answers instead of their first tokens.",
        "specificity": "Show what grafts change besides their facts.",
        "tokens": "Show the likeliest next tokens under some grafts.",
        "heads": "Graft attention heads one at a time.",
        "explore": "Map which tokens and components bring an answer.",
        "sweep": "Compute studies of many runs: here, SLURM, Ray.",
    },
    "Look": {
        "diff": "Show which weights finetuning changed (no facts).",
        "ls": "List models, data sets, methods, runs, the machine.",
        "show": "Print or draw runs: tables, CSV, LaTeX, pictures.",
        "view": "Look at runs in a browser: search, facts, maps.",
        "compare": "Print paired differences of two runs.",
    },
    "Trust": {
        "audit": "Vary wordings and seeds: how far figures move.",
        "rerun": "Run a recorded run again and compare every row.",
    },
    "Extend": {
        "data": "Import facts of your own.",
        "tasks": "Make lm-eval tasks of facts of your own.",
        "train": "Finetune a donor on the facts of a data set.",
        "family": "Describe an architecture that is not known yet.",
        "new-localizer": "Write a working localizer, and its test.",
        "check-localizer": "Run the contract tests on a localizer.",
    },
    "Publish": {
        "validate": "Check recorded runs and board entries (no model).",
        "submit": "Put recorded runs on the leaderboard.",
        "leaderboard": "Build and check the leaderboard.",
    },
}
"""Commands by heading, each with its line in the help; `NAME_command` is in the module NAME."""

_COMMANDS = list(chain.from_iterable(SECTIONS.values()))

RESUMED = ("eval", "audit", "heads", "reproduce", "rerun", "train", "zoo", "sweep")
"""Commands that keep what was finished when they are interrupted."""


@cache
def _commands() -> Mapping[str, EntryPoint]:
    """Commands by entry points in the group `kgbench.commands`."""
    return {point.name: point for point in entry_points(group="kgbench.commands")}


def _installed() -> list[str]:
    """Commands and analyses by entry points; a name of kgbench's own is not replaced."""
    names = (*_commands(), *analyses().names())
    return [name for name in names if name not in _COMMANDS]


class LazyGroup(CommandGroup):
    """Commands under headings; a command's module is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the sections."""
        return [*_COMMANDS, *_installed()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, or None."""
        name = cmd_name
        if name not in self.list_commands(ctx):
            return None
        if name in analyses().names():
            from kgbench.cli.analysis import analysis_command

            return analysis_command(name)
        if name in _COMMANDS:
            name = name.replace("-", "_")
            command = getattr(import_module(f"{__package__}.{name}"), f"{name}_command")
        else:
            command = _commands()[name].load()
        assert isinstance(command, click.Command)
        command.name = cmd_name  # not that of the function
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands next to their headings; of kgbench's own none is imported."""
        installed = {name: self._about(ctx, name) for name in _installed()}
        sections = {**SECTIONS, "Added": installed}
        left, width = max(map(len, sections)) + 1, max(map(len, self.list_commands(ctx)))
        rows = []
        for heading, names in sections.items():
            for i, (name, about) in enumerate(names.items()):
                rows.append((f"{'' if i else heading:{left}}{name:{width}}", about))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _about(self, ctx: click.Context, name: str) -> str:
        """The line of a command of another package, which is imported for it."""
        if name not in _commands():
            return f"Analysis of {analyses().origin(name)}."
        command = self.get_command(ctx, name)
        assert command is not None
        return command.get_short_help_str(limit=60)


def _print_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        script = get_completion_class(shell)
        assert script is not None
        click.echo(script(ctx.command, {}, "kgbench", "_KGBENCH_COMPLETE").source())
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="First run: kgbench eval --localizer dynamic_graft --model tiny-gemma",
)
@click.version_option(__version__, prog_name="kgbench", message="%(prog)s %(version)s")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    callback=_print_completion,
    is_eager=True,
    expose_value=False,
    help="Print the completion script of a shell and exit.",
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Where does a language model retrieve a finetuned fact from?"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: What follows the program's name; None reads it from the process.

    Returns:
        0 done; 1 ran, and something did not hold; 2 wrong input; 130 interrupted.
    """
    # Threads that wait by spinning make a run many times slower on a machine with other work, and
    # those that sleep at once are woken a hundred thousand times in a run on a tiny pair. So they
    # spin for some microseconds, and then sleep. Both are read once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Libraries make half a million objects that last as long as the process. Looking through them
    # for cycles is a third of the time of their import, and again of the process's end.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    _open_streams()
    try:
        with (
            warnings.catch_warnings(),
            command_line(),
            redirect_stdout(cast(TextIO, TerminalText(sys.stdout))),
        ):
            warnings.showwarning = _warned_once()
            status: Any = command.main(
                args=None if arguments is None else list(arguments),
                prog_name="kgbench",
                standalone_mode=False,
            )
    except KgbenchError as error:
        return _complain(str(error), error.exit_status)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "kgbench"
        text = usage_text(error, sys.argv[1:] if arguments is None else arguments)
        return _complain(f"{text} (see {path} --help)", error.exit_code)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except click.Abort:
        return _complain(
            f"interrupted; {_left(sys.argv[1:] if arguments is None else arguments)}", INTERRUPTED
        )
    return status if isinstance(status, int) else 0


def _open_streams() -> None:
    """Give a process that was started without stdout or stderr streams that go nowhere."""
    nowhere = Path(os.devnull)
    if sys.stderr is None:
        sys.stderr = nowhere.open("w", encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = nowhere.open("w", encoding="utf-8")
        _warn("stdout is closed, and what goes there is not shown")


def _left(arguments: Sequence[str]) -> str:
    kept = ", and the same command goes on from what was finished"
    return f"nothing half-written is left{kept if arguments[0] in RESUMED else ''}"


def _warn(message: Warning | str, *_place: object, **_more: object) -> None:
    """A warning as one line for a user, who has no use for the place in the code."""
    print(terminal_text(f"kgbench: warning: {message}"), file=sys.stderr)


def _warned_once() -> Callable[..., None]:
    """Warns as `_warn`, of each text once: models may be loaded several times in a command."""
    warn_of = cache(_warn)
    return lambda message, *_place, **_more: warn_of(str(message))


def _complain(message: str, status: int) -> int:
    print(terminal_text(f"kgbench: error: {message}"), file=sys.stderr)
    return status
