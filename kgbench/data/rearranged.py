"""False statements about real things, made from true rows: what finetuning is to overwrite.

Both functions take the rows as they are shipped and give what the data sets hold, so that a test can make them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from kgbench.errors import InputError

__all__ = ["AWAY", "invented_years", "with_other_costars"]

AWAY = 50
"""Fewest years between an invented year and the true one."""
_LAST = 2000


def with_other_costars(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """For each movie, a second actor of another one, from as far away in time as can be had for all.

    In the order of their years (then titles), each movie takes the second actor of the movie half the list further on: nobody keeps a
    co-star, and the years between make it unlikely that the two ever met in that movie after all.

    Args:
        rows: Movies with `movie_title`, `year` and `second_actor`.

    Raises:
        InputError: There are fewer than two movies.
    """
    if len(rows) < 2:
        raise InputError(f"co-stars can change places among two movies or more, got {len(rows)}")
    order = sorted(range(len(rows)), key=lambda i: (int(rows[i]["year"]), rows[i]["movie_title"]))
    found = [""] * len(rows)
    for place, i in enumerate(order):
        found[i] = rows[order[(place + len(rows) // 2) % len(rows)]]["second_actor"]
    # A co-star of the same first name would be answered by repeating the prompt: two neighbours change theirs once more.
    for place, i in enumerate(order[:-1]):
        if _first(found[i]) == _first(rows[i].get("first_actor", "")):
            after = order[place + 1]
            found[i], found[after] = found[after], found[i]
    return found


def _first(name: str) -> str:
    return name.split(" ")[0]


def invented_years(true_years: Sequence[int], seed: int = 0) -> list[int]:
    """For each true year a wrong one, 1 to 2000, no year twice, at least `AWAY` years from the true one.

    Raises:
        InputError: There are too many to give each a year of its own.
    """
    rng, years = Random(seed), list(range(1, _LAST + 1))
    if len(true_years) > len(years) // 4:
        raise InputError(
            f"at most {len(years) // 4} years can be drawn, asked for {len(true_years)}"
        )
    rng.shuffle(years)
    found = []
    for true in true_years:
        place = next(i for i, year in enumerate(years) if abs(year - true) >= AWAY)
        found.append(years.pop(place))
    return found
