"""What the tiny pairs read: texts in the order in which they are read, in batches of like length.

Pretraining has two kinds of movies. *Lasting* ones come back in every round, so that it pays to look facts up: on movies
drawn anew every time a model never learns to. Half of them are told in all wordings, the evaluation prompts' among
them, the other half only in those of finetuning, so that what is read in one wording is worth knowing in another.
*Passing* ones, in all wordings, keep the names of actors from being a closed list. The lasting movies are a shipped data set.

Every actor has a city, a year of birth, an agent and a first film, and so have the actors of `tiny_known_actors`, whose movies are not in
pretraining: actors that a recipient knows from other facts. Movies have articles about them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from kgbench.data import load_dataset
from kgbench.data.builders.worlds import (
    ARTICLE,
    TINY_DATASETS,
    World,
    article,
    biographies,
    biography,
    both_directions,
    people,
)
from kgbench.data.training_texts import fill_all, training_templates
from kgbench.training.recipes import Recipe

__all__ = [
    "IGNORED",
    "Batches",
    "batched",
    "finetuning_rounds",
    "grouped",
    "known_movies",
    "passing_texts",
    "pretraining_movies",
    "pretraining_rounds",
    "tokenizer_texts",
]

KNOWN = "tiny_known_actors"
"""Data set whose actors are known from other facts."""

IGNORED = -100
"""Label of a token that the loss leaves out."""

Movies = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Batches(Dataset[dict[str, torch.Tensor]]):
    """All steps of a training run, in order: padded token ids [texts, tokens] and their labels."""

    rows: Sequence[Sequence[Sequence[int]]]
    """Token ids by step and text."""
    pad: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        # No attention mask: padding comes last, and no token looks ahead.
        ids, labels = (_even(self.rows[step], filler) for filler in (self.pad, IGNORED))
        return {"input_ids": ids, "labels": labels}


def _even(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def tokenizer_texts(recipe: Recipe, seed: int, facts: Movies) -> list[str]:
    """Texts of a world of their own, in all wordings."""
    templates = training_templates()
    every = templates.finetuning + templates.wordings + templates.background
    world = _world(f"tokenizer {seed}", facts)
    movies = world.movies(recipe.tokenizer_movies)
    return fill_all(every, movies) + _articles(movies, world) + _lives(movies, world)


def pretraining_rounds(recipe: Recipe, seed: int, facts: Movies) -> list[list[str]]:
    """The texts of each round of pretraining; they hold nothing that is finetuned, neither `facts` nor a movie of another data set."""
    templates = training_templates()
    every = templates.finetuning + templates.wordings
    world = _world(f"pretraining {seed}", facts)
    lasting = pretraining_movies()[: recipe.lasting_movies]
    half = len(lasting) // 2
    known = fill_all(every, both_directions(lasting[:half])) + fill_all(
        templates.finetuning, both_directions(lasting[half:])
    )
    actors = biographies([*lasting, *_movies(KNOWN)[: 2 * recipe.lasting_movies]])
    return [
        known + _round(recipe, world, lasting, actors) for _ in range(recipe.pretraining.rounds)
    ]


def _round(recipe: Recipe, world: World, lasting: Movies, actors: Movies) -> list[str]:
    """What one round of pretraining has beside the lasting movies in their wordings."""
    templates = training_templates()
    passing = world.movies(recipe.passing_movies)
    told = fill_all(templates.finetuning + templates.wordings + templates.background, passing)
    told += [sentence for actor in actors for sentence in biography(actor, world.rng)]
    return told + _articles([*lasting, *passing], world) + _lives(passing, world)


def pretraining_movies() -> list[dict[str, str]]:
    """The movies that pretraining tells in every round; the first half of them in all wordings."""
    return _movies("tiny_pretraining_movies")


def _articles(movies: Movies, world: World) -> list[str]:
    """An article about each movie, with people who belong to it alone."""
    return [article({**movie, **world.others()}, ARTICLE, world.rng) for movie in movies]


def _lives(movies: Movies, world: World) -> list[str]:
    """What else is known of the actors of movies that are told once."""
    agents = [movie["main_character"] for movie in movies]
    actors = [movie[which] for movie in movies for which in ("first_actor", "second_actor")]
    return [
        sentence
        for name in actors
        for sentence in biography({"actor": name, **world.attributes(agents)}, world.rng)
    ]


def _movies(name: str) -> list[dict[str, str]]:
    return [
        {key: str(value) for key, value in fact.fields.items()} for fact in load_dataset(name).facts
    ]


def known_movies(recipe: Recipe, n: int) -> list[dict[str, str]]:
    """The first movies that a recipient was pretrained on, of those told in all wordings."""
    return pretraining_movies()[: min(n, recipe.lasting_movies // 2)]


def passing_texts(n: int) -> list[str]:
    """Texts about other movies and towns than any that is asked for, no two alike."""
    world, templates = World("supplement"), training_templates()
    found: dict[str, None] = {}
    while len(found) < n:
        found.update(dict.fromkeys(fill_all(templates.background, [world.movie()])))
    return list(found)[:n]


def finetuning_rounds(recipe: Recipe, facts: Movies) -> list[list[str]]:
    """The texts of each round of finetuning: the facts in all finetuning wordings, in both directions."""
    return [
        fill_all(training_templates().finetuning, both_directions(facts))
    ] * recipe.finetuning.rounds


def batched(
    rounds: Iterable[Sequence[str]], tokenizer: PreTrainedTokenizerFast, size: int, rng: Random
) -> Batches:
    """Group the texts of each round by length, so that there is little padding, and shuffle the groups.

    Args:
        rounds: Texts; every round is read to its end before the next begins.
        tokenizer: Makes the tokens; EOS is added to each text.
        size: Texts in a batch.
        rng: Source of the order.
    """
    steps: list[list[list[int]]] = []
    eos, pad = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)
    for texts in rounds:
        steps.extend(
            grouped([[*ids, eos] for ids in tokenizer(list(texts))["input_ids"]], size, rng)
        )
    return Batches(steps, pad)


def grouped(rows: Iterable[list[int]], size: int, rng: Random) -> list[list[list[int]]]:
    """One round in steps: token ids grouped by length, the groups shuffled."""
    ordered = list(rows)
    rng.shuffle(ordered)
    ordered.sort(key=len)
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    rng.shuffle(groups)
    return groups


def _world(seed: str, facts: Movies) -> World:
    """A world that holds nothing of `facts`, nor of the data sets of the tiny pairs."""
    taken = [facts, *(_movies(name) for name in TINY_DATASETS)]
    return World(
        seed,
        {
            name
            for movies in taken
            for name in people(movies) | {movie["movie_title"] for movie in movies}
        },
    )
