"""What is finetuned into which recipient, and what it reads; checked before a model is loaded.

A donor reads its facts in wordings, some of which are held out, and other texts among them. The
wordings that validate a training are never trained on. A random choice of texts would not do: the
same facts occur in the other texts, so that learning those by heart would look best.

Supplemental texts are a seeded sample of a user's file; none are shipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from kgbench.data import Dataset, ImportOptions, load_dataset, training_texts
from kgbench.data.facts import hash_of
from kgbench.data.rows import read_rows, read_text, row_name
from kgbench.data.training_texts import question_of, training_wordings
from kgbench.errors import DataError, InputError, ModelError, check_choice
from kgbench.extras import install_command
from kgbench.models import SHORT_DTYPES, catalog, check_dtype
from kgbench.models.encoding import Encoder
from kgbench.runner.training.recipes import (
    FinetuningRecipe,
    finetuning_recipe,
    finetuning_recipe_names,
    least_steps,
)
from kgbench.runner.training.stages import Batches, grouped

_LARGE = 10**9
"""Parameters of a recipient of unknown size; whether a recipe is valid does not depend on it."""

_HELD_OUT = 5
"""One in so many wordings is held out."""
_ENOUGH = 3
"""With fewer wordings none is."""


@dataclass(frozen=True)
class FinetuneSpec:
    """Choice of a donor, except its folder and the devices."""

    dataset: str
    """Name of a data set, or a file, or a part of one, as in `NAME:task`."""
    recipe: str
    model: str | None = None
    """A pair of the catalog whose recipient is finetuned; exclusive with `recipient`."""
    recipient: str | None = None
    """A checkpoint, a Hub id or a trained donor."""
    revision: str | None = None
    """Branch, tag or commit of a Hub id."""
    chat_template: bool = False
    """Whether texts and prompts are put into the tokenizer's chat template."""
    dtype: str | None = None
    """Type of the weights in training, by name; None for float32."""
    direction: str = "both"
    """Order of subject (a) and object (b) in the texts: "both", "a2b" or "b2a"."""
    templates: tuple[str, ...] = ()
    """Training wordings that replace the data set's."""
    imports: ImportOptions | None = None
    """Meaning of the columns of a file."""
    supplement: str | Supplement | None = None
    """A .txt file with one text per line, or a .jsonl file with a field "text" in each line; or
    texts in memory.
    """
    seed: int = 0
    """Seed of order, held-out wordings, the supplement's sample and whatever the model draws."""
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Values that replace the recipe's, by field of `FinetuningRecipe`."""
    facts: Dataset | None = field(default=None, compare=False, repr=False)
    """Facts in memory, in place of `dataset`."""

    def options(self) -> dict[str, Any]:
        """Chat template and type of weights, where they are not the default."""
        options: dict[str, Any] = {"chat_template": True} if self.chat_template else {}
        dtype = SHORT_DTYPES.get(str(self.dtype), self.dtype)
        return options if dtype in (None, "float32") else {**options, "dtype": dtype}

    def changed(self) -> dict[str, Any]:
        """Deviations from the recipe, the data set and default options."""
        changes = {**self.changes, **self.options()}
        if self.templates:
            changes["templates"] = list(self.templates)
        return changes


@dataclass(frozen=True)
class FinetuningPlan:
    """A specification with its facts and wordings."""

    spec: FinetuneSpec
    name: str
    """`<model>/<data set, direction, recipe and seed>`."""
    source: str
    """The recipient's checkpoint."""
    facts: Dataset
    wordings: Wordings

    def recipe(self, parameters: int, model_type: str = "") -> FinetuningRecipe:
        """The recipe for a recipient of this size and type, with more epochs for few texts.

        Args:
            parameters: Number of the recipient's weights.
            model_type: As in its configuration.

        Raises:
            InputError: The recipe and the specification disagree on supplemental texts, or PEFT is
                not installed, which the recipe takes.
        """
        spec = self.spec
        recipe = finetuning_recipe(spec.recipe, parameters, spec.changes, model_type)
        if "epochs" not in spec.changes:
            texts = len(self.wordings.trained) + recipe.supplement_texts
            least = math.ceil(least_steps() / math.ceil(texts / recipe.batch_size))
            recipe = replace(recipe, epochs=max(recipe.epochs, least))
        if spec.supplement is None and recipe.supplement_texts:
            raise InputError(
                f"the recipe {spec.recipe!r} reads {recipe.supplement_texts:,} texts about "
                "anything else among the facts: give --supplement FILE, or go without them by "
                "--supplement-n 0"
            )
        if spec.supplement is not None and not recipe.supplement_texts:
            raise InputError(
                "--supplement: give --supplement-n N too; "
                "this recipe itself takes no supplemental texts"
            )
        if recipe.rank is not None and find_spec("peft") is None:
            raise InputError(f"the recipe {recipe.name!r} takes PEFT: {install_command('lora')}")
        return recipe

    def supplement(self, recipe: FinetuningRecipe) -> Supplement | None:
        """The sample of supplemental texts, if any.

        Raises:
            DataError: The file cannot be read.
            InputError: There are fewer texts.
        """
        source, n = self.spec.supplement, recipe.supplement_texts
        if source is None or isinstance(source, Supplement):
            return source
        path = Path(source).expanduser()
        texts = list(dict.fromkeys(_file_texts(path)))
        if len(texts) < n:
            raise InputError(
                f"the supplement {source!r} holds {len(texts)} texts, and {n} were asked for: "
                f"give --supplement-n {len(texts)}"
            )
        sample = Random(f"supplement {self.spec.seed}").sample(texts, n)
        return Supplement(path.name, tuple(sample))

    def data(self) -> dict[str, Any]:
        """The card's entry on the facts."""
        return {
            "name": self.facts.name,
            "direction": self.spec.direction,
            "facts": len(self.facts.facts),
            "hash": self.facts.content_hash,
        }


