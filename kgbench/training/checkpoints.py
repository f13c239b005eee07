"""New models, and checkpoints as they are shipped: fp16 safetensors with a tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from kgbench.models.configuration import read_config
from kgbench.models.family import Family
from kgbench.training.recipes import Recipe
from kgbench.training.stages import quiet

__all__ = ["ATTENTION", "freeze", "load_model", "new_model", "save_checkpoint"]

ATTENTION = "eager"
"""Scaled-dot-product kernels are slow backwards in bf16 on CPUs; sequences are short."""


def new_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """A model with random weights, in fp32."""
    special = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("pad", "bos", "eos")
    }
    config = AutoConfig.for_model(
        recipe.model_type, vocab_size=len(tokenizer), **special, **recipe.config
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation=ATTENTION, dtype=torch.float32
        )
    return model


def freeze(model: PreTrainedModel, family: Family) -> None:
    """Leave everything outside the layers as it is: embeddings, final norm and head."""
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.startswith(f"{family.layers}."))


def save_checkpoint(model: PreTrainedModel, tokenizer: Path, directory: Path) -> None:
    """Write a model, its weights rounded to fp16, beside the files of its stored tokenizer."""
    model.config.use_cache = True  # training switched it off
    with quiet():
        model.half().save_pretrained(directory)
    shutil.copytree(tokenizer, directory, dirs_exist_ok=True)
    for path in directory.iterdir():  # weights are written for their owner's eyes only
        path.chmod(0o644)


def load_model(directory: Path) -> PreTrainedModel:
    """A stored model in fp32, for training."""
    with quiet():
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            directory,
            config=read_config(directory),
            dtype=torch.float32,
            attn_implementation=ATTENTION,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    return model
