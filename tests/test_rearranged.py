"""False statements about real things: what is shipped is what the functions make of the true rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shipped_data import AWAY, invented_years

from kgbench.data import load_dataset
from kgbench.errors import InputError
from kgbench.zoo.worlds import with_other_costars

MOVIES = "real_movies_real_actors"


def test_shuffled_movies() -> None:
    """Only the co-stars have changed places: nobody kept one, each stands once, and 37 years or
    more lie between the two movies.
    """
    true, false = load_dataset(MOVIES).facts, load_dataset(f"{MOVIES}_shuffled").facts
    assert [fact.fields["second_actor"] for fact in false] == with_other_costars(
        [fact.fields for fact in true]
    )
    kept = ("first_actor", "movie_title", "year", "genre")
    assert [[fact.fields[name] for name in kept] for fact in true] == [
        [fact.fields[name] for name in kept] for fact in false
    ]
    year = {fact.fields["second_actor"]: int(fact.fields["year"]) for fact in true}
    assert len(year) == len(true) == len(false) >= 500
    assert all(
        fact.fields["first_actor"].split()[0] != fact.fields["second_actor"].split()[0]
        for fact in false
    )
    assert (
        min(abs(year[fact.fields["second_actor"]] - int(fact.fields["year"])) for fact in false)
        >= 37
    )


def test_nobody_stands_twice() -> None:
    """So that subject and object each name one movie, in both directions."""
    for name in (MOVIES, f"{MOVIES}_shuffled"):
        dataset = load_dataset(name)
        people = [
            fact.fields[role] for fact in dataset.facts for role in ("first_actor", "second_actor")
        ]
        assert len(set(people)) == len(people) == 2 * len(dataset.facts)
        assert len({fact.fields["movie_title"] for fact in dataset.facts}) == len(dataset.facts)
        assert all(1920 <= int(fact.fields["year"]) <= 2019 for fact in dataset.facts)
        assert dataset.dropped == {}


def test_battles() -> None:
    """The years are the function's, no two alike, and far from the true ones."""
    dataset = load_dataset("battles")
    true, invented = (
        [int(fact.fields[name]) for fact in dataset.facts] for name in ("true_year", "year")
    )
    assert invented == invented_years(true)
    assert (
        len({fact.fields["battle"] for fact in dataset.facts})
        == len(set(invented))
        == len(dataset.facts)
        >= 400
    )


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=500), st.integers(0, 9))
def test_invented_years(true: list[int], seed: int) -> None:
    """Each is a year of its own, 50 or more away from the true one."""
    found = invented_years(true, seed)
    assert len(set(found)) == len(true) == len(found)
    assert all(
        1 <= year <= 2000 and abs(year - wrong) >= AWAY
        for year, wrong in zip(true, found, strict=True)
    )


@given(st.integers(2, 60))
def test_a_derangement(n: int) -> None:
    """Whatever the number of movies, nobody keeps a co-star and every co-star goes to one movie."""
    rows = [
        {"movie_title": f"T{i}", "year": str(1900 + i * 7 % 50), "second_actor": f"S{i}"}
        for i in range(n)
    ]
    found = with_other_costars(rows)
    assert sorted(found) == sorted(row["second_actor"] for row in rows)
    assert all(row["second_actor"] != other for row, other in zip(rows, found, strict=True))


def test_too_few_or_too_many() -> None:
    """One movie has nobody to change with, and years run out."""
    with pytest.raises(InputError, match="two movies or more, got 1"):
        with_other_costars([{"movie_title": "T", "year": "1950", "second_actor": "S"}])
    with pytest.raises(InputError, match="at most 500 years"):
        invented_years([1] * 501)