def plan_finetuning(spec: FinetuneSpec) -> FinetuningPlan:
    """Read and check what needs no checkpoint.

    Raises:
        UnknownNameError: A model, data set, part, direction or recipe does not exist.
        InputError: Something else is wrong with it.
    """
    check_choice("recipe", spec.recipe, finetuning_recipe_names())
    check_dtype(spec.dtype or "auto")
    owner, source = recipient_of(spec.model, spec.recipient)
    facts = spec.facts
    if facts is None:
        facts = load_dataset(spec.dataset, spec.imports)
    wordings = Wordings.of(facts, spec.direction, spec.templates, spec.seed)
    seed = f"-seed{spec.seed}" if spec.seed else ""
    name = f"{_slug(owner)}/{_slug(facts.name)}-{spec.direction}-{spec.recipe}{seed}"
    plan = FinetuningPlan(spec, name, source, facts, wordings)
    plan.recipe(_LARGE)
    return plan


def recipient_of(model: str | None, recipient: str | None) -> tuple[str, str]:
    """What a donor's folder is called after, and the checkpoint that is finetuned.

    Args:
        model: A pair of the catalog.
        recipient: A checkpoint in its place.

    Raises:
        UnknownNameError: There is no such pair.
        InputError: Not exactly one is given, or the pair is a plant.
    """
    if (model is None) == (recipient is None):
        raise InputError(
            "which model is finetuned? Give --model NAME (see `kgbench ls models`) "
            "or --recipient PATH, one of them"
        )
    if model is None:
        return str(recipient).rstrip("/").rpartition("/")[2], str(recipient)
    entry = catalog.entry(model)
    if entry.plant is not None:
        raise InputError(
            f"{model!r} is a plant; name the pair in whose recipient it was planted, "
            f"or its recipient: {entry.recipient}"
        )
    return entry.name, entry.recipient


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "model"


@dataclass(frozen=True)
class Wordings:
    """The texts of a data set, split by wording into trained and held-out ones."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]
    templates: tuple[tuple[str, ...], tuple[str, ...]]
    """The wordings, and the data set's own wordings that mention the object first."""
    numbers: tuple[int, ...]
    """Numbers of the held-out wordings."""

    @classmethod
    def of(cls, dataset: Dataset, direction: str, templates: Sequence[str], seed: int) -> Wordings:
        """Fill all wordings, and choose the held-out ones.

        Args:
            dataset: The facts.
            direction: "a2b", "b2a" or "both".
            templates: Wordings that replace the data set's.
            seed: Seed of the choice.

        Raises:
            InputError: As `training_texts` does.
        """
        texts = training_texts(dataset, direction, templates)
        numbers = sorted({text.template for text in texts})
        many = max(1, round(len(numbers) / _HELD_OUT)) if len(numbers) >= _ENOUGH else 0
        sample = sorted(Random(f"held out {seed}").sample(numbers, many))
        # A text that a trained wording gives too is no held-out text.
        trained = dict.fromkeys(text.text for text in texts if text.template not in sample)
        held_out = dict.fromkeys(
            text.text for text in texts if text.template in sample and text.text not in trained
        )
        used = (
            (tuple(templates), ())
            if templates
            else (training_wordings(dataset), dataset.training_reversed)
        )
        return cls(tuple(trained), tuple(held_out), used, tuple(sample))

    def question(self, dataset: Dataset) -> str | None:
        """The evaluation template that a wording is up to its object, preferably a held-out one.

        Args:
            dataset: The facts.

        Returns:
            None if no wording names the subject before the object.
        """
        forward = self.templates[0]
        for number in sorted(range(len(forward)), key=lambda n: n not in self.numbers):
            if (template := question_of(forward[number], dataset)) is not None:
                return template
        return None

    def to_json(self) -> dict[str, Any]:
        """The card's entry on the wordings."""
        parts: dict[str, list[str]] = {"trained": [], "held_out": []}
        for texts in self.templates:
            for number, text in enumerate(texts):
                parts["held_out" if number in self.numbers else "trained"].append(text)
        return {**parts, "hash": hash_of(list(map(list, self.templates)))}


