"""Options of commands that take recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kgbench.cli.options import (
    COMPUTING,
    FACTS,
    PAIR,
    RESULTS,
    FolderOrURL,
    Renamed,
    donors_of,
    imports_of,
    run_options,
)

if TYPE_CHECKING:
    from kgbench.runner.rerun import Places

__all__ = []

_Command = TypeVar("_Command", bound=Callable[..., Any])


def output_dir(command: _Command) -> _Command:
    """Option for the folder of records."""
    names = ("--results", "--output-dir", "output_dir")
    return click.option(
        *names,
        cls=Renamed,
        type=FolderOrURL(),
        default=RESULTS,
        show_default=True,
        help="Where records are.",
    )(command)


def again_options(command: _Command) -> _Command:
    """Options for the parts of a recorded run, and for how it is computed now."""
    tolerance = click.option(
        "--tolerance",
        type=click.FloatRange(min=0, min_open=True),
        metavar="NATS",
        help="Largest difference of log-probabilities.  [default: 0.001 for float32]",
    )
    fields = run_options(
        "localizer",
        *PAIR,
        *(name for name in FACTS if name != "prompts"),
        *(name for name in COMPUTING if name != "dtype"),
        localizer={
            "default": None,
            "metavar": "FILE.py:CLASS",
            "help": "Localizer of the run, where it is not installed.",
        },
        model={
            "metavar": "NAME|PATH",
            "help": "Pair of the run, where it is a plant of your own.  [default: the record's]",
        },
        recipient={"help": "Checkpoint before finetuning, where the pair has no name."},
        chat_template={"help": "The run had prompts in a chat template.  [default: off]"},
        dataset={"help": "Facts, where they are a file of your own."},
    )
    return fields(tolerance(command))


def places_of(options: Mapping[str, Any]) -> Places:
    """Locations of the parts of a run, from the options."""
    from kgbench.runner.rerun import Places

    same = {
        name: options[name]
        for name in ("localizer", "model", "recipient", "revision", "chat_template", "dataset")
    }
    return Places(**same, donors=donors_of(options["donor"]), imports=imports_of(options))
