"""Data: facts, prompts, and the token regions of prompts."""

from __future__ import annotations

from kgbench.data.cases import Message
from kgbench.data.facts import (
    Dataset,
    Fact,
    data_card,
    dataset_names,
    hash_facts,
    is_shipped,
    load_dataset,
)
from kgbench.data.imports import ImportOptions
from kgbench.data.prompts import (
    Prompt,
    Question,
    builtin_prompts,
    fitting_prompts,
    load_prompts,
    prompt_hash,
    prompt_names,
    token_regions,
)
from kgbench.data.training_texts import TrainingText, training_texts

__all__ = [
    "Dataset",
    "Fact",
    "ImportOptions",
    "Message",
    "Prompt",
    "Question",
    "TrainingText",
    "builtin_prompts",
    "data_card",
    "dataset_names",
    "fitting_prompts",
    "hash_facts",
    "is_shipped",
    "load_dataset",
    "load_prompts",
    "prompt_hash",
    "prompt_names",
    "token_regions",
    "training_texts",
]
