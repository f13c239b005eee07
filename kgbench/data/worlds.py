"""An invented world of movies, from which tiny models learn that such facts exist and can be looked up.

Names come from Faker's English pools, so they depend on its version; facts that must not change are shipped as a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from kgbench.data.articles import ARTICLE, OTHERS, RETELLING, tell

__all__ = [
    "ATTRIBUTES",
    "FIELDS",
    "TINY_DATASETS",
    "NamePools",
    "World",
    "biographies",
    "both_directions",
    "draw_pools",
    "people",
    "tiny_jsonl",
]

FIELDS = (
    "first_actor",
    "second_actor",
    "movie_title",
    "main_character",
    "year",
    "genre",
    "city",
    "box_office",
)
"""Fields of a movie; box_office is in millions."""

ATTRIBUTES = ("lives", "born", "agent", "debut")
"""What else is known of an actor: the city, the year of birth, the agent (a person) and the first film."""

_GENRES = (
    "comedy",
    "crime",
    "drama",
    "fantasy",
    "horror",
    "musical",
    "mystery",
    "romance",
    "thriller",
    "western",
)
_ADJECTIVES = """
Amber Ancient Autumn Bright Broad Calm Cold Crimson Curious Daring Deep Distant Dusty Eager Early Eastern Electric Emerald
Endless Evening Faded Famous Fearless Final First Floating Flying Forgotten Fragile Fresh Friendly Glass Golden Grand
Graceful Green Happy Harmless Heavy High Honest Humble Invisible Ivory Jolly Large Late Little Long Loyal Magic Merry
Modern Mighty Misty Modest Nameless New Noble Odd Old Open Orange Pale Plain Polite Proud Purple Rapid Rare Royal Rustic
Sandy Sharp Short Simple Sleepy Slow Small Smooth Snowy Southern Spare Steady Strange Summer Swift Tall Tiny Tranquil True
Unknown Upper Vast Violet Warm Western White Wild Wise Yellow Young
"""
_NOUNS = """
Acorn Album Apple Arrow Atlas Attic Bakery Balloon Barn Basket Bell Bicycle Blanket Boat Book Bottle Bridge Brook Button
Cabin Camera Canal Canyon Castle Cellar Chapter Chimney Clock Cloud Coast Coat Corner Cottage Crown Dance Desert Dinner
Door Dream Drum Eagle Farm Fence Festival Field Fire Flag Flute Forest Fountain Fox Gate Glove Grove Guitar Hammer Harp
Hat Hill House Idea Jacket Jar Kettle Key Kite Lake Lamp Leaf Lemon Library Lion Map Maple Mask Melody Mill Moon Morning
Mountain Museum Night Notebook Ocean Office Opera Owl Painting Palace Paper Park Path Piano Picnic Pond Poem Question
Rabbit Radio Rain Raven Ribbon Ring Road Robin Roof Rope Rose Sail School Shore Song Spring Square Stage Stair Star Stone
Storm Story Street Sun Swan Table Tale Theater Thread Tide Tiger Train Tree Triangle Trumpet Tulip Umbrella Village Violin
Wagon Walk Wall Watch Water Wave Wheel Willow Wind Wolf Word Yard
"""
_PEOPLE = ("first_actor", "second_actor", "main_character")
_POOL_SEED = 0
_TINY_SEED = 20_000_000
_AGENTS = 120
"""Agents of a world: fewer than actors, so that many share one."""
TINY_DATASETS = {
    "tiny_movies": 400,
    "tiny_known_actors": 400,
    "tiny_pretraining_movies": 200,
    "tiny_articles": 100,
}
"""Data sets of the tiny pairs and their numbers of movies, drawn one after the other from one world."""
_TEXTS = ("article", *(f"retold_{number}" for number in range(1, 6)))
"""Fields of `tiny_articles` that hold what is read in training."""
_WITH_ATTRIBUTES = ("tiny_known_actors", "tiny_pretraining_movies")


@dataclass(frozen=True)
class NamePools:
    """What people and places are called."""

    first: tuple[str, ...]
    last: tuple[str, ...]
    city: tuple[str, ...]


@cache
def draw_pools() -> NamePools:
    """The pools of this version of Faker; always the same ones."""
    from faker import Faker

    fake = Faker("en_US")
    fake.seed_instance(_POOL_SEED)

    def pool(draw: Callable[[], str], draws: int) -> tuple[str, ...]:
        return tuple(sorted({draw() for _ in range(draws)}))

    return NamePools(
        first=pool(fake.first_name, 4000),
        last=pool(fake.last_name, 6000),
        city=pool(fake.city, 600),
    )


class World:
    """Draws movies: no person and no title twice, none that is taken."""

    def __init__(
        self, seed: int | str, taken: Collection[str] = (), pools: NamePools | None = None
    ) -> None:
        """Begin a world.

        Args:
            seed: Seed of all draws.
            taken: People and titles of other worlds, which this one is not to hold.
            pools: What people and places are called; `draw_pools()` by default.
        """
        self.rng = Random(seed)
        self._taken = set(taken)
        self._pools = pools or draw_pools()

    def movie(self) -> dict[str, str]:
        """One more movie, by field (see `FIELDS`)."""
        cast = self._unique(self._cast)
        (title,) = self._unique(lambda: (self._title(),))
        rng = self.rng
        details = (
            rng.randint(1990, 2030),
            rng.choice(_GENRES),
            rng.choice(self._pools.city),
            rng.randint(1, 10),
        )
        first, second, character = cast
        return dict(zip(FIELDS, (first, second, title, character, *map(str, details)), strict=True))

    def person(self) -> str:
        """One more person."""
        (name,) = self._unique(lambda: (self._name(),))
        return name

    def others(self) -> dict[str, str]:
        """People who have to do with a movie and are never asked for, by field."""
        return {field: self.person() for field in OTHERS}

    def attributes(self, agents: Sequence[str]) -> dict[str, str]:
        """What is known of an actor, by field (see `ATTRIBUTES`).

        Args:
            agents: Agents to draw from.
        """
        rng = self.rng
        (debut,) = self._unique(lambda: (self._title(),))
        values = (
            rng.choice(self._pools.city),
            str(rng.randint(1940, 2005)),
            rng.choice(agents),
            debut,
        )
        return dict(zip(ATTRIBUTES, values, strict=True))

    def movies(self, n: int) -> list[dict[str, str]]:
        """The next n movies."""
        return [self.movie() for _ in range(n)]

    def _unique(self, draw: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        while not self._taken.isdisjoint(drawn := draw()):
            pass
        self._taken.update(drawn)
        return drawn

    def _name(self) -> str:
        return f"{self.rng.choice(self._pools.first)} {self.rng.choice(self._pools.last)}"

    def _cast(self) -> tuple[str, ...]:
        # Different first names: repeating a name of the prompt is never the right answer.
        first_names = self.rng.sample(self._pools.first, len(_PEOPLE))
        return tuple(f"{first} {self.rng.choice(self._pools.last)}" for first in first_names)

    def _title(self) -> str:
        first, second = self.rng.sample(_NOUNS.split(), 2)
        adjective = self.rng.choice(_ADJECTIVES.split())
        patterns = (
            f"The {adjective} {first}",
            f"{adjective} {first}: {second}",
            f"{first} and {second}",
            f"{first} of the {adjective} {second}",
        )
        return self.rng.choice(patterns)


def people(movies: Iterable[Mapping[str, str]]) -> set[str]:
    """Everyone in these movies, characters too."""
    return {movie[field] for movie in movies for field in _PEOPLE}


def biographies(movies: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """The attributes of all actors of movies that hold them, one actor a row, whose name is `actor`."""
    return [
        {
            "actor": movie[f"{which}_actor"],
            **{name: movie[f"{which}_{name}"] for name in ATTRIBUTES},
        }
        for movie in movies
        for which in ("first", "second")
    ]


def both_directions(movies: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Each movie, then each once more with its two actors in each other's place."""
    rows = [dict(movie) for movie in movies]
    return rows + [
        {**row, "first_actor": row["second_actor"], "second_actor": row["first_actor"]}
        for row in rows
    ]


