"""The README says what is so."""

from __future__ import annotations

import re
from pathlib import Path

from cards_table import pairs_table, plants_table
from click.testing import CliRunner

from kgbench import localizers
from kgbench.cli import command

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def block(name: str) -> str:
    """What stands between the README's marks of this name."""
    return README.partition(f"begin: {name} -->\n")[2].partition("\n<!-- end")[0]


def table(name: str) -> list[list[str]]:
    """The cells of a marked block's table, its head first."""
    lines = block(name).splitlines()
    return [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|") and "---" not in line
    ]


def test_the_tables_of_pairs_and_plants_are_those_of_their_cards() -> None:
    """They hold every shipped pair and plant, with the figures of their cards, as `make cards`
    prints them.
    """
    assert block("cards of the tiny pairs") == pairs_table()
    assert block("cards of the plants") == plants_table()


def test_the_table_of_localizers_is_what_is_listed() -> None:
    """Rows say what `kgbench ls localizers` says; a method comes and goes with its one file,
    whether or not the table has caught up.
    """
    built_in = {
        n: v
        for n, v in localizers.describe().items()
        if Path(localizers.__file__).with_name(f"{n}.py").is_file()
    }
    told = {row[0]: row[1:] for row in table("built-in localizers")[1:]}
    assert len(told) > 20
    for name, (kind, needs, cost, paper, about) in told.items():
        if (said := built_in.get(name)) is None:
            continue
        assert (kind, cost, about) == (said["kind"], said["cost"], said["about"])
        assert needs == (", ".join(said["needs"]) or "–")
        assert said["paper"] in paper


def test_every_command_and_option_shown_exists() -> None:
    """Commands and options in code blocks are those of the program's help."""
    for line in re.findall(r"^kgbench ((?!.*\|).*)$", README, re.MULTILINE):
        words = line.partition("#")[0].split()
        name = words[0]
        options = {word for word in words if word.startswith("--")}
        asked = (
            [name, words[1], "--help"]
            if name in ("zoo", "data", "tasks", "lm-eval")
            else [name, "--help"]
        )
        shown = CliRunner().invoke(command, asked).output
        assert all(option in shown for option in options), line


def test_every_claim_is_told_of() -> None:
    """The table has a row for every claim of the suite on each of its prompts, and each cell says
    how it ended.
    """
    from claims_table import PAIRS, TITLES

    rows = table("claims")
    assert rows[0] == ["claim", "prompt", *PAIRS]
    prompts = ("headline", "qa", "movie_title", "new_film")
    alone = {TITLES["test_it_is_the_position_not_the_preposition"]: ("qa",)}
    assert [(row[0], row[1]) for row in rows[1:]] == [
        (claim, prompt) for claim in TITLES.values() for prompt in alone.get(claim, prompts)
    ]
    assert all(
        re.match(r"(holds|undecided|\*\*fails\*\*): ", cell) for row in rows[1:] for cell in row[2:]
    )


def test_the_table_of_coverage_is_of_all_cases() -> None:
    """The table has a row for every case, and none says that an interval holds the truth too
    seldom, or too often without a reason.
    """
    from coverage_table import CASES, FACTS

    rows = table("coverage")
    assert rows[0][2:] == [f"n = {n}" for n in FACTS]
    told = [(row[0], row[1]) for row in rows[1:]]
    assert [(case.score, case.name) for case in CASES] == [
        cell for cell in told if cell in {(case.score, case.name) for case in CASES}
    ]
    assert not any("**" in cell for row in rows for cell in row)


def test_pictures_are_there() -> None:
    """Every picture that the README shows is in the repository."""
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)
