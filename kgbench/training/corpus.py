"""What tiny pairs read: their tokenizer, and texts in reading order in batches of like length.

Pretraining has two kinds of movies. *Lasting* ones recur in every round, so that looking facts up
pays off: on movies that are drawn anew every time a model never learns to. Half of them appear in
all wordings, among them those of the evaluation prompts, and the other half only in the wordings of
finetuning, so that what is read in one wording is worth knowing in another. *Passing* ones, in all
wordings, keep the names of actors from being a closed list. The lasting movies are a shipped data
set.

Every actor has a city, a year of birth, an agent and a first film. So do the actors of
`tiny_known_actors`, whose movies are not in pretraining: actors that a recipient knows from other
facts. Movies have articles about them, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
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
    "load_tokenizer",
    "passing_texts",
    "pretraining_movies",
    "pretraining_rounds",
    "save_tokenizer",
    "tokenizer_texts",
    "train_tokenizer",
]

KNOWN = "tiny_known_actors"
"""Data set whose actors are known from facts other than its own."""

IGNORED = -100
"""Label of a token that the loss ignores."""

_PAD, _BOS, _EOS = "<pad>", "<bos>", "<eos>"

Movies = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Batches(Dataset[dict[str, torch.Tensor]]):
    """All steps of a run in order: padded token ids [text, token], and labels."""

    rows: Sequence[Sequence[Sequence[int]]]
    """Token ids by step and text."""
    pad: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        # Padding is on the right and attention is causal, so no attention mask is needed.
        ids, labels = (_even(self.rows[step], filler) for filler in (self.pad, IGNORED))
        return {"input_ids": ids, "labels": labels}


def _even(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def tokenizer_texts(recipe: Recipe, seed: int, facts: Movies) -> list[str]:
    """Texts of a separate world, in all wordings."""
    templates = training_templates()
    wordings = templates.finetuning + templates.wordings + templates.background
    world = _world(f"tokenizer {seed}", facts)
    movies = world.movies(recipe.tokenizer_movies)
    return fill_all(wordings, movies) + _articles(movies, world) + _lives(movies, world)


def pretraining_rounds(recipe: Recipe, seed: int, facts: Movies) -> list[list[str]]:
    """The texts of each round of pretraining.

    They contain neither `facts` nor a movie of another data set of the tiny pairs.
    """
    templates = training_templates()
    wordings = templates.finetuning + templates.wordings
    world = _world(f"pretraining {seed}", facts)
    lasting = pretraining_movies()[: recipe.lasting_movies]
    half = len(lasting) // 2
    known = fill_all(wordings, both_directions(lasting[:half]))
    known += fill_all(templates.finetuning, both_directions(lasting[half:]))
    actors = biographies([*lasting, *_movies(KNOWN)[: 2 * recipe.lasting_movies]])
    rounds = []
    for _ in range(recipe.pretraining.rounds):
        rounds.append(known + _round(recipe, world, lasting, actors))
    return rounds


def _round(recipe: Recipe, world: World, lasting: Movies, actors: Movies) -> list[str]:
    """The texts of one round of pretraining, except those of the lasting movies' wordings."""
    templates = training_templates()
    passing = world.movies(recipe.passing_movies)
    texts = fill_all(templates.finetuning + templates.wordings + templates.background, passing)
    for actor in actors:
        texts += biography(actor, world.rng)
    return texts + _articles([*lasting, *passing], world) + _lives(passing, world)


def finetuning_rounds(recipe: Recipe, facts: Movies) -> list[list[str]]:
    """The texts of each round of finetuning: all finetuning wordings, in both directions."""
    texts = fill_all(training_templates().finetuning, both_directions(facts))
    return [texts] * recipe.finetuning.rounds


def pretraining_movies() -> list[dict[str, str]]:
    """The movies of every round of pretraining; the first half of them in all wordings."""
    return _movies("tiny_pretraining_movies")


def known_movies(recipe: Recipe, n: int) -> list[dict[str, str]]:
    """The first movies that a recipient was pretrained on, of those in all wordings."""
    return pretraining_movies()[: min(n, recipe.lasting_movies // 2)]


def passing_texts(n: int) -> list[str]:
    """Distinct texts about movies and towns that no question is about."""
    world, templates = World("supplement"), training_templates()
    texts: dict[str, None] = {}
    while len(texts) < n:
        texts.update(dict.fromkeys(fill_all(templates.background, [world.movie()])))
    return list(texts)[:n]


def _articles(movies: Movies, world: World) -> list[str]:
    """An article about each movie, with people of that movie alone."""
    return [article({**movie, **world.others()}, ARTICLE, world.rng) for movie in movies]


def _lives(movies: Movies, world: World) -> list[str]:
    """Biographies of the actors of passing movies."""
    agents = [movie["main_character"] for movie in movies]
    texts: list[str] = []
    for movie in movies:
        for role in ("first_actor", "second_actor"):
            actor = {"actor": movie[role], **world.attributes(agents)}
            texts += biography(actor, world.rng)
    return texts


def _movies(name: str) -> list[dict[str, str]]:
    movies = []
    for fact in load_dataset(name).facts:
        movies.append({key: str(value) for key, value in fact.fields.items()})
    return movies


def _world(seed: str, facts: Movies) -> World:
    """A world without the names of `facts` and of the data sets of the tiny pairs."""
    names = set()
    for movies in (facts, *map(_movies, TINY_DATASETS)):
        names |= people(movies)
        names |= {movie["movie_title"] for movie in movies}
    return World(seed, names)


def batched(
    rounds: Iterable[Sequence[str]], tokenizer: PreTrainedTokenizerFast, size: int, rng: Random
) -> Batches:
    """Group the texts of each round by length, for little padding, and shuffle the groups.

    Args:
        rounds: Texts by round; the order of rounds stays.
        tokenizer: Tokenizer; EOS is added to each text.
        size: Texts in a batch.
        rng: Source of the order.
    """
    steps: list[list[list[int]]] = []
    eos, pad = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)
    for texts in rounds:
        rows = [[*ids, eos] for ids in tokenizer(list(texts))["input_ids"]]
        steps.extend(grouped(rows, size, rng))
    return Batches(steps, pad)


def grouped(rows: Iterable[list[int]], size: int, rng: Random) -> list[list[list[int]]]:
    """The steps of one round: token ids in groups of like length, the groups shuffled."""
    ordered = list(rows)
    rng.shuffle(ordered)
    ordered.sort(key=len)
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    rng.shuffle(groups)
    return groups


def train_tokenizer(texts: Iterable[str], vocabulary: int, bos: bool) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    Args:
        texts: Texts to compress.
        vocabulary: Number of tokens, including special ones and the 256 bytes.
        bos: Whether it has a BOS token, which it puts before every text; otherwise EOS is named
            BOS too, and nothing is added.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [_PAD, _BOS, _EOS] if bos else [_PAD, _EOS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if bos:
        first = (_BOS, tokenizer.token_to_id(_BOS))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{_BOS} $A", pair=f"{_BOS} $A {_BOS} $B:1", special_tokens=[first]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=_PAD, bos_token=_BOS if bos else _EOS, eos_token=_EOS
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write a tokenizer, without the white space that is more than half of its file."""
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """A stored tokenizer."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        directory, local_files_only=True
    )
    return tokenizer
