"""Build a tiny pair from nothing: tokenizer, pretraining, finetuning, scores and card.

Pretraining has two kinds of movies. *Lasting* ones recur in every round, so that looking facts up
pays off: on movies that are new every time a model never learns to. Half of them appear in
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
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from kgbench.data import Dataset, load_dataset
from kgbench.data.facts import hash_of
from kgbench.errors import check_choice
from kgbench.models.catalog import CARD, DELTA, read_pair_card
from kgbench.models.checkpoints import Checkpoint
from kgbench.models.family_map import load_family
from kgbench.models.library import quiet_library
from kgbench.models.loading import read_pair
from kgbench.models.pair import ModelPair
from kgbench.models.tensors import CHANGE, STEP, stored_hash
from kgbench.progress import Progress
from kgbench.resources import read_toml
from kgbench.runner.training.hit_rates import PROMPTS, configuration_hits
from kgbench.runner.training.model_setup import ATTENTION, freeze, load_recipient, publish_files
from kgbench.runner.training.recipes import Stage, finetuning_recipe
from kgbench.runner.training.resumable_build import Build, versions, whole_folder, write_card
from kgbench.runner.training.stages import SAVE_EVERY, Batches, StageOutcome, grouped
from kgbench.testing.pico import byte_tokenizer
from kgbench.zoo.worlds import (
    ARTICLE,
    TINY_DATASETS,
    World,
    article,
    biographies,
    biography,
    both_directions,
    fill_all,
    people,
    training_templates,
    world_texts,
)

PARTS = {"recipient": "pretraining", "sft": "finetuning"}
"""Folders of a pair, and the stage of the recipe that each results from."""

STEPS = 127
"""Most steps of a change, which is held in 8 bits."""


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a tiny pair, except the seed."""

    name: str
    model_type: str
    config: Mapping[str, Any] = field(hash=False)
    """Arguments of the model's configuration that do not follow from the tokenizer."""
    bos: bool
    """Whether the tokenizer puts BOS before every text."""
    dataset: str
    """Facts that the donor learns: a shipped data set, so that no version of Faker matters."""
    seed: int
    """Seed of the shipped pair."""
    vocabulary: int
    """Number of tokens."""
    tokenizer_movies: int
    """Movies whose texts train the tokenizer."""
    lasting_movies: int
    """Movies that every round of pretraining repeats."""
    passing_movies: int
    """Movies that are drawn for one round only."""
    pretraining: Stage
    finetuning: Stage
    frozen: bool = True
    """Whether finetuning leaves embeddings, final norm and head unchanged.

    The donor is then stored as its changed weights.
    """


@cache
def _pair_recipes() -> Mapping[str, Recipe]:
    tables = read_toml(__package__, "recipes")
    shared, recipes = tables["shared"], {}
    for name, table in tables["pairs"].items():
        stages = {
            "pretraining": Stage(**shared["pretraining"]),
            "finetuning": finetuning_recipe("frozen", 0, model_type=table["model_type"]).stage,
        }
        recipes[name] = Recipe(name=name, **{**shared, **table, **stages})
    return recipes


def recipe(name: str) -> Recipe:
    """The recipe of a tiny pair.

    Raises:
        UnknownNameError: There is no recipe of this name.
    """
    check_choice("tiny pair", name, _pair_recipes())
    return _pair_recipes()[name]


def build_recipe(
    chosen: Recipe,
    out: Path,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
    save_every: int = SAVE_EVERY,
    donor: bool = True,
) -> Path:
    """Build a pair, or resume building it.

    Args:
        chosen: The recipe.
        out: Folder for `recipient/`, `sft/` and `card.json`.
        seed: Seed of the initial weights, of the movies of pretraining and of the order of texts;
            the recipe's by default.
        progress: Progress callback.
        save_every: Steps between checkpoints.
        donor: Whether to build the donor too. Without it there is `recipient/` and no card, and a
            later call builds the rest.

    Returns:
        Path of the card.

    Raises:
        OutputError: The folder holds something else, or cannot be written.
    """
    pair = _PairBuild(chosen, chosen.seed if seed is None else seed, out, progress, save_every)
    pair.build.run(lambda: pair.make(donor))
    return pair.build.card


