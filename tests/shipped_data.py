"""Builders of the shipped data sets of invented facts; tests hold the files to them.

Names come from Faker's English pools and depend on its version, so that the files are what counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from faker import Faker

from kgbench.errors import InputError
from kgbench.zoo.worlds import (
    ARTICLE,
    GENRES,
    TINY_DATASETS,
    Shape,
    World,
    article,
    data_file,
    draw_new,
)

# -------------------------------------------------------------------------- data of the tiny pairs

RETELLING: Shape = {"cast": 2, "film": 1, "plot": 1, "reception": 0, "others": 1}
"""Sentences of a shorter article by kind."""

_TINY_SEED = 20_000_000
_AGENTS = 120
"""Agents of a world: fewer than actors, so that many share one."""
_TEXTS = ("article", *(f"retold_{number}" for number in range(1, 6)))
"""Fields of `tiny_articles` that hold training texts."""
_WITH_ATTRIBUTES = ("tiny_known_actors", "tiny_pretraining_movies")


def tiny_jsonl() -> dict[str, str]:
    """The texts of the data files of `TINY_DATASETS`, by name: a header, then a movie per line.

    The files are shipped and read, not drawn again: their names are those of one version of Faker.
    """
    world = World(_TINY_SEED)
    *plain, (articles, n_articles) = TINY_DATASETS.items()
    movies = {}
    for name, n in plain:
        movies[name] = world.movies(n)
    agents = [world.person() for _ in range(_AGENTS)]
    for name in _WITH_ATTRIBUTES:
        for movie in movies[name]:
            for which in ("first", "second"):
                for key, value in world.attributes(agents).items():
                    movie[f"{which}_{key}"] = value
    movies[articles] = world.movies(n_articles)
    for movie in movies[articles]:
        for name in _TEXTS:  # an article and shorter retellings, each with other people
            shape = ARTICLE if name == _TEXTS[0] else RETELLING
            movie[name] = article({**movie, **world.others()}, shape, world.rng)
    texts = {}
    for name, rows in movies.items():
        numbered = [{"id": f"{name}/{number}", **movie} for number, movie in enumerate(rows)]
        texts[name] = data_file(name, numbered, _TEXTS if name == articles else ())
    return texts


# ------------------------------------------------------------------------------ movies by any actors

FAKE_MOVIES = "fake_movies_fake_actors"
"""Name of the data set that `generate_fake_movies` makes."""
REAL_ACTORS = "fake_movies_real_actors"
"""Name of the data set that it makes with the names of real performers."""

_FAKE_ADJECTIVES = """
Ashen Blind Bitter Borrowed Broken Burning Buried Careless Clever Copper Crooked Distant Double Empty Faithful Final
Foreign Frozen Gentle Gilded Hidden Hollow Hungry Idle Iron Last Lightless Lonely Lost Lucky Marble Midnight Narrow
Northern Painted Paper Patient Perfect Quiet Restless Scarlet Second Secret Seventh Silent Silver Sleeping Stolen
Stubborn Sudden Sunken Tender Unwritten Velvet Wandering Wicked Wooden
"""
_FAKE_NOUNS = """
Alibi Anchor Archive Avenue Balcony Ballad Bargain Beacon Bridge Candle Carnival Cathedral Circus Comet Compass Corridor
Courier Cradle Curtain Diary Disguise Echo Embassy Engine Errand Feather Ferry Fortune Garden Gambler Glacier Gondola
Harbor Harvest Horizon Hotel Island Journey Kingdom Ladder Lantern Letter Lighthouse Locksmith Market Meadow Mirror
Monument Mountain Oath Orchard Orchestra Parade Passenger Pilgrim Portrait Promise Prophet Puzzle Railway Reunion River
Rumor Season Shadow Signal Silence Sparrow Station Stranger Sundial Tailor Thunder Ticket Tower Tunnel Valley Verdict
Voyage Waltz Wedding Whisper Window Winter
"""


def generate_fake_movies(
    n: int = 1000, seed: int = 0, performers: Sequence[str] = ()
) -> list[dict[str, str | int]]:
    """Draw invented movies with invented actors or, where names are given, with these.

    No person is drawn twice, in any role, and no title; names are a first and a last name, without
    title or suffix; the people of one movie have different first names. The result depends on the
    version of Faker.

    Args:
        n: Number of movies.
        seed: Seed of names, titles and everything else.
        performers: Names of the actors, in any order; two a movie are used.

    Returns:
        Rows as in the data file, by field; box_office is in millions.

    Raises:
        InputError: n is not positive, or more than there are titles and names for.
    """
    from faker import Faker

    name = REAL_ACTORS if performers else FAKE_MOVIES
    if n < 1:
        raise InputError(f"the number of movies must be 1 or more, got {n}")
    rng = Random(seed)
    fake = Faker("en_US")
    fake.seed_instance(seed)
    people: set[str] = set(performers)
    titles: set[str] = set()
    couples = _couples(performers, n, Random(seed)) if performers else None
    rows: list[dict[str, str | int]] = []
    for number in range(1, n + 1):
        first, second, character = draw_new(lambda: _fake_cast(fake), people)
        if couples is not None:
            first, second = couples[number - 1]
        (title,) = draw_new(lambda: (_fake_title(rng),), titles)
        rows.append(
            {
                "id": f"{name}/{number}",
                "first_actor": first,
                "second_actor": second,
                "movie_title": title,
                "main_character": character,
                "year": rng.randint(1990, 2030),
                "genre": rng.choice(GENRES),
                "city": fake.city(),
                "box_office": rng.randint(1, 10),
            }
        )
    return rows


def fake_movies_jsonl(n: int = 1000, seed: int = 0, performers: Sequence[str] = ()) -> str:
    """The text of the data file: a header, then one row of `generate_fake_movies` per line."""
    name = REAL_ACTORS if performers else FAKE_MOVIES
    return data_file(name, generate_fake_movies(n, seed, performers))


def _couples(performers: Sequence[str], n: int, rng: Random) -> list[tuple[str, str]]:
    """Two performers of different first names for each movie, none twice."""
    if len(set(performers)) < 2 * n:
        raise InputError(
            f"{n} movies need {2 * n} different performers, got {len(set(performers))}; "
            "ask for fewer movies"
        )
    waiting = sorted(set(performers))
    rng.shuffle(waiting)
    couples: list[tuple[str, str]] = []
    while len(couples) < n:
        first = waiting.pop()
        other = next(
            (i for i in reversed(range(len(waiting))) if waiting[i].split()[0] != first.split()[0]),
            None,
        )
        if other is None:
            raise InputError(
                f"only {len(couples)} of {n} movies can have two actors of different first names; "
                "ask for fewer movies"
            )
        couples.append((first, waiting.pop(other)))
    return couples


def _fake_cast(fake: Faker) -> tuple[str, ...]:
    """Three people of different first names: repeating a name of the prompt is never right."""
    first_names: dict[str, None] = {}
    while len(first_names) < 3:
        first_names[fake.first_name()] = None
    return tuple(f"{first} {fake.last_name()}" for first in first_names)


def _fake_title(rng: Random) -> str:
    # No names of people: a title that holds the answer's first name would give it away.
    adjective = rng.choice(_FAKE_ADJECTIVES.split())
    first, second = rng.sample(_FAKE_NOUNS.split(), 2)
    patterns = (
        f"The {adjective} {first}",
        f"{first} of the {adjective} {second}",
        f"The {first} and the {adjective} {second}",
        f"One {first} for the {second}",
        f"Beyond the {adjective} {first}",
        f"No {first} but the {adjective} {second}",
    )
    return rng.choice(patterns)


# ------------------------------------------------------------------------------- years of battles

AWAY = 50
"""Fewest years between an invented year and the true one."""
_LAST = 2000


def invented_years(true_years: Sequence[int], seed: int = 0) -> list[int]:
    """For each true year a wrong one, 1 to 2000, all different, at least `AWAY` years away.

    Raises:
        InputError: There are too many to give each a year of its own.
    """
    rng, years = Random(seed), list(range(1, _LAST + 1))
    if len(true_years) > len(years) // 4:
        raise InputError(
            f"at most {len(years) // 4} years can be drawn, asked for {len(true_years)}"
        )
    rng.shuffle(years)
    invented = []
    for true in true_years:
        place = next(i for i, year in enumerate(years) if abs(year - true) >= AWAY)
        invented.append(years.pop(place))
    return invented
