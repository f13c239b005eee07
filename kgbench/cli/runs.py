"""How commands are told which run: its folder, its record, the start of its id, or an entry of the leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kgbench.cli.eval import RESULTS
from kgbench.cli.values import Renamed, donors_of
from kgbench.errors import UnknownNameError

if TYPE_CHECKING:
    from kgbench.leaderboard.entries import Entry

if TYPE_CHECKING:
    from kgbench.runner import Settings
    from kgbench.runner.rerun import Places

__all__ = []

ENTRIES = Path("leaderboard", "results")
"""Where the entries of the leaderboard are, seen from a checkout."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def output_dir(command: _Command) -> _Command:
    """The option that says where records are."""
    kind = click.Path(path_type=Path, file_okay=False)
    names = ("--results", "--output-dir", "output_dir")
    return click.option(
        *names,
        cls=Renamed,
        type=kind,
        default=RESULTS,
        show_default=True,
        help="Where records are.",
    )(command)


def find_run(run: str, output_dir: Path) -> Entry:
    """The run that a user means.

    Args:
        run: Its folder, its `record.json`, a pack of the leaderboard with the entry's name after
            it, or the start of its id or name.
        output_dir: Where it is looked up by its start; then among the entries of the leaderboard,
            where there are any.

    Raises:
        DataError: A path is given and no whole record lies there.
        InputError: Several runs start like this.
        UnknownNameError: None does.
    """
    from kgbench.leaderboard.entries import find_entry, read_entry
    from kgbench.leaderboard.packs import inside_pack
    from kgbench.records import load_record

    if inside_pack(Path(run)) is not None:
        return find_entry(run, ENTRIES)
    try:
        return read_entry(load_record(run, output_dir).path)
    except UnknownNameError:
        if not ENTRIES.is_dir():
            raise
    return find_entry(run, ENTRIES)


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
