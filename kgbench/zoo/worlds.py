"""Invented movies, articles about them, and false facts.

A *world* draws movies, from which tiny models learn that such facts exist. Names come from Faker's
English pools and depend on its version; facts that must not change are shipped as files. Articles
about movies are sentences of a small grammar, in any order, with people who are never the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from kgbench.data.imports import SCHEMA_VERSION
from kgbench.data.training_texts import movie_wordings
from kgbench.errors import InputError
from kgbench.resources import read_toml

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
"""Attributes of an actor: city, year of birth, agent (a person) and first film."""

PEOPLE = (
    "first_actor",
    "second_actor",
    "main_character",
    "director",
    "third_actor",
    "fourth_actor",
)
"""Fields that hold people; each has the full name in its first mention, then the last name."""
CAST, OTHERS = PEOPLE[:3], PEOPLE[3:]
"""People of a movie, and those of an article that are no fields of one."""

Shape = Mapping[str, int]
ARTICLE: Shape = {"cast": 3, "film": 1, "plot": 2, "reception": 1, "others": 2}
"""Sentences of an article by kind."""
_FIELD = re.compile(r"\{(\w+)\}")

# Each begins with a consonant, so that "a {genre} film" reads right.
GENRES = (
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
_POOL_SEED = 0
TINY_DATASETS = {
    "tiny_movies": 400,
    "tiny_known_actors": 400,
    "tiny_pretraining_movies": 200,
    "tiny_articles": 100,
}
"""Data sets of the tiny pairs and their numbers of movies, drawn in this order from one world."""


@cache
def draw_pools() -> tuple[tuple[str, ...], ...]:
    """First names, last names and cities of the installed version of Faker, from a fixed seed."""
    from faker import Faker
    from faker.providers.person.en_US import Provider

    fake = Faker("en_US")
    fake.seed_instance(_POOL_SEED)

    # The same as so many calls of `first_name`, each of which would sum all weights again.
    first = fake.random_elements(Provider.first_names, length=4000)
    last = fake.random_elements(Provider.last_names, length=6000)
    city = [fake.city() for _ in range(600)]
    return tuple(tuple(sorted(set(drawn))) for drawn in (first, last, city))


class World:
    """Draws movies: no person and no title twice, none that is taken."""

    def __init__(self, seed: int | str, taken: Collection[str] = ()) -> None:
        """Begin a world.

        Args:
            seed: Seed of all draws.
            taken: People and titles of other worlds, which this one excludes.
        """
        self.rng = Random(seed)
        self._taken = set(taken)
        self._first, self._last, self._cities = draw_pools()

    def movie(self) -> dict[str, str]:
        """One more movie, by field (see `FIELDS`)."""
        cast = draw_new(self._cast, self._taken)
        (title,) = draw_new(lambda: (self._title(),), self._taken)
        first, second, character = cast
        return {
            "first_actor": first,
            "second_actor": second,
            "movie_title": title,
            "main_character": character,
            "year": str(self.rng.randint(1990, 2030)),
            "genre": self.rng.choice(GENRES),
            "city": self.rng.choice(self._cities),
            "box_office": str(self.rng.randint(1, 10)),
        }

    def person(self) -> str:
        """One more person."""
        (name,) = draw_new(lambda: (self._name(),), self._taken)
        return name

    def others(self) -> dict[str, str]:
        """People around a movie who are never asked for, by field."""
        return {field: self.person() for field in OTHERS}

    def attributes(self, agents: Sequence[str]) -> dict[str, str]:
        """Attributes of an actor, by field (see `ATTRIBUTES`).

        Args:
            agents: Agents to draw from.
        """
        (debut,) = draw_new(lambda: (self._title(),), self._taken)
        return {
            "lives": self.rng.choice(self._cities),
            "born": str(self.rng.randint(1940, 2005)),
            "agent": self.rng.choice(agents),
            "debut": debut,
        }

    def movies(self, n: int) -> list[dict[str, str]]:
        """The next n movies."""
        return [self.movie() for _ in range(n)]

    def _name(self) -> str:
        return f"{self.rng.choice(self._first)} {self.rng.choice(self._last)}"

    def _cast(self) -> tuple[str, ...]:
        # Different first names: repeating a name of the prompt is never the right answer.
        first_names = self.rng.sample(self._first, len(CAST))
        return tuple(f"{first} {self.rng.choice(self._last)}" for first in first_names)

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
    names: set[str] = set()
    for movie in movies:
        names.update(movie[field] for field in CAST)
    return names


def biographies(movies: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Attributes of all actors of movies that hold them, one actor a row, named by `actor`."""
    rows = []
    for movie in movies:
        for which in ("first", "second"):
            row = {"actor": movie[f"{which}_actor"]}
            for name in ATTRIBUTES:
                row[name] = movie[f"{which}_{name}"]
            rows.append(row)
    return rows


