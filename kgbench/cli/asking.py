"""Options that say which pair and which facts a question is about, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from kgbench.cli.values import Renamed, completer, donors_of, pairs
from kgbench.errors import InputError

__all__ = ["check_asked", "evaluation_prompts", "pair_and_facts", "sample_size"]

Command = Callable[..., Any]

OPTIONS = (
    click.option(
        "--model",
        metavar="NAME",
        help="Model pair by name, see `kgbench ls models`.",
        shell_complete=completer("models"),
    ),
    click.option(
        "--recipient",
        metavar="PATH|ID",
        help="Checkpoint before finetuning, without or in place of --model's.",
    ),
    click.option(
        "--donor",
        multiple=True,
        metavar="[NAME=]PATH|ID",
        help="Finetuned checkpoint, by default named sft; may be repeated.",
    ),
    click.option(
        "--dataset",
        metavar="NAME|FILE",
        help="Facts.  [default: the pair's own]",
        shell_complete=completer("datasets"),
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
        "--template",
        multiple=True,
        metavar="NAME=TEXT",
        help="Evaluation template of your own, with --dataset.",
    ),
)

evaluation_prompts = click.option(
    "--prompt",
    multiple=True,
    metavar="NAME",
    help="Evaluation prompts; several with commas.  [default: headline, qa or the file's own]",
    shell_complete=completer("prompts"),
)


def sample_size(
    default: int, least: int = 1, about: str = "How many facts."
) -> Callable[[Command], Command]:
    """The option that says how many facts are asked about."""
    return click.option(
        "--limit",
        "--facts",
        "facts",
        cls=Renamed,
        type=click.IntRange(min=least),
        default=default,
        show_default=True,
        metavar="N",
        help=about,
    )


def pair_and_facts(command: Command) -> Command:
    """Give a command the options that say which pair and which facts."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def check_asked(options: Mapping[str, Any]) -> None:
    """Refuse options that name no pair, or say how to read facts that they do not name, before anything heavy is loaded.

    Raises:
        InputError: Something is wrong with the options.
    """
    from kgbench.cli.jobs import FILE_OPTIONS
    from kgbench.runner.spec import Spec
    from kgbench.runner.workload import check_different

    if options["model"] is None and options["recipient"] is None:
        raise InputError(
            "which model? Give --model NAME (see `kgbench ls models`), or --recipient PATH with --donor PATH"
        )
    for name in FILE_OPTIONS:
        if options[name] and options["dataset"] is None:
            raise InputError(
                f"--{name} says how to read facts: add --dataset NAME or --dataset FILE"
            )
    check_different(
        Spec(
            model=options["model"],
            recipient=options["recipient"],
            donors=donors_of(options["donor"]),
        )
    )
    for name in ("column", "template"):
        pairs(f"--{name}", options[name])
