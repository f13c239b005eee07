"""The generator of fake movies, and the file that it made."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from shipped_data import FAKE_MOVIES, REAL_ACTORS, fake_movies_jsonl, generate_fake_movies

import kgbench.data
from kgbench.data import data_card, load_dataset

FILE = Path(kgbench.data.__file__).parent / "files" / f"{FAKE_MOVIES}.jsonl"


def shipped() -> list[dict[str, str | int]]:
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.parametrize(
    "rows", [shipped(), generate_fake_movies(300, seed=7)], ids=["shipped", "drawn"]
)
def test_promises_of_the_data_card(rows: Sequence[dict[str, str | int]]) -> None:
    """Nobody and no title twice; plain names; every value in its range."""
    people = [
        str(row[role]) for row in rows for role in ("first_actor", "second_actor", "main_character")
    ]
    assert len(set(people)) == 3 * len(rows)
    assert all(re.fullmatch(r"[A-Z][A-Za-z'-]+ [A-Z][A-Za-z'-]+", person) for person in people)
    assert not any(
        re.search(r"\b(Jr|Sr|Dr|Mrs?|Ms|Miss|MD|DDS|DVM|PhD|I{2,3}|IV|V)\b", person)
        for person in people
    )
    titles = [str(row["movie_title"]) for row in rows]
    assert len(set(titles)) == len(rows)
    assert {name for person in people for name in person.split()}.isdisjoint(
        word for title in titles for word in title.split()
    )
    for row in rows:
        assert (
            len(
                {
                    str(row[role]).split()[0]
                    for role in ("first_actor", "second_actor", "main_character")
                }
            )
            == 3
        )
        assert 1990 <= int(row["year"]) <= 2030
        assert 1 <= int(row["box_office"]) <= 10
    assert len({row["genre"] for row in rows}) == 10


def test_shipped_file_is_what_the_generator_makes() -> None:
    """Equal to the byte under the version of Faker on the card; under another, of the same form."""
    made_with = re.search(r"Faker ([\d.]+\d)", data_card(FAKE_MOVIES))
    assert made_with
    drawn, kept = fake_movies_jsonl(), FILE.read_text(encoding="utf-8")
    assert drawn.splitlines()[0] == kept.splitlines()[0]
    assert [*json.loads(drawn.splitlines()[1])] == [*json.loads(kept.splitlines()[1])]
    if version("faker") == made_with[1]:
        assert drawn == kept


def test_shipped_file_with_performers() -> None:
    """It is what the generator makes of its own performers; nobody stands twice, and couples have
    different first names.
    """
    dataset, kept = (
        load_dataset(REAL_ACTORS),
        (FILE.parent / f"{REAL_ACTORS}.jsonl").read_text(encoding="utf-8"),
    )
    performers = [
        fact.fields[role] for fact in dataset.facts for role in ("first_actor", "second_actor")
    ]
    characters = [fact.fields["main_character"] for fact in dataset.facts]
    titles = {word for fact in dataset.facts for word in fact.fields["movie_title"].split()}
    assert len(set(performers)) == 2000 and len({*performers, *characters}) == 3000
    assert titles.isdisjoint(word for person in performers for word in person.split())
    assert all(
        fact.fields["first_actor"].split()[0] != fact.fields["second_actor"].split()[0]
        for fact in dataset.facts
    )
    made_with = re.search(r"Faker ([\d.]+\d)", data_card(REAL_ACTORS))
    assert made_with and len({fact.fields["movie_title"] for fact in dataset.facts}) == 1000
    if version("faker") == made_with[1]:
        assert fake_movies_jsonl(1000, 1, performers) == kept
