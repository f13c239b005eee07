"""The study's design: factors, cells, runs and recipe, from design.toml.

A full factorial in four factors of two levels. Half of its sixteen cells, those with the defining
relation I = ABCD, were run first (G. E. P. Box, W. G. Hunter and J. S. Hunter, Statistics for
Experimenters, 1978, chapter 12).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from typing import Any

from kgbench.errors import InputError, UnknownNameError
from kgbench.records import Strict
from kgbench.resources import read_toml
from kgbench.runner.training.recipes import Stage
from kgbench.zoo.tiny_pairs import Recipe


class Factor(Strict):
    """A feature of the architecture with two levels."""

    name: str
    levels: tuple[str, str]
    """The level that counts as -1 and the one that counts as +1."""
    title: str


class Shape(Strict):
    """Sizes of models of one depth."""

    width: int
    inner: Mapping[str, int]
    """Inner width of the FFN, by the level of the factor `ffn`."""


class ModelSettings(Strict):
    """Common to all models."""

    heads: int
    positions: int
    """Longest text, in tokens."""
    tied: bool
    """Whether head and embeddings are one matrix."""


class Criteria(Strict):
    """Least rates for meaningful pathways; a run below them is marked."""

    sft: float
    """Share of the facts that the donor answers, on every prompt."""
    known: float
    """Share of the movies of pretraining that the recipient answers, on the first prompt."""


class StudyTraining(Strict):
    """World and training, the same in all cells."""

    vocabulary: int
    tokenizer_movies: int
    lasting_movies: int
    passing_movies: int
    finetunings: int
    """Most trainings of the donor, one after the other, while it is below its criterion."""
    pretraining: Stage
    finetuning: Stage


@dataclass(frozen=True)
class DesignCell:
    """One combination of levels."""

    factors: tuple[Factor, ...]
    signs: tuple[int, ...]
    """-1 or +1 by factor."""

    @property
    def levels(self) -> dict[str, str]:
        """Level by factor."""
        pairs = zip(self.factors, self.signs, strict=True)
        return {factor.name: factor.levels[sign > 0] for factor, sign in pairs}

    @property
    def name(self) -> str:
        """The levels in words."""
        return "-".join(self.levels.values())


@dataclass(frozen=True)
class StudyRun:
    """A cell under a training seed."""

    cell: DesignCell
    seed: int
    """Of initial weights, of the world of pretraining and of the order of texts."""

    @property
    def name(self) -> str:
        """DesignCell and seed."""
        return f"{self.cell.name}.seed{self.seed}"


class Study(Strict):
    """The whole design."""

    seeds: tuple[int, ...]
    dataset: str
    """The facts that are finetuned."""
    known: int
    """Movies of pretraining that the recipient is asked, of those in all wordings."""
    prompts: tuple[str, ...]
    factors: tuple[Factor, ...]
    shapes: Mapping[str, Shape]
    """By the level of the factor `layers`."""
    model: ModelSettings
    criteria: Criteria
    training: StudyTraining

    @property
    def cells(self) -> tuple[DesignCell, ...]:
        """All combinations of levels, those whose signs have the product +1 first."""
        whole = [DesignCell(self.factors, s) for s in product((-1, 1), repeat=len(self.factors))]
        return tuple(sorted(whole, key=lambda cell: -prod(cell.signs)))

    @property
    def runs(self) -> tuple[StudyRun, ...]:
        """All cells of the first seed, then of the next: balanced as early as can be."""
        return tuple(StudyRun(cell, seed) for seed, cell in product(self.seeds, self.cells))

    def chosen(self, names: Sequence[str], seeds: Sequence[int] = ()) -> tuple[StudyRun, ...]:
        """Runs by name, or those of a cell by its name; all of them where none is given.

        Args:
            names: Of runs or cells.
            seeds: Only runs of these; by default of all.

        Raises:
            UnknownNameError: There is no such run or cell.
            InputError: A seed is none of the design's.
        """
        runs = [run.name for run in self.runs]
        known = {cell.name for cell in self.cells}.union(runs)
        for name in names:
            if name not in known:
                raise UnknownNameError("run of the study", name, runs)
        if unknown := [seed for seed in seeds if seed not in self.seeds]:
            seeds_text = ", ".join(map(str, self.seeds))
            raise InputError(f"the study has no seed {unknown[0]}; its seeds are {seeds_text}")
        wanted = [run for run in self.runs if not seeds or run.seed in seeds]
        return tuple(r for r in wanted if not names or r.name in names or r.cell.name in names)

    def recipe(self) -> Recipe:
        """World and training as a recipe of the tiny pairs has them; the model is another."""
        shared = dict(self.training)
        del shared["finetunings"]
        return Recipe(
            name="study",
            model_type="kgbench_switched",
            config={},
            bos=False,
            dataset=self.dataset,
            seed=self.seeds[0],
            **shared,
        )

    def config(self, cell: DesignCell) -> dict[str, Any]:
        """Arguments of a cell's configuration, but those that follow from the tokenizer."""
        levels = cell.levels
        shape = self.shapes[levels["layers"]]
        return {
            "hidden_size": shape.width,
            "num_hidden_layers": int(levels["layers"]),
            "num_attention_heads": self.model.heads,
            "intermediate_size": shape.inner[levels["ffn"]],
            "max_position_embeddings": self.model.positions,
            "parallel": levels["blocks"] == "parallel",
            "rotary": levels["positions"] == "rotary",
            "gated": levels["ffn"] == "gated",
            "tie_word_embeddings": self.model.tied,
        }

    def identity(self, run: StudyRun, facts: str) -> str:
        """SHA-256 of all inputs of a run's rows.

        Args:
            run: The run.
            facts: Content hash of the facts.
        """
        content = {
            "config": self.config(run.cell),
            "seed": run.seed,
            "training": self.model_dump(
                mode="json", include={"training", "known", "prompts", "criteria"}
            ),
            "facts": facts,
        }
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@cache
def study_design() -> Study:
    """The design as it is shipped."""
    return Study.model_validate(read_toml(__package__, "design"))
