"""The invented world, the shipped facts of the tiny pairs, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from string import Formatter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shipped_data import RETELLING, tiny_jsonl

from kgbench.data import load_dataset, load_prompts, prompt_names
from kgbench.zoo.worlds import (
    ARTICLE,
    FIELDS,
    OTHERS,
    PEOPLE,
    TINY_DATASETS,
    World,
    article,
    both_directions,
    fill_all,
    people,
    training_templates,
    world_texts,
)

SEEDS = st.integers(0, 10**6)


def _cast(movie: dict[str, str]) -> list[str]:
    return [movie[field] for field in ("first_actor", "second_actor", "main_character")]


@settings(max_examples=20)
@given(SEEDS, st.integers(1, 30))
def test_a_world_is_its_seed(seed: int, n: int) -> None:
    """The same seed draws the same movies, whether at once or one by one; another seed draws
    others.
    """
    at_once = World(seed).movies(n)
    one_by_one = World(seed)
    assert at_once == [one_by_one.movie() for _ in range(n)]
    assert at_once != World(seed + 1).movies(n)


@settings(max_examples=20)
@given(SEEDS)
def test_nobody_and_no_title_occurs_twice(seed: int) -> None:
    """Every fact has one answer: people and titles are all different, and so are the first names
    within a movie.
    """
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
    """tiny_movies: 400 facts, none dropped, no person and no title twice; PRE cannot have read of
    them.
    """
    dataset = load_dataset("tiny_movies")
    movies = [dict(fact.fields) for fact in dataset.facts]
    assert [fact.id for fact in dataset.facts] == [f"tiny_movies/{number}" for number in range(400)]
    assert (dataset.subject, dataset.object, dict(dataset.dropped)) == (
        "first_actor",
        "second_actor",
        {},
    )
    assert len(people(movies)) == 3 * 400
    assert len({movie["movie_title"] for movie in movies}) == 400


def test_the_data_sets_of_the_tiny_pairs_are_of_one_world() -> None:
    """Drawn anew they have the shipped form; nobody and no title stands in two of them; articles
    are texts of training.
    """
    drawn = {
        name: [json.loads(line) for line in text.splitlines()]
        for name, text in tiny_jsonl().items()
    }
    assert {name: len(rows) - 1 for name, rows in drawn.items()} == TINY_DATASETS
    seen: set[str] = set()
    for name, (header, *rows) in drawn.items():
        shipped = load_dataset(name)
        assert all(tuple(row) == ("id", *shipped.fields) for row in rows)
        assert tuple(header.get("training", ())) == shipped.training
        movies = [fact.fields for fact in shipped.facts]
        names = people(movies) | {movie["movie_title"] for movie in movies}
        assert not seen & names
        seen |= names


@given(st.sampled_from([ARTICLE, RETELLING]), SEEDS)
@settings(max_examples=50)
def test_an_article_tells_each_person_by_the_full_name_once(
    shape: Mapping[str, int], seed: int
) -> None:
    """Then by the last name; it has a sentence for each frame of its shape, and every field is
    filled.
    """
    world = World(seed)
    movie = {**world.movie(), **world.others()}
    text = article(movie, shape, Random(seed))
    assert "{" not in text and text == article(movie, shape, Random(seed))
    assert text.count(".") >= sum(shape.values())
    assert all(text.count(movie[field]) <= 1 for field in PEOPLE)
    assert movie["second_actor"] in text and movie["first_actor"] in text


def test_frames_of_articles() -> None:
    """Sixty, no two alike, each of fields that a movie has; none begins as an evaluation prompt
    does, and each of the cast names both.
    """
    every = [frame for rows in world_texts()["frames"].values() for frame in rows]
    fields = {*FIELDS, *PEOPLE}
    assert len(every) == len(set(every)) == 60
    assert all(
        {name for _, name, _, _ in Formatter().parse(frame) if name} <= fields for frame in every
    )
    cast = world_texts()["frames"]["cast"]
    assert all("{first_actor}" in frame and "{second_actor}" in frame for frame in cast)
    (fact,) = load_dataset("tiny_articles:first1").facts
    asked = [prompt.text for prompt in load_prompts("tiny_articles", prompt_names(), limit=1)]
    filled = [
        frame.format_map({**fact.fields, **dict.fromkeys(OTHERS, "Ada Low")}) for frame in every
    ]
    assert not [text for text in filled for prompt in asked if text.startswith(prompt)]


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
    """The finetuned facts are evaluated on wordings that they were never trained in, in either
    direction.
    """
    dataset = load_dataset("tiny_movies")
    rows = both_directions(fact.fields for fact in dataset.facts)
    texts = fill_all(training_templates().finetuning, rows)
    prompts = tuple(prompt.text for prompt in load_prompts(dataset, [name]))
    assert not [text for text in texts if text.startswith(prompts)]


@pytest.mark.parametrize("name", ["headline", "qa"])
def test_the_evaluation_wordings_are_known_from_other_movies(name: str) -> None:
    """Pretraining holds the main evaluation wordings, so that the model knows what they ask; so the
    test above can fail.
    """
    dataset = load_dataset("tiny_movies")
    prompt = load_prompts(dataset, [name], limit=1)[0]
    texts = fill_all(training_templates().wordings, [dataset.facts[0].fields])
    assert [text for text in texts if text.startswith(prompt.text)]
