"""Options of commands that run a recorded run again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kgbench.cli.values import donors_of

if TYPE_CHECKING:
    from kgbench.runner import Settings
    from kgbench.runner.rerun import Places

_Command = TypeVar("_Command", bound=Callable[..., Any])

OPTIONS = (
    click.option(
        "--localizer", metavar="FILE.py:CLASS", help="The method, where it is not installed."
    ),
    click.option(
        "--model",
        metavar="NAME|PATH",
        help="The pair, where it is a plant of your own.  [default: the record's]",
    ),
    click.option(
        "--recipient",
        metavar="PATH|ID",
        help="Checkpoint before finetuning, where the pair has no name.",
    ),
    click.option(
        "--donor",
        multiple=True,
        metavar="[NAME=]PATH|ID",
        help="Finetuned checkpoint, by default named sft; may be repeated.",
    ),
    click.option("--revision", metavar="REV", help="Branch, tag or commit of Hub checkpoints."),
    click.option(
        "--chat-template/--no-chat-template",
        default=False,
        help="The run had prompts in a chat template.  [default: off]",
    ),
    click.option(
        "--dataset", metavar="NAME|FILE", help="Facts, where they are a file of your own."
    ),
    click.option("--subject", metavar="COLUMN", help="Your file: what a fact is about."),
    click.option("--object", metavar="COLUMN", help="Your file: what is asked for."),
    click.option(
        "--column",
        multiple=True,
        metavar="FIELD=COLUMN",
        help="Your file: column that holds a field.",
    ),
    click.option(
        "--template", multiple=True, metavar="NAME=TEXT", help="Evaluation template of your own."
    ),
    click.option(
        "--device",
        default="auto",
        show_default=True,
        metavar="DEVICE",
        help="cpu, cuda, cuda:1, mps.",
    ),
    click.option(
        "--executor",
        default="auto",
        show_default=True,
        metavar="NAME",
        help="auto, packed, rows or sequential.",
    ),
    click.option(
        "--batch-size", type=click.IntRange(min=1), metavar="N", help="Prompts per forward."
    ),
    click.option(
        "--tolerance",
        type=click.FloatRange(min=0, min_open=True),
        metavar="NATS",
        help="Largest difference of log-probabilities.  [default: 0.001 for float32]",
    ),
)


def again_options(command: _Command) -> _Command:
    """The options that say where the parts of a run are, and how it is computed now."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def places_of(options: Mapping[str, Any]) -> Places:
    """Where the parts of a run are, as the options say."""
    from kgbench.cli.jobs import imports_of
    from kgbench.runner.rerun import Places

    same = {
        name: options[name]
        for name in ("localizer", "model", "recipient", "revision", "chat_template", "dataset")
    }
    return Places(**same, donors=donors_of(options["donor"]), imports=imports_of(options))


def settings_of(options: Mapping[str, Any]) -> Settings:
    """How it is computed now."""
    from kgbench.runner import Settings

    return Settings(**{name: options[name] for name in ("batch_size", "device", "executor")})
