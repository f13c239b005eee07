"""The command line: parse, call, print."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, TextIO, cast

import click

from kgbench import __version__
from kgbench.cli.lazy import LazyGroup
from kgbench.cli.output import TerminalText, terminal_text
from kgbench.errors import KgbenchError

__all__ = ["command", "main"]

INTERRUPTED = 130
"""Exit status of a process that ended on Ctrl-C: 128 + SIGINT."""

_RUNS = "the same command goes on from what was finished; the ranking of a half of the facts starts again"
_TRAININGS = "the same command goes on from the last checkpoint"
KEPT = {"eval": _RUNS, "audit": _RUNS, "reproduce": _RUNS, "train": _TRAININGS, "zoo": _TRAININGS}
"""What of an interrupted command is not done again, by command; the others keep nothing."""


@click.group(
    cls=LazyGroup,
    package="kgbench.cli",
    names=(
        *("eval", "ls", "data", "show", "tokens", "answers", "specificity", "audit", "compare", "plot", "export"),
        *("rescore", "reproduce", "verify"),
        *("submit", "validate", "leaderboard", "check", "tasks", "lm-eval", "new-localizer", "train", "family", "zoo", "doctor"),
        "completion",
    ),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="First run: kgbench eval --localizer dynamic_graft --model tiny-gemma",
)
@click.version_option(__version__, prog_name="kgbench", message="%(prog)s %(version)s")
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
    # Threads that wait by spinning make a run many times slower on a machine with other work; read once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with warnings.catch_warnings(), redirect_stdout(cast(TextIO, TerminalText(sys.stdout))):
            warnings.showwarning = _warn
            status: Any = command.main(args=None if arguments is None else list(arguments), prog_name="kgbench", standalone_mode=False)
    except KgbenchError as error:
        return _complain(str(error), error.exit_status)
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "kgbench"
        return _complain(f"{error.format_message()} (see {path} --help)", error.exit_code)
    except click.ClickException as error:
        return _complain(error.format_message(), error.exit_code)
    except click.Abort:
        return _complain(f"interrupted; {_left(sys.argv[1:] if arguments is None else arguments)}", INTERRUPTED)
    return status if isinstance(status, int) else 0


def _left(arguments: Sequence[str]) -> str:
    kept = KEPT.get(arguments[0]) if arguments else None
    return f"nothing half-written is left, and {kept}" if kept else "nothing half-written is left"


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    """A warning as one line for a user, who has no use for the place in the code."""
    print(terminal_text(f"kgbench: warning: {message}"), file=sys.stderr)


def _complain(message: str, status: int) -> int:
    print(terminal_text(f"kgbench: error: {message}"), file=sys.stderr)
    return status
