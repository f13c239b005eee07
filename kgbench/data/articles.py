"""Articles about movies: sentences of a small grammar, in any order, with people who are never the answer."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ARTICLE", "OTHERS", "PEOPLE", "RETELLING", "biography", "frames", "tell", "world_texts"]

PEOPLE = (
    "first_actor",
    "second_actor",
    "main_character",
    "director",
    "third_actor",
    "fourth_actor",
)
"""Fields that hold people; each is told by the full name once, then by the last name."""
OTHERS = PEOPLE[3:]
"""Those of an article that are no fields of a movie."""

Shape = Mapping[str, int]
ARTICLE: Shape = {"cast": 3, "film": 1, "plot": 2, "reception": 1, "others": 2}
"""Sentences of an article by kind."""
RETELLING: Shape = {"cast": 2, "film": 1, "plot": 1, "reception": 0, "others": 1}
"""Sentences of a shorter one."""

_FIELD = re.compile(r"\{(\w+)\}")


@cache
def world_texts() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """Sentence frames of articles and wordings of biographies, from articles.toml."""
    return tomllib.loads((Path(__file__).parent / "articles.toml").read_text(encoding="utf-8"))


def frames() -> Mapping[str, Sequence[str]]:
    """Sentence frames by kind."""
    return world_texts()["frames"]


def biography(actor: Mapping[str, str], rng: Random) -> list[str]:
    """A sentence on each attribute of an actor (see `kgbench.data.worlds.biographies`)."""
    return [
        rng.choice(wordings).format_map(actor) for wordings in world_texts()["biographies"].values()
    ]


def tell(movie: Mapping[str, str], shape: Shape, rng: Random) -> str:
    """An article about a movie.

    Args:
        movie: Its fields, and the people of `OTHERS`.
        shape: Number of sentences by kind.
        rng: Source of the sentences and of their order.
    """
    chosen = [frame for kind, count in shape.items() for frame in rng.sample(frames()[kind], count)]
    rng.shuffle(chosen)
    told: set[str] = set()
    return " ".join(_filled(frame, movie, told) for frame in chosen)


def _filled(frame: str, movie: Mapping[str, str], told: set[str]) -> str:
    """A frame with its fields; people in `told`, to which those of this frame are added, by their last names."""

    def value(field: re.Match[str]) -> str:
        name, known = field[1], field[1] in told
        told.update({name} & set(PEOPLE))
        return movie[name].split()[-1] if known else movie[name]

    return _FIELD.sub(value, frame)
