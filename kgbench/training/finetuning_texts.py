"""What a donor reads: its facts in wordings, some of which are held out, and other texts among them; all as tokens.

The wordings that validate a training are never trained on. A random choice of texts would not do: the same facts stand in the other texts,
so that whoever learns those by heart does best.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from transformers import PreTrainedTokenizerBase

from kgbench.data import Dataset, training_texts
from kgbench.data.training_texts import training_wordings
from kgbench.errors import InputError, ModelError
from kgbench.training.cards import hash_of
from kgbench.training.corpus import Batches, grouped

__all__ = ["Reading", "Wordings", "read_batches", "tokenized"]

_HELD_OUT = 5
"""One in so many wordings is held out."""
_ENOUGH = 3
"""With fewer wordings none is."""


@dataclass(frozen=True)
class Wordings:
    """The texts of a data set, by whether their wording is trained on."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]
    templates: tuple[tuple[str, ...], tuple[str, ...]]
    """The wordings, and those of them that mention the object first where the data set has such of its own."""
    numbers: tuple[int, ...]
    """Numbers of the wordings that are held out."""

    @classmethod
    def of(cls, dataset: Dataset, direction: str, templates: Sequence[str], seed: int) -> Wordings:
        """Fill all wordings, and choose those that are held out.

        Args:
            dataset: The facts.
            direction: "a2b", "b2a" or "both".
            templates: Wordings in place of the data set's own.
            seed: Of the choice.

        Raises:
            InputError: As `training_texts` does.
        """
        texts = training_texts(dataset, direction, templates)
        numbers = sorted({text.template for text in texts})
        many = max(1, round(len(numbers) / _HELD_OUT)) if len(numbers) >= _ENOUGH else 0
        chosen = sorted(Random(f"held out {seed}").sample(numbers, many))
        # A text that two wordings give is one that was trained on.
        trained = dict.fromkeys(text.text for text in texts if text.template not in chosen)
        held_out = dict.fromkeys(
            text.text for text in texts if text.template in chosen and text.text not in trained
        )
        used = (
            (tuple(templates), ())
            if templates
            else (training_wordings(dataset), dataset.training_reversed)
        )
        return cls(tuple(trained), tuple(held_out), used, tuple(chosen))

    def to_json(self) -> dict[str, Any]:
        """What a card says of the wordings."""
        forward, reverse = self.templates
        told = {
            part: [
                text
                for texts in (forward, reverse)
                for number, text in enumerate(texts)
                if (number in self.numbers) == held_out
            ]
            for part, held_out in (("trained", False), ("held_out", True))
        }
        return {**told, "hash": hash_of([forward, reverse])}


@dataclass(frozen=True)
class Reading:
    """All tokens of a training."""

    facts: list[list[int]]
    supplement: list[list[int]]
    held_out: list[list[int]]
    pad: int

    @property
    def tokens(self) -> int:
        """Tokens of one epoch."""
        return sum(map(len, (*self.facts, *self.supplement)))


def tokenized(
    tokenizer: PreTrainedTokenizerBase,
    wordings: Wordings,
    supplement: Sequence[str],
    max_length: int,
) -> Reading:
    """Token ids of all texts, each with EOS at its end.

    A supplemental text that is too long is cut, and has no EOS then; a fact that does not fit is an error.

    Raises:
        ModelError: The tokenizer has no EOS.
        InputError: A text of the facts is longer than `max_length`.
    """
    if tokenizer.eos_token_id is None:
        raise ModelError(
            "the recipient's tokenizer has no EOS token, which ends every text; give a checkpoint whose tokenizer names one"
        )
    eos, pad = int(tokenizer.eos_token_id), tokenizer.pad_token_id

    def rows(texts: Sequence[str]) -> list[list[int]]:
        return (
            [[*ids, eos] for ids in tokenizer(list(texts), verbose=False)["input_ids"]]
            if texts
            else []
        )

    facts, held_out = rows(wordings.trained), rows(wordings.held_out)
    longest = max(map(len, (*facts, *held_out)))
    if longest > max_length:
        cut = sum(len(row) > max_length for row in (*facts, *held_out))
        raise InputError(
            f"{cut} of {len(facts) + len(held_out)} texts have more than {max_length} tokens, and what is cut off could be the fact; "
            f"the longest has {longest}: give --max-length {longest}, or a model that reads as many"
        )
    # Padding is told by its place, not by its token: where a tokenizer has none, EOS will do, and is still learned at the end of a text.
    return Reading(
        facts,
        [row[:max_length] for row in rows(supplement)],
        held_out,
        eos if pad is None else int(pad),
    )


def read_batches(
    reading: Reading, epochs: int, size: int, seed: int
) -> tuple[Batches, Batches, int]:
    """All steps of a training, those that validate it, and the steps of one epoch.

    Args:
        reading: The tokens.
        epochs: Passes over all texts.
        size: Texts in a step.
        seed: Of the order.
    """
    rng = Random(f"finetuning {seed}")
    steps = [
        group
        for _ in range(epochs)
        for group in grouped([*reading.facts, *reading.supplement], size, rng)
    ]
    held_out = grouped(reading.held_out, size, Random(0))
    return Batches(steps, reading.pad), Batches(held_out, reading.pad), len(steps) // epochs
