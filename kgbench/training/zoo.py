"""Build a tiny model pair from nothing: tokenizer, pretraining, finetuning, scores and card.

A build may be interrupted at any time and goes on where it stopped: inside a stage from the last checkpoint, between
stages from the last finished one. What is finished is written under another name first, and the card comes last, so
that a directory which holds a card is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from kgbench.data import load_dataset
from kgbench.errors import OutputError
from kgbench.models.catalog import CARD, DELTA
from kgbench.models.delta import stored_hash, write_delta
from kgbench.models.family import load_family
from kgbench.training import corpus
from kgbench.training.cards import build_identity, make_card, read_card, write_card
from kgbench.training.checkpoints import freeze, load_model, new_model, save_checkpoint
from kgbench.training.recipes import Recipe, Stage, recipe
from kgbench.training.scoring import score_checkpoints
from kgbench.training.stages import SAVE_EVERY, OnStep, Run, train
from kgbench.training.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

__all__ = ["PARTS", "Report", "build", "build_recipe"]

PARTS = {"recipient": "pretraining", "sft": "finetuning"}
"""Directories of a built pair, beside its card, and the stage of training that each results from."""

Report = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all, and what is being done."""


def build(name: str, out: Path, *, seed: int | None = None, progress: Report | None = None) -> Path:
    """Make a pair, or finish making it.

    Args:
        name: A pair that has a recipe.
        out: Directory for `recipient/`, `sft/` and `card.json`; new, or one in which the same build was begun.
        seed: Seed of the initial weights, of the movies of pretraining and of the order of texts; the shipped pair's by default.
        progress: Called after every step.

    Returns:
        Path of the card.

    Raises:
        UnknownNameError: There is no recipe of this name.
        OutputError: The directory holds something else, or cannot be written.
    """
    return build_recipe(recipe(name), out, seed=seed, progress=progress)


def build_recipe(
    chosen: Recipe,
    out: Path,
    *,
    seed: int | None = None,
    progress: Report | None = None,
    save_every: int = SAVE_EVERY,
    donor: bool = True,
) -> Path:
    """Make a pair by a recipe of one's own; see `build`.

    Args:
        chosen: The recipe.
        out: As for `build`.
        seed: As for `build`.
        progress: As for `build`.
        save_every: Steps between checkpoints.
        donor: Whether the donor is made too. Without it there is `recipient/` and no card, and a
            later call makes the rest.

    Returns:
        Path of the card.

    Raises:
        OutputError: As `build` does.
    """
    started = _Build(chosen, chosen.seed if seed is None else seed, out, progress, save_every)
    try:
        if not started.is_done():
            started.begin()
            started.train(tuple(PARTS) if donor else ("recipient",))
        if donor:
            started.publish()
            shutil.rmtree(started.work, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            f"cannot write the pair to {out}: {error.strerror or error}; give another directory"
        ) from error
    return started.card