@dataclass(frozen=True)
class Supplement:
    """Texts about anything but the facts."""

    source: str
    """The file's name without its folder, or what texts in memory are called."""
    texts: tuple[str, ...]
    revision: str | None = None
    """Commit of a data set on the Hub."""

    def to_json(self) -> dict[str, object]:
        """The card's entry on the supplement."""
        entry: dict[str, object] = {
            "source": self.source,
            "texts": len(self.texts),
            "hash": hash_of(self.texts),
        }
        if self.revision is not None:
            entry["revision"] = self.revision
        return entry


def _file_texts(path: Path) -> Iterator[str]:
    if path.suffix.lower() != ".jsonl":
        yield from filter(None, map(str.strip, read_text(path).splitlines()))
        return
    for number, row in read_rows(path):
        text = row.get("text")
        if not isinstance(text, str) or not text.strip():
            raise DataError(
                f"{row_name(path, number)}: expected an object with a field 'text' that is not empty"
            )
        yield text.strip()


@dataclass(frozen=True)
class TokenizedTexts:
    """Token ids of all texts of a training."""

    facts: list[list[int]]
    supplement: list[list[int]]
    held_out: list[list[int]]
    pad: int

    @property
    def tokens(self) -> int:
        """Tokens of one epoch."""
        return sum(map(len, (*self.facts, *self.supplement)))


def tokenized_texts(
    tokenizer: PreTrainedTokenizerBase,
    wordings: Wordings,
    supplement: Sequence[str],
    max_length: int,
    chat_template: bool = False,
) -> TokenizedTexts:
    """Token ids of all texts, each with EOS at its end.

    A supplemental text that is too long is cut and loses its EOS; a fact that is too long is an
    error. Under the chat template, a text of the facts is the model's turn after an empty turn of
    the user; supplemental texts are read as they are.

    Args:
        tokenizer: The recipient's tokenizer.
        wordings: Texts of the facts.
        supplement: Texts about anything else.
        max_length: Most tokens of a text.
        chat_template: Whether the tokenizer's chat template is put around texts of the facts.

    Raises:
        ModelError: The tokenizer has no EOS, or no chat template where one is asked for.
        InputError: A text of the facts is longer than `max_length`.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "the recipient's tokenizer has no EOS token, which ends every text; "
            "give a checkpoint whose tokenizer names one"
        )
    eos, pad = int(tokenizer.eos_token_id), tokenizer.pad_token_id

    def rows(texts: Sequence[str], frame: str = "") -> list[list[int]]:
        framed = [frame + text for text in texts]
        if not framed:
            return []
        encoded = tokenizer(
            framed, verbose=False, add_special_tokens=not frame, return_attention_mask=False
        )
        return [[*ids, eos] for ids in encoded["input_ids"]]

    frame = ""
    if chat_template:  # which writes BOS itself
        encoder = Encoder(tokenizer, chat_template)
        frame = encoder.before + encoder.after
        frame += "" if frame[-1:].isspace() else " "  # as before the answer to a prompt
    facts, held_out = rows(wordings.trained, frame), rows(wordings.held_out, frame)
    longest = max(map(len, (*facts, *held_out)))
    if longest > max_length:
        cut = sum(len(row) > max_length for row in (*facts, *held_out))
        raise InputError(
            f"{cut} of {len(facts) + len(held_out)} texts have more than {max_length} tokens, "
            f"and what is cut off could be the fact; the longest has {longest}: "
            f"give --max-length {longest}, or a model that reads as many"
        )
    others = [row[:max_length] for row in rows(supplement)]
    # Padding is recognized by its position, so EOS can stand in for a missing padding token and is
    # still learned at the end of a text.
    return TokenizedTexts(facts, others, held_out, eos if pad is None else int(pad))


def read_batches(
    texts: TokenizedTexts, epochs: int, size: int, seed: int
) -> tuple[Batches, Batches]:
    """Steps of a training, and of its validation.

    Args:
        texts: The tokens.
        epochs: Passes over all texts.
        size: Texts in a step.
        seed: Seed of the order.
    """
    rng = Random(f"finetuning {seed}")
    steps: list[list[list[int]]] = []
    for _ in range(epochs):
        steps += grouped([*texts.facts, *texts.supplement], size, rng)
    held_out = grouped(texts.held_out, size, Random(0))
    return Batches(steps, texts.pad), Batches(held_out, texts.pad)