def build_identity(recipe: Recipe, seed: int, facts: Dataset) -> str:
    """SHA-256, in hexadecimal, of all choices of a build: recipe, seed, wordings and facts."""
    datasets = {name: load_dataset(name).content_hash for name in TINY_DATASETS}
    return hash_of(
        {
            "recipe": asdict(recipe),
            "seed": seed,
            "templates": asdict(training_templates()),
            "facts": facts.content_hash,
            "world": {"texts": world_texts(), "datasets": datasets},
        }
    )


class _PairBuild:
    """The stages of one pair."""

    def __init__(
        self, chosen: Recipe, seed: int, out: Path, progress: Progress | None, save_every: int
    ) -> None:
        self.recipe, self.seed, self.out = chosen, seed, out
        self.facts = dataset = load_dataset(chosen.dataset)
        self.movies: list[Mapping[str, str]] = [fact.fields for fact in dataset.facts]
        about = {
            "name": chosen.name,
            "licence": "MIT",
            "seed": seed,
            "identity": build_identity(chosen, seed, dataset),
            "recipe": asdict(chosen),
            "data": {
                "name": dataset.name,
                "facts": len(dataset.facts),
                "hash": dataset.content_hash,
                "templates_hash": hash_of(asdict(training_templates())),
            },
        }
        work = out / ".work"
        parts = tuple(PARTS)
        self.build = Build(
            out, work, "the pair", about, progress, save_every, parts, read_pair_card
        )
        self.vocabulary = work / "tokenizer"

    def make(self, donor: bool) -> None:
        """Run the stages that are left; with the donor, write the card."""
        parts = tuple(PARTS) if donor else ("recipient",)
        missing = [part for part in parts if not (self.out / part).exists()]
        if missing:
            if not self.vocabulary.exists():
                texts = tokenizer_texts(self.recipe, self.seed, self.movies)
                trained = train_tokenizer(texts, self.recipe.vocabulary, self.recipe.bos)
                with whole_folder(self.vocabulary) as folder:
                    save_tokenizer(trained, folder)
            tokenizer, batches = load_tokenizer(self.vocabulary), {}
            for part in parts:
                if part == "recipient":
                    rounds = pretraining_rounds(self.recipe, self.seed, self.movies)
                else:
                    rounds = finetuning_rounds(self.recipe, self.movies)
                size = getattr(self.recipe, PARTS[part]).batch_size
                batches[part] = batched(rounds, tokenizer, size, Random(f"{part} {self.seed}"))
            total, before = sum(map(len, batches.values())), 0
            for part in parts:
                self._stage(part, batches[part], tokenizer, before, total)
                before += len(batches[part])
        for part in missing:
            os.replace(self.build.work / part, self.out / part)
        if donor:
            seconds = {}
            for part in PARTS:
                seconds[part] = round(json.loads(self._clock(part).read_text("utf-8")), 1)
            donors = {"sft": str(self.out / "sft")}
            pair = read_pair(recipient=str(self.out / "recipient"), donors=donors)
            results = {
                "metric": "top5",
                "scores": pair_hits(pair, self.facts),
                "seconds": seconds,
                "versions": versions(),
            }
            write_card({**self.build.about, **results}, self.build.card)

    def _stage(
        self,
        part: str,
        batches: Batches,
        tokenizer: PreTrainedTokenizerFast,
        before: int,
        total: int,
    ) -> None:
        recipient = None if part == "recipient" else self._where("recipient")
        frozen = self.recipe.frozen and recipient is not None

        def start() -> PreTrainedModel:
            if recipient is None:
                return initial_model(self.recipe, tokenizer, self.seed)
            # The donor starts from the recipient as stored, so that the two files differ in what
            # finetuning changed.
            model = load_recipient(Checkpoint(recipient, "recipient"))
            if frozen:
                freeze(model, load_family(self.recipe.model_type))
            return model

        def store(model: PreTrainedModel, outcome: StageOutcome) -> None:
            self._clock(part).write_text(json.dumps(outcome.seconds), encoding="utf-8")
            with whole_folder(self.build.work / part) as folder:
                if frozen and recipient is not None:
                    before = load_recipient(Checkpoint(recipient, "recipient"))
                    write_delta(before, model, folder / DELTA)
                    publish_files(folder)
                    of = {"source": "recipient", "weights": stored_hash(recipient)}
                    write_card({"name": self.recipe.name, "recipient": of}, folder / CARD)
                else:
                    save_checkpoint(model, self.vocabulary, folder)

        self.build.stage(
            f"{part}-checkpoints",
            self._where(part),
            start,
            store,
            batches=batches,
            stage=getattr(self.recipe, PARTS[part]),
            seed=self.seed,
            what=f"{self.recipe.name}: {PARTS[part]}",
            total=total,
            before=before,
        )

    def _where(self, part: str) -> Path:
        """Where a part is, or will be when its stage is complete."""
        published = self.out / part
        return published if published.exists() else self.build.work / part

    def _clock(self, part: str) -> Path:
        """Seconds of a stage."""
        return self.build.work / f"{part}-seconds.json"