class _Build:
    """One build; between interruptions, nothing but its directory is remembered."""

    def __init__(
        self, chosen: Recipe, seed: int, out: Path, progress: Report | None, save_every: int
    ) -> None:
        self.recipe, self.seed, self.out, self.progress = chosen, seed, out, progress
        self.save_every = save_every
        self.facts = load_dataset(chosen.dataset)
        self.identity = build_identity(chosen, seed, self.facts)
        self.work, self.card = out / ".work", out / "card.json"
        self.vocabulary = self.work / "tokenizer"

    def is_done(self) -> bool:
        """Whether the card of this very build is there."""
        if not self.card.exists():
            return False
        card = read_card(self.card)
        if card["identity"] != self.identity:
            raise OutputError(
                f"{self.out} holds another pair ({card.get('name')}, seed {card['seed']}) or one made in another way; "
                f"give a new directory for {self.recipe.name}, seed {self.seed}"
            )
        return True

    def begin(self) -> None:
        """Take the directory, or take up what was begun in it."""
        mark = self.work / "identity"
        if mark.exists():
            if mark.read_text(encoding="utf-8", errors="replace") != self.identity:
                raise OutputError(
                    f"{self.out} holds the beginning of another build; remove {self.work} or give a new directory"
                )
            return
        for part in PARTS:
            if (self.out / part).exists():
                raise OutputError(
                    f"{self.out} holds a {part!r} but no card that says which; give a new directory"
                )
        self.out.mkdir(parents=True, exist_ok=True)
        with _whole(self.work) as partial:
            (partial / mark.name).write_text(self.identity, encoding="utf-8")

    def train(self, parts: Sequence[str]) -> None:
        """Run the stages of these parts that are not finished, and put each part in its place."""
        if all((self.out / part).exists() for part in parts):
            return
        tokenizer = self._tokenizer()
        steps = {part: batches for part, batches in self._steps(tokenizer).items() if part in parts}
        total, done = sum(map(len, steps.values())), 0
        for part, batches in steps.items():
            if not self._where(part).exists():
                self._train_part(part, batches, tokenizer, self._on_step(part, done, total))
            done += len(batches)
        for part in parts:
            if not (self.out / part).exists():
                os.replace(self.work / part, self.out / part)

    def publish(self) -> None:
        """Write the card, unless it is there."""
        if self.card.exists():
            return
        scores = score_checkpoints(self.out / "recipient", self.out / "sft", self.facts)
        seconds = {
            part: json.loads(self._clock(part).read_text(encoding="utf-8")) for part in PARTS
        }
        write_card(make_card(self.recipe, self.seed, self.facts, scores, seconds), self.card)

    def _tokenizer(self) -> PreTrainedTokenizerFast:
        if not self.vocabulary.exists():
            texts = corpus.tokenizer_texts(self.recipe, self.seed, self._movies())
            with _whole(self.vocabulary) as partial:
                save_tokenizer(
                    train_tokenizer(texts, self.recipe.vocabulary, self.recipe.bos), partial
                )
        return load_tokenizer(self.vocabulary)

    def _steps(self, tokenizer: PreTrainedTokenizerFast) -> dict[str, corpus.Batches]:
        rounds = {
            "recipient": corpus.pretraining_rounds(self.recipe, self.seed, self._movies()),
            "sft": corpus.finetuning_rounds(self.recipe, self._movies()),
        }
        return {
            part: corpus.batched(
                texts, tokenizer, self._stage(part).batch_size, Random(f"{part} {self.seed}")
            )
            for part, texts in rounds.items()
        }

    def _train_part(
        self,
        part: str,
        batches: corpus.Batches,
        tokenizer: PreTrainedTokenizerFast,
        on_step: OnStep | None,
    ) -> None:
        # The donor starts from the recipient as it is stored, so that what finetuning changed is what the two files differ in.
        fresh = part == "recipient"
        model = (
            new_model(self.recipe, tokenizer, self.seed)
            if fresh
            else load_model(self._where("recipient"))
        )
        if self.recipe.frozen and not fresh:
            freeze(model, load_family(self.recipe.model_type))
        checkpoints = self.work / f"{part}-checkpoints"
        run = Run(checkpoints, self.seed, self.save_every, on_step)
        seconds = train(model, batches, self._stage(part), run)
        self._clock(part).write_text(json.dumps(seconds), encoding="utf-8")
        with _whole(self.work / part) as partial:
            if self.recipe.frozen and not fresh:
                self._save_changes(model, partial)
            else:
                save_checkpoint(model, self.vocabulary, partial)
        shutil.rmtree(checkpoints)

    def _save_changes(self, model: PreTrainedModel, directory: Path) -> None:
        """Write the donor's weights that are not the recipient's, and whose they are to be put into."""
        place = self._where("recipient")
        write_delta(load_model(place), model, directory / DELTA)
        (directory / DELTA).chmod(0o644)  # weights are written for their owner's eyes only
        write_card(
            {
                "name": self.recipe.name,
                "recipient": {"source": "recipient", "weights": stored_hash(place)},
            },
            directory / CARD,
        )

    def _on_step(self, part: str, before: int, total: int) -> OnStep | None:
        if (progress := self.progress) is None:
            return None
        what = f"{self.recipe.name}: {PARTS[part]}"
        progress(before, total, what)
        return lambda step: progress(before + step, total, what)

    def _where(self, part: str) -> Path:
        """Where a part is, or will be when its stage is finished."""
        published = self.out / part
        return published if published.exists() else self.work / part

    def _stage(self, part: str) -> Stage:
        return self.recipe.pretraining if part == "recipient" else self.recipe.finetuning

    def _clock(self, part: str) -> Path:
        return self.work / f"{part}-seconds.json"

    def _movies(self) -> list[Mapping[str, str]]:
        return [fact.fields for fact in self.facts.facts]


@contextmanager
def _whole(directory: Path) -> Iterator[Path]:
    """A directory to fill, which takes its name when it is full."""
    partial = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    yield partial
    os.replace(partial, directory)
