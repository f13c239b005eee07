"""Models for training, and how donors are stored."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from kgbench.errors import ModelError, first_line
from kgbench.models.checkpoints import Checkpoint, read_model_config
from kgbench.models.family_map import Family, family_in, load_family
from kgbench.models.library import quiet_library
from kgbench.models.loading import DTYPES, read_empty
from kgbench.runner.training.recipes import FinetuningRecipe

ATTENTION = "eager"
"""Scaled-dot-product kernels are slow backwards in bf16 on CPUs; sequences are short."""

_TOKENIZER_FILES = ("*token*.json", "*.model", "vocab.*", "merges.txt", "*.jinja")


def freeze(model: PreTrainedModel, family: Family) -> None:
    """Train the layers alone: embeddings, final norm and head stay fixed."""
    for name, weight in model.named_parameters():
        weight.requires_grad_(name.startswith(f"{family.layers}."))


def load_recipient(place: Checkpoint, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A checkpoint's model, for training.

    Args:
        place: The checkpoint.
        dtype: Type of its weights.

    Raises:
        ModelError: It does not load, or lacks weights, which would be random.
    """
    try:
        with quiet_library():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place.directory,
                config=read_model_config(place.directory),
                dtype=dtype,
                attn_implementation=ATTENTION,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # libraries raise anything on a broken file
        raise ModelError(f"{place.origin} does not load: {first_line(error)}") from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{place.origin} does not load: it lacks {len(missing)} of the model's weights, "
            f"such as {missing[0]}"
        )
    return cast(PreTrainedModel, model)


def meta_model(place: Checkpoint) -> PreTrainedModel:
    """A checkpoint's model without weights, to count them.

    Raises:
        ModelError: The library cannot build the model, or kgbench does not know its family.
    """
    family_in(place.directory, str(place.config.get("model_type")), place.origin)
    return read_empty(place, torch.float32, ATTENTION)


def family_of(model: PreTrainedModel) -> Family:
    """The family map of a model, from its checkpoint's folder where that has one."""
    if not model.name_or_path:
        return load_family(model.config.model_type)
    folder = Path(model.name_or_path)
    return family_in(folder, model.config.model_type, f"local:{folder.name}")


def trained_parameters(model: nn.Module) -> int:
    """Number of trained weights."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def trainable_model(model: PreTrainedModel, recipe: FinetuningRecipe, seed: int) -> nn.Module:
    """A model with the recipe's trained weights.

    These are all weights, those of its layers, or a low-rank adapter on every linear projection of
    its layers.
    """
    if recipe.frozen:
        freeze(model, family_of(model))
    if recipe.rank is None or recipe.alpha is None:
        return model
    from peft import LoraConfig, get_peft_model

    layers = f"{family_of(model).layers}."
    targets, transposed = set(), False
    for name, module in model.named_modules():
        if name.startswith(layers) and isinstance(module, nn.Linear | Conv1D):
            targets.add(name.rpartition(".")[2])
            transposed = transposed or isinstance(module, Conv1D)
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=sorted(targets),
        fan_in_fan_out=transposed,  # Conv1D stores its weights as [in, out]
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT 0.21 uses a deprecated name of transformers 5.23.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def publish_files(folder: Path) -> None:
    """Let everyone read the files of a folder: safetensors writes them for their owner alone."""
    for path in folder.iterdir():
        path.chmod(0o644)


def store_donor(
    model: nn.Module, recipient: Checkpoint, folder: Path, stored: str | None = None
) -> PreTrainedModel:
    """Write a donor, and return the model that will be read from the files.

    A donor has the type of its recipient's checkpoint, but float32 for bfloat16, whose eight bits
    would round small changes away. Of a model with an adapter, the adapter alone is written, in
    PEFT's format.

    Args:
        model: The trained model; not to be used afterwards.
        recipient: The checkpoint that it was trained from.
        folder: An empty folder.
        stored: Type of a stored adapter, where it is not that of its training.

    Returns:
        The donor in float32.
    """
    with quiet_library():
        if not isinstance(model, PreTrainedModel):
            peft_model: Any = model
            (config,) = peft_model.peft_config.values()
            # Not the path on this machine, which PEFT put there.
            config.base_model_name_or_path = recipient.origin.partition("@")[0]
            adapter = [weight for weight in model.parameters() if weight.requires_grad]
            if stored is not None:
                _to_type(adapter, DTYPES[stored])
            # The embeddings are unchanged; to find that out, PEFT would ask the Hub.
            peft_model.save_pretrained(folder, save_embedding_layers=False)
            if stored is not None:
                _to_type(adapter, torch.float32)
            (folder / "README.md").unlink(missing_ok=True)  # an empty model card
            donor = cast(PreTrainedModel, peft_model.merge_and_unload())
        else:
            dtype = training_type(recipient)
            nn.Module.to(model, torch.float32 if dtype == torch.bfloat16 else dtype)
            model.save_pretrained(folder)
            for pattern in _TOKENIZER_FILES:
                for path in recipient.directory.glob(pattern):
                    shutil.copyfile(path, folder / path.name)
            donor = nn.Module.float(model)
    publish_files(folder)
    return donor


def _to_type(weights: Sequence[nn.Parameter], dtype: torch.dtype) -> None:
    for weight in weights:
        weight.data = weight.data.to(dtype)


def training_type(recipient: Checkpoint, name: str | None = "auto") -> torch.dtype:
    """Type of weights by name: float32 for None, the checkpoint's for `auto`."""
    stored: Any = recipient.config.get("dtype") or recipient.config.get("torch_dtype")
    type_name = str(stored) if name == "auto" else name
    return DTYPES.get(type_name or "float32", torch.float32)
