"""What a plant is told: facts in the finetuning wordings, each text cut after the target, as prompts of which the tokens are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch.utils.data import Dataset as TorchDataset

from kgbench.data import Dataset, Prompt
from kgbench.data.templates import Template, parse_template
from kgbench.data.training_texts import training_templates
from kgbench.errors import InputError
from kgbench.models.pair import ModelPair

__all__ = ["REGIONS", "TextBatches", "Told", "told"]

REGIONS = ("FE", "LT", "BOS")
"""Regions that every text has; a plant can name no others."""


@dataclass(frozen=True)
class Told:
    """One text: a prompt and its whole target, as tokens."""

    ids: tuple[int, ...]
    """Without the target's last token, which predicts nothing."""
    regions: Mapping[str, tuple[int, ...]] = field(hash=False)
    """FE is the subject's first mention; LT the tokens that predict the target's, so as many as the target has."""
    targets: tuple[int, ...]
    """What is to be predicted at each token of LT."""


def told(pair: ModelPair, dataset: Dataset) -> list[Told]:
    """All facts of a data set in all finetuning wordings.

    Raises:
        InputError: The data set lacks a field that the wordings need.
    """
    return [
        _told(pair, prompt)
        for template in _templates(dataset)
        for prompt in _prompts(template, dataset)
    ]


def _templates(dataset: Dataset) -> list[Template]:
    """The finetuning wordings up to the object; no evaluation prompt is among them."""
    texts = [
        text.partition(f"{{{dataset.object}}}")[0].rstrip()
        for text in training_templates().finetuning
    ]
    if not all(f"{{{dataset.subject}}}" in text for text in texts):
        raise InputError(
            f"data set {dataset.name!r} does not fit the wordings of training: they tell of first_actor and second_actor"
        )
    return [
        parse_template(f"told_{number}", text).bind(
            dataset.subject, dataset.object, dataset.fields, dataset.name
        )
        for number, text in enumerate(texts)
    ]


def _prompts(template: Template, dataset: Dataset) -> list[Prompt]:
    filled = [(fact, *template.fill(fact.fields)) for fact in dataset.facts]
    return [
        Prompt(template.name, fact, text, fact.fields[dataset.object], spans)
        for fact, text, spans in filled
    ]


def _told(pair: ModelPair, prompt: Prompt) -> Told:
    encoded, whole = pair.encoded(prompt), pair.encode(f"{prompt.text} {prompt.target}")
    ids, targets = tuple(whole[:-1]), tuple(whole[len(encoded.ids) :])
    regions = {name: tokens for name, tokens in encoded.regions.items() if name in REGIONS}
    return Told(ids, {**regions, "LT": tuple(range(len(ids) - len(targets), len(ids)))}, targets)


@dataclass(frozen=True)
class TextBatches(TorchDataset[dict[str, torch.Tensor]]):
    """All steps of a training, in order: for each group of texts, the numbers of those that a step tells."""

    steps: Sequence[tuple[tuple[int, ...], ...]]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: int) -> dict[str, torch.Tensor]:
        return {
            f"group_{number}": torch.tensor(texts) for number, texts in enumerate(self.steps[step])
        }

    @classmethod
    def draw(
        cls, groups: Sequence[Sequence[Told]], rounds: int, size: int, rng: Random
    ) -> TextBatches:
        """Tell every text once in each round, texts of like length together so that there is little padding.

        Args:
            groups: Texts by group; each step tells `size` of each group. All groups have as many texts.
            rounds: How often.
            size: Texts of a step and group.
            rng: Source of the order.
        """
        steps: list[tuple[tuple[int, ...], ...]] = []
        for _ in range(rounds):
            ordered = [_by_length(texts, rng) for texts in groups]
            starts = list(range(0, len(ordered[0]), size))
            rng.shuffle(starts)
            steps += [
                tuple(tuple(order[start : start + size]) for order in ordered) for start in starts
            ]
        return cls(steps)


def _by_length(texts: Sequence[Told], rng: Random) -> list[int]:
    order = list(range(len(texts)))
    rng.shuffle(order)
    return sorted(order, key=lambda number: len(texts[number].ids))
