"""The README says what is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgbench.cli import command
from kgbench.models.catalog import names, zoo_path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
HEAD, *CARDS = [
    [cell.strip(" `") for cell in line.strip("|").split("|")]
    for line in README.partition("begin: cards of the tiny pairs")[2].partition("<!-- end")[0].splitlines()
    if line.startswith("|") and "---" not in line
]


def test_every_shipped_pair_is_told_of() -> None:
    """The table holds every tiny pair, on both prompts."""
    shipped = {name for name in names() if name.startswith("tiny-")}
    assert {(row[0], row[1]) for row in CARDS if "seed" not in row[0]} == {
        (name, prompt) for name in shipped for prompt in ("headline", "qa")
    }


@pytest.mark.parametrize("row", CARDS, ids=" ".join)
def test_the_table_of_pairs_is_that_of_the_cards(row: list[str]) -> None:
    """Each figure of the table stands on the pair's card, rounded to two digits."""
    name, _, seed = row[0].partition(", seed ")
    folder = zoo_path(f"zoo:{name}")
    assert folder is not None
    card = json.loads((folder / "card.json").read_text("utf-8"))
    scores = next(other["scores"] for other in card["other_seeds"] if str(other["seed"]) == seed) if seed else card["scores"]
    for configuration, told in zip(HEAD[2:], row[2:], strict=True):
        assert float(told) == pytest.approx(scores[row[1]][configuration], abs=0.0051)


def test_every_command_and_option_shown_exists() -> None:
    """Commands and options in code blocks are those of the program's help."""
    for line in re.findall(r"^kgbench ((?!.*\|).*)$", README, re.MULTILINE):
        words = line.partition("#")[0].split()
        name = words[0]
        options = {word for word in words if word.startswith("--")}
        asked = [name, words[1], "--help"] if name == "zoo" else [name, "--help"]
        shown = CliRunner().invoke(command, asked).output
        assert all(option in shown for option in options), line


def test_pictures_are_there() -> None:
    """Every picture that the README shows is in the repository."""
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)
