"""Build a tiny pair from nothing: tokenizer, pretraining, finetuning, scores and card."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from kgbench.data import Dataset, load_dataset
from kgbench.data.builders.worlds import TINY_DATASETS, world_texts
from kgbench.data.training_texts import training_templates
from kgbench.errors import DataError
from kgbench.models.catalog import CARD, DELTA
from kgbench.models.delta import stored_hash, write_delta
from kgbench.models.family import load_family
from kgbench.models.pair import load_pair
from kgbench.training import corpus
from kgbench.training.builds import (
    Build,
    Progress,
    hash_of,
    read_card,
    versions,
    whole_folder,
    write_card,
)
from kgbench.training.hit_rates import pair_hits
from kgbench.training.model_setup import (
    freeze,
    initial_model,
    publish_files,
    save_checkpoint,
    stored_model,
)
from kgbench.training.recipes import Recipe, recipe
from kgbench.training.stages import SAVE_EVERY, StageOutcome, train

__all__ = ["PARTS", "add_other_seeds", "build_identity", "build_pair", "build_recipe"]

PARTS = {"recipient": "pretraining", "sft": "finetuning"}
"""Folders of a pair, and the stage that each results from."""


def build_pair(
    name: str, out: Path, *, seed: int | None = None, progress: Progress | None = None
) -> Path:
    """Build a shipped pair anew; see `build_recipe`.

    Raises:
        UnknownNameError: There is no recipe of this name.
        OutputError: The folder holds something else, or cannot be written.
    """
    return build_recipe(recipe(name), out, seed=seed, progress=progress)


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
            "recipe": recipe.to_json(),
            "seed": seed,
            "templates": asdict(training_templates()),
            "facts": facts.content_hash,
            "world": {"texts": world_texts(), "datasets": datasets},
        }
    )


def add_other_seeds(path: Path, others: Iterable[Path]) -> None:
    """Put the scores of builds of the same pair with other seeds on its card.

    Args:
        path: The card.
        others: Cards of the other builds, which replace those on the card.

    Raises:
        DataError: A file is no card, or a card of another pair or recipe.
    """
    card, rows = read_card(path), []
    for other in map(read_card, others):
        same = (other["recipe"], other["data"]) == (card["recipe"], card["data"])
        if not same or other["seed"] == card["seed"]:
            raise DataError(
                f"{path}: expected cards of {card['name']} by the same recipe and data with "
                f"other seeds than {card['seed']}"
            )
        rows.append({key: other[key] for key in ("seed", "scores", "seconds")})
    write_card({**card, "other_seeds": sorted(rows, key=lambda row: int(row["seed"]))}, path)


class _PairBuild:
    """The stages of one pair."""

    def __init__(
        self, chosen: Recipe, seed: int, out: Path, progress: Progress | None, save_every: int
    ) -> None:
        self.recipe, self.seed, self.out = chosen, seed, out
        dataset = load_dataset(chosen.dataset)
        self.facts = dataset
        self.movies: list[Mapping[str, str]] = [fact.fields for fact in dataset.facts]
        self.stages = {"recipient": chosen.pretraining, "sft": chosen.finetuning}
        about = {
            "name": chosen.name,
            "licence": "MIT",
            "seed": seed,
            "identity": build_identity(chosen, seed, dataset),
            "recipe": chosen.to_json(),
            "data": {
                "name": dataset.name,
                "facts": len(dataset.facts),
                "hash": dataset.content_hash,
                "templates_hash": hash_of(asdict(training_templates())),
            },
        }
        work = out / ".work"
        self.build = Build(out, work, "the pair", about, progress, save_every, tuple(PARTS))
        self.vocabulary = work / "tokenizer"

    def make(self, donor: bool) -> None:
        """Run the stages that are left; with the donor, write the card."""
        self._train(tuple(PARTS) if donor else ("recipient",))
        if donor:
            write_card({**self.build.about, **self._results()}, self.build.card)

    def _train(self, parts: Sequence[str]) -> None:
        if all((self.out / part).exists() for part in parts):
            return
        tokenizer = self._tokenizer()
        batches = {part: self._batches(part, tokenizer) for part in parts}
        total, before = sum(map(len, batches.values())), 0
        for part in parts:
            self._stage(part, batches[part], tokenizer, before, total)
            before += len(batches[part])
        for part in parts:
            if not (self.out / part).exists():
                os.replace(self.build.work / part, self.out / part)

    def _stage(
        self,
        part: str,
        batches: corpus.Batches,
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
            model = stored_model(recipient)
            if frozen:
                freeze(model, load_family(self.recipe.model_type))
            return model

        def store(model: PreTrainedModel, outcome: StageOutcome) -> None:
            self._clock(part).write_text(json.dumps(outcome.seconds), encoding="utf-8")
            with whole_folder(self.build.work / part) as folder:
                if frozen and recipient is not None:
                    self._save_changes(model, recipient, folder)
                else:
                    save_checkpoint(model, self.vocabulary, folder)

        self.build.stage(
            f"{part}-checkpoints",
            self._where(part),
            start,
            lambda model, run: train(model, batches, self.stages[part], run),
            store,
            seed=self.seed,
            what=f"{self.recipe.name}: {PARTS[part]}",
            total=total,
            before=before,
        )

    def _save_changes(self, model: PreTrainedModel, recipient: Path, folder: Path) -> None:
        """Write the changes of the donor's weights, and the hash of the weights they belong to."""
        write_delta(stored_model(recipient), model, folder / DELTA)
        publish_files(folder)
        of = {"source": "recipient", "weights": stored_hash(recipient)}
        write_card({"name": self.recipe.name, "recipient": of}, folder / CARD)

    def _results(self) -> dict[str, Any]:
        """The part of the card that is measured."""
        donors = {"sft": str(self.out / "sft")}
        pair = load_pair(recipient=str(self.out / "recipient"), donors=donors)
        seconds = {}
        for part in PARTS:
            seconds[part] = round(json.loads(self._clock(part).read_text("utf-8")), 1)
        return {
            "metric": "top5",
            "scores": pair_hits(pair, self.facts),
            "other_seeds": [],
            "seconds": seconds,
            "versions": versions(),
        }

    def _tokenizer(self) -> PreTrainedTokenizerFast:
        if not self.vocabulary.exists():
            texts = corpus.tokenizer_texts(self.recipe, self.seed, self.movies)
            tokenizer = corpus.train_tokenizer(texts, self.recipe.vocabulary, self.recipe.bos)
            with whole_folder(self.vocabulary) as folder:
                corpus.save_tokenizer(tokenizer, folder)
        return corpus.load_tokenizer(self.vocabulary)

    def _batches(self, part: str, tokenizer: PreTrainedTokenizerFast) -> corpus.Batches:
        if part == "recipient":
            rounds = corpus.pretraining_rounds(self.recipe, self.seed, self.movies)
        else:
            rounds = corpus.finetuning_rounds(self.recipe, self.movies)
        order = Random(f"{part} {self.seed}")
        return corpus.batched(rounds, tokenizer, self.stages[part].batch_size, order)

    def _where(self, part: str) -> Path:
        """Where a part is, or will be when its stage is complete."""
        published = self.out / part
        return published if published.exists() else self.build.work / part

    def _clock(self, part: str) -> Path:
        """Seconds of a stage."""
        return self.build.work / f"{part}-seconds.json"
