"""Donors of the shipped pairs as whole checkpoints, as finetuning elsewhere leaves them."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from kgbench.models.catalog import DELTA, zoo_path
from kgbench.models.tensors import apply_delta

__all__ = ["part_of", "whole_donor"]


def part_of(pair: str, part: str) -> Path:
    """The folder of a shipped pair's `recipient` or `sft`."""
    folder = zoo_path(f"zoo:{pair}/{part}")
    assert folder is not None
    return folder


def whole_donor(pair: str, folder: Path) -> Path:
    """Write the donor of a shipped pair with `save_pretrained`, its tokenizer included, and give
    the folder.
    """
    recipient = part_of(pair, "recipient")
    model = AutoModelForCausalLM.from_pretrained(recipient, dtype=torch.float32)
    apply_delta(model, part_of(pair, "sft") / DELTA, pair)
    model.save_pretrained(folder)
    for path in recipient.glob("tokenizer*"):
        shutil.copy(path, folder / path.name)
    return folder
