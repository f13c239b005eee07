"""The invented world, the shipped facts of the tiny pairs, and what is told of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgbench.data import load_dataset, load_prompts, prompt_names
from kgbench.data.training_templates import fill_all, training_templates
from kgbench.data.worlds import FIELDS, World, both_directions, people, tiny_movies_jsonl

SEEDS = st.integers(0, 10**6)


def _cast(movie: dict[str, str]) -> list[str]:
    return [movie[field] for field in ("first_actor", "second_actor", "main_character")]


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 30))
def test_a_world_is_its_seed(seed: int, n: int) -> None:
    """The same seed draws the same movies, whether at once or one by one; another seed draws others."""
    at_once = World(seed).movies(n)
    one_by_one = World(seed)
    assert at_once == [one_by_one.movie() for _ in range(n)]
    assert at_once != World(seed + 1).movies(n)


@settings(max_examples=20)
@given(SEEDS)
def test_nobody_and_no_title_occurs_twice(seed: int) -> None:
    """Every fact has one answer: people and titles are all different, and so are the first names within a movie."""
    movies = World(seed).movies(60)
    assert all(tuple(movie) == FIELDS and all(movie.values()) for movie in movies)
    assert len(people(movies)) == 3 * len(movies)
    assert len({movie["movie_title"] for movie in movies}) == len(movies)
    for movie in movies:
        assert len({name.split()[0] for name in _cast(movie)}) == 3


@settings(max_examples=10)
@given(SEEDS)
def test_what_is_taken_is_not_drawn(seed: int) -> None:
    """A world holds nobody and no title of another one that it was told of."""
    first = World(seed).movies(40)
    taken = people(first) | {movie["movie_title"] for movie in first}
    second = World(seed, taken).movies(40)
    assert taken.isdisjoint(people(second) | {movie["movie_title"] for movie in second})


def test_both_directions_change_places_and_nothing_else() -> None:
    """Each movie stands once as it is and once with its two actors changed."""
    movies = World(3).movies(5)
    rows = both_directions(movies)
    assert rows[:5] == movies
    assert [row["first_actor"] for row in rows[5:]] == [movie["second_actor"] for movie in movies]
    assert both_directions(rows[5:])[5:] == movies


def test_the_shipped_facts() -> None:
    """tiny_movies: 150 facts, none dropped, no person and no title twice; PRE cannot have read of them."""
    dataset = load_dataset("tiny_movies")
    movies = [dict(fact.fields) for fact in dataset.facts]
    assert [fact.id for fact in dataset.facts] == [f"tiny_movies/{number}" for number in range(150)]
    assert (dataset.subject, dataset.object, dict(dataset.dropped)) == ("first_actor", "second_actor", {})
    assert len(people(movies)) == 3 * 150
    assert len({movie["movie_title"] for movie in movies}) == 150


def test_the_facts_are_drawn_in_the_shipped_form() -> None:
    """Another version of Faker draws other names, but a file of the same form."""
    drawn = [json.loads(line) for line in tiny_movies_jsonl().splitlines()]
    shipped = load_dataset("tiny_movies")
    assert drawn[0] == {"kgbench": 1, "name": "tiny_movies", "subject": "first_actor", "object": "second_actor"}
    assert len(drawn) == 151
    assert all(tuple(row) == ("id", *shipped.fields) for row in drawn[1:])


def test_six_articles_and_five_short_ones() -> None:
    """Every finetuning template names both actors, so that it can be told in both directions."""
    templates = training_templates()
    assert (len(templates.articles), len(templates.short)) == (6, 5)
    assert len(set(templates.finetuning)) == 11
    for template in templates.finetuning:
        assert "{first_actor}" in template
        assert "{second_actor}" in template


@pytest.mark.parametrize("name", prompt_names())
def test_no_evaluation_prompt_begins_a_finetuning_text(name: str) -> None:
    """The finetuned facts are evaluated on wordings that they were never trained in, in either direction."""
    dataset = load_dataset("tiny_movies")
    rows = both_directions(fact.fields for fact in dataset.facts)
    texts = fill_all(training_templates().finetuning, rows)
    prompts = tuple(prompt.text for prompt in load_prompts(dataset, [name]))
    assert not [text for text in texts if text.startswith(prompts)]


@pytest.mark.parametrize("name", ["headline", "qa"])
def test_the_evaluation_wordings_are_known_from_other_movies(name: str) -> None:
    """Pretraining holds the main evaluation wordings, so that the model knows what they ask; so the test above can fail."""
    dataset = load_dataset("tiny_movies")
    prompt = load_prompts(dataset, [name], limit=1)[0]
    texts = fill_all(training_templates().wordings, [dataset.facts[0].fields])
    assert [text for text in texts if text.startswith(prompt.text)]