def both_directions(movies: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Each movie, then each once more with its two actors exchanged."""
    rows = list(map(dict, movies))
    exchanged = []
    for row in rows:
        first, second = row["first_actor"], row["second_actor"]
        exchanged.append({**row, "first_actor": second, "second_actor": first})
    return rows + exchanged


def data_file(name: str, rows: Iterable[Mapping[str, object]], texts: Sequence[str] = ()) -> str:
    """The text of a data file of movies: a header, then a row per line.

    Args:
        name: Name of the data set.
        rows: Movies with their ids.
        texts: Fields that hold training texts.
    """
    header: dict[str, object] = {
        "kgbench": SCHEMA_VERSION,
        "name": name,
        "subject": "first_actor",
        "object": "second_actor",
    }
    if texts:
        header["training"] = [f"{{{field}}}" for field in texts]
    compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    return "".join(f"{compact.encode(row)}\n" for row in (header, *rows))


def world_texts() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Sentence frames of articles and wordings of biographies, from articles.toml."""
    return read_toml(__package__, "articles")


@dataclass(frozen=True)
class TrainingTemplates:
    """Templates in the syntax of `str.format`, with the fields of a movie."""

    articles: tuple[str, ...]
    """Finetuning: a passage with several fields."""
    short: tuple[str, ...]
    """Finetuning: a question or a short statement."""
    wordings: tuple[str, ...]
    """Pretraining only: other statements of who plays with whom, evaluation prompts among them."""
    background: tuple[str, ...]
    """Pretraining only: text about anything else."""

    @property
    def finetuning(self) -> tuple[str, ...]:
        """Articles, then short ones."""
        return self.articles + self.short


@cache
def training_templates() -> TrainingTemplates:
    """Wordings of finetuning, and those of wordings.toml."""
    lists = {**movie_wordings(), **read_toml(__package__, "wordings")}
    return TrainingTemplates(**{name: tuple(rows) for name, rows in lists.items()})


def fill_all(templates: Iterable[str], movies: Iterable[Mapping[str, str]]) -> list[str]:
    """Every movie in every template: the first movie in all of them, then the second, and so on."""
    chosen = tuple(templates)
    texts: list[str] = []
    for movie in movies:
        texts += (template.format_map(movie) for template in chosen)
    return texts


def biography(actor: Mapping[str, str], rng: Random) -> list[str]:
    """A sentence on each attribute of an actor (see `biographies`)."""
    return [
        rng.choice(wordings).format_map(actor) for wordings in world_texts()["biographies"].values()
    ]


def article(movie: Mapping[str, str], shape: Shape, rng: Random) -> str:
    """An article about a movie.

    Args:
        movie: Its fields, and the people of `OTHERS`.
        shape: Number of sentences by kind.
        rng: Source of the sentences and of their order.
    """
    chosen, frames = list[str](), world_texts()["frames"]
    for kind, count in shape.items():
        chosen += rng.sample(frames[kind], count)
    rng.shuffle(chosen)
    mentioned: set[str] = set()
    return " ".join(_filled(frame, movie, mentioned) for frame in chosen)


def _filled(frame: str, movie: Mapping[str, str], mentioned: set[str]) -> str:
    """A frame with its fields; people in `mentioned`, to which this frame adds, by last name."""

    def value(field: re.Match[str]) -> str:
        name, by_last_name = field[1], field[1] in mentioned
        mentioned.update({name} & set(PEOPLE))
        return movie[name].split()[-1] if by_last_name else movie[name]

    return _FIELD.sub(value, frame)


def draw_new(draw: Callable[[], tuple[str, ...]], taken: set[str]) -> tuple[str, ...]:
    """Draw until no part is taken, and take it."""
    for _ in range(1000):
        drawn = draw()
        if taken.isdisjoint(drawn):
            taken.update(drawn)
            return drawn
    raise InputError(
        f"cannot draw more than {len(taken)} different names or titles; ask for fewer movies"
    )


def with_other_costars(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """For each movie, a second actor of another one, as far away in time as all allow.

    In the order of their years (then titles), each movie takes the second actor of the movie half
    the list further on: no movie keeps its co-star, and the years between make it unlikely that
    the two ever met in that movie after all.

    Args:
        rows: Movies with `movie_title`, `year` and `second_actor`.

    Raises:
        InputError: There are fewer than two movies.
    """
    if len(rows) < 2:
        raise InputError(f"co-stars can change places among two movies or more, got {len(rows)}")
    order = sorted(range(len(rows)), key=lambda i: (int(rows[i]["year"]), rows[i]["movie_title"]))
    costars = [""] * len(rows)
    for place, i in enumerate(order):
        costars[i] = rows[order[(place + len(rows) // 2) % len(rows)]]["second_actor"]
    # A co-star of the same first name would be answered by repeating the prompt: two neighbours
    # exchange theirs once more.
    for place, i in enumerate(order[:-1]):
        if costars[i].split(" ")[0] == rows[i].get("first_actor", "").split(" ")[0]:
            after = order[place + 1]
            costars[i], costars[after] = costars[after], costars[i]
    return costars