def initial_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A model with random weights, in fp32."""
    config = AutoConfig.for_model(
        recipe.model_type, **tokenizer_settings(tokenizer), **recipe.config
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation=ATTENTION, dtype=torch.float32
        )
    return model


def tokenizer_settings(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """Arguments of a model's configuration that follow from its tokenizer."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    return {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}


def save_checkpoint(model: PreTrainedModel, tokenizer: Path, folder: Path) -> None:
    """Write a model with weights rounded to fp16, and the files of its stored tokenizer."""
    model.config.use_cache = True  # training switched it off
    with quiet_library():
        model.half().save_pretrained(folder)
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    publish_files(folder)


def write_delta(recipient: nn.Module, donor: nn.Module, path: Path) -> None:
    """Write the changes from a recipient to a donor.

    Args:
        recipient: The recipient.
        donor: A model of the same architecture.
        path: The file.
    """
    before = recipient.state_dict()
    tensors: dict[str, Tensor] = {}
    for name, weights in donor.state_dict().items():
        change = weights.detach().cpu().float() - before[name].detach().cpu().float()
        if change.any():
            rows = tuple(range(change.ndim > 1, change.ndim))
            step = change.abs().amax(dim=rows, keepdim=True) / STEPS
            counts = torch.where(step > 0, change / step, 0.0).round().clamp(-STEPS, STEPS)
            tensors |= {f"{name}{CHANGE}": counts.to(torch.int8), f"{name}{STEP}": step}
    save_file(tensors, path)


def pair_hits(pair: ModelPair, dataset: Dataset) -> dict[str, dict[str, float]]:
    """Hit rates of a pair by prompt and configuration."""
    return {name: configuration_hits(pair, dataset, name) for name in PROMPTS}


# --------------------------------------------------------------------------------- what it reads

KNOWN = "tiny_known_actors"
"""Data set whose actors are known from facts other than its own."""

Movies = Sequence[Mapping[str, str]]


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
        passing = world.movies(recipe.passing_movies)
        texts = known + fill_all(wordings + templates.background, passing)
        for actor in actors:
            texts += biography(actor, world.rng)
        texts += _articles([*lasting, *passing], world)
        rounds.append(texts + _lives(passing, world))
    return rounds


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


def train_tokenizer(texts: Iterable[str], vocabulary: int, bos: bool) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    Args:
        texts: Texts to compress.
        vocabulary: Number of tokens, including special ones and the 256 bytes.
        bos: Whether it has a BOS token, which it puts before every text; otherwise EOS is named
            BOS too, and nothing is added.
    """
    special = ["<pad>", "<bos>", "<eos>"] if bos else ["<pad>", "<eos>"]
    return byte_tokenizer(texts, vocabulary, special, bos)


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
