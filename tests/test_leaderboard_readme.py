"""The leaderboard's README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from kgbench.cli import command
from kgbench.leaderboard.board_tables import Badge
from kgbench.models.catalog import pair_names, plants

README = (Path(__file__).resolve().parents[1] / "leaderboard" / "README.md").read_text("utf-8")
SHOWN = [
    line.partition("#")[0].split()
    for block in re.findall(r"^```\n(.*?)^```", README, re.M | re.S)
    for line in block.splitlines()
]
TOLD = [words.split() for words in re.findall(r"`kgbench ([^`]+)`", README)]
COMMANDS = [words[1:] for words in SHOWN if words[:1] == ["kgbench"]] + TOLD


def found(words: list[str]) -> click.Command:
    """The command that the words begin with, through groups."""
    at: click.Command = command
    for word in words:
        if not isinstance(at, click.Group):
            break
        inner = at.get_command(click.Context(at), word)
        assert inner is not None, f"there is no command {word}"
        at = inner
    return at


def test_it_is_short() -> None:
    """A newcomer reads it to the end."""
    assert len(README.splitlines()) <= 75


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_and_option_exists(words: list[str]) -> None:
    """Commands in blocks and in sentences are the program's, with these options."""
    options = {option for parameter in found(words).params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_every_option_named_alone_exists() -> None:
    """An option that a sentence names without its command is one of a command of the path."""
    options = {
        option
        for words in COMMANDS
        for parameter in found(words).params
        for option in parameter.opts
    }
    assert set(re.findall(r"(?<=`)--[a-z-]+", README)) <= options | {"--kind"}


def test_the_path_is_whole() -> None:
    """The block goes from an idea to a look at the row, in this order."""
    assert [
        " ".join(words[1:3]) if words[1] == "leaderboard" else words[1] for words in SHOWN if words
    ] == [
        "new-localizer",
        "check-localizer",
        "eval",
        "eval",
        "validate",
        "submit",
        "leaderboard build",
        "view",
    ]


def test_models_named_are_there() -> None:
    """Pairs and plants are the catalog's, and all pairs of the core are named."""
    told = set(re.findall(r"\btiny-[a-z0-9]+(?:\.[a-z0-9-]+)?", README))
    assert told <= set(pair_names())
    assert {
        name for name in pair_names() if name.startswith("tiny-") and name not in plants()
    } <= told
    assert plants()


def test_every_badge_is_explained() -> None:
    """What each badge means is said, of all of them and no others."""
    assert set(re.findall(r"^- \*\*([a-z-]+)\*\*:", README, re.M)) == set(Badge.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("file", ["record.json", "facts.parquet", "entries.jsonl.xz"])
def test_files_of_an_entry_are_told_of(file: str) -> None:
    """Every file of a run and of a method has a word."""
    assert file in README