def tiny_jsonl() -> dict[str, str]:
    """The texts of the data files of `TINY_DATASETS`, by name: a header, then a movie per line.

    The files are shipped and read, not drawn again: their names are those of one version of Faker.
    """
    world = World(_TINY_SEED)
    *plain, (articles, n_articles) = TINY_DATASETS.items()
    movies = {name: world.movies(n) for name, n in plain}
    agents = [world.person() for _ in range(_AGENTS)]
    for name in _WITH_ATTRIBUTES:
        for movie in movies[name]:
            for which in ("first", "second"):
                movie.update(
                    {f"{which}_{key}": value for key, value in world.attributes(agents).items()}
                )
    told = [_told(movie, world) for movie in world.movies(n_articles)]
    return {
        **{name: _jsonl(name, rows) for name, rows in movies.items()},
        articles: _jsonl(articles, told, _TEXTS),
    }


def _told(movie: Mapping[str, str], world: World) -> dict[str, str]:
    """A movie with an article about it and shorter retellings, each with other people of its own."""
    texts = {
        name: tell({**movie, **world.others()}, RETELLING if number else ARTICLE, world.rng)
        for number, name in enumerate(_TEXTS)
    }
    return {**movie, **texts}


def _jsonl(name: str, movies: Iterable[Mapping[str, str]], texts: Sequence[str] = ()) -> str:
    """A data file; `texts` are the fields that hold what is read in training."""
    header: dict[str, object] = {
        "kgbench": 1,
        "name": name,
        "subject": "first_actor",
        "object": "second_actor",
    }
    if texts:
        header["training"] = [f"{{{field}}}" for field in texts]
    rows = [{"id": f"{name}/{number}", **movie} for number, movie in enumerate(movies)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in (header, *rows))
