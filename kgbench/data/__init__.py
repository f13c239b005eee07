"""Data: facts, prompts, and where the parts of a prompt are."""

from __future__ import annotations

from kgbench.data.facts import (
    Dataset,
    Fact,
    dataset_names,
    describe,
    hash_facts,
    is_shipped,
    load_dataset,
)
from kgbench.data.generators import generate_fake_movies
from kgbench.data.imports import ImportOptions
from kgbench.data.prompts import (
    Prompt,
    Question,
    builtin_prompts,
    load_prompts,
    prompt_hash,
    prompt_names,
)
from kgbench.data.spans import token_regions
from kgbench.data.training_texts import TrainingText, training_texts

__all__ = [
    "Dataset",
    "Fact",
    "ImportOptions",
    "Prompt",
    "Question",
    "TrainingText",
    "builtin_prompts",
    "dataset_names",
    "describe",
    "generate_fake_movies",
    "hash_facts",
    "is_shipped",
    "load_dataset",
    "load_prompts",
    "prompt_hash",
    "prompt_names",
    "token_regions",
    "training_texts",
]
