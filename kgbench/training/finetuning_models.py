"""The model that is finetuned: how it is loaded, given an adapter, and stored."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from kgbench.data import Dataset, load_prompts
from kgbench.errors import InputError, ModelError
from kgbench.models.checkpoints import Checkpoint
from kgbench.models.configuration import read_config
from kgbench.models.family import Family, family_in, load_family
from kgbench.models.pair import DTYPES, ModelPair, prepare
from kgbench.training.checkpoints import ATTENTION, freeze
from kgbench.training.finetuning_recipes import FinetuningRecipe
from kgbench.training.scoring import PROMPTS, hits
from kgbench.training.stages import bf16_helps, quiet

__all__ = [
    "adapted",
    "empty_model",
    "load_recipient",
    "machine",
    "needs_peft",
    "reads_at_most",
    "score",
    "scored_prompts",
    "store",
    "trainable",
    "usable_device",
]

SCORED = 200
"""Facts that the scores on a card are of, at most."""
_TOKENIZER_FILES = ("*token*.json", "*.model", "vocab.*", "merges.txt", "*.jinja")


def usable_device(name: str) -> str:
    """Where to train: `auto` is a GPU where there is one.

    Raises:
        InputError: There is no such device here.
    """
    here = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return next(device for device, there in here.items() if there)
    if not here.get(name, False):
        raise InputError(
            f"the device {name!r} cannot be used here: expected auto, {', '.join(device for device, there in here.items() if there)}"
        )
    return name


def machine(device: str) -> dict[str, Any]:
    """Arguments of the Trainer for a device: half precision in the products where the hardware multiplies it, fp32 in the weights."""
    if device == "cpu":
        return {"use_cpu": True, "bf16": bf16_helps()}
    if device == "cuda":
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return {"bf16": bf16, "fp16": not bf16}
    return {}


def empty_model(place: Checkpoint) -> PreTrainedModel:
    """A checkpoint's model without its weights, to count them.

    Raises:
        ModelError: The library makes no model of the configuration, or kgbench does not know its family.
    """
    family_in(place.directory, str(place.config.get("model_type")), place.origin)
    try:
        with torch.device("meta"), quiet():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                read_config(place.directory), trust_remote_code=False
            )
    except Exception as error:  # libraries raise what they like on a broken configuration
        raise _unloadable(place, error) from error
    return model


def load_recipient(place: Checkpoint) -> PreTrainedModel:
    """A checkpoint's model, in fp32.

    Raises:
        ModelError: It does not load, or lacks weights, which would be random ones.
    """
    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place.directory,
                config=read_config(place.directory),
                dtype=torch.float32,
                attn_implementation=ATTENTION,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
    except Exception as error:  # libraries raise what they like on a broken file
        raise _unloadable(place, error) from error
    model, info = loaded
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{place.origin} does not load: it lacks {len(missing)} of the model's weights, such as {missing[0]}"
        )
    return cast(PreTrainedModel, model)


def _unloadable(place: Checkpoint, error: Exception) -> ModelError:
    return ModelError(
        f"{place.origin} does not load: {(str(error).splitlines() or [type(error).__name__])[0]}"
    )


def _family(model: PreTrainedModel) -> Family:
    """The map of a model; one that was loaded from a checkpoint's folder knows that folder."""
    if not model.name_or_path:
        return load_family(model.config.model_type)
    folder = Path(model.name_or_path)
    return family_in(folder, model.config.model_type, f"local:{folder.name}")


def trainable(model: nn.Module) -> int:
    """Number of weights that are trained."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def reads_at_most(model: PreTrainedModel) -> int | None:
    """Most tokens that a model reads; None where it sets no bound."""
    return getattr(model.config, "max_position_embeddings", None)


def needs_peft(recipe: FinetuningRecipe) -> None:
    """Refuse a recipe that cannot be followed here.

    Raises:
        InputError: It takes PEFT, which is not installed.
    """
    if recipe.rank is not None and find_spec("peft") is None:
        raise InputError(f"the recipe {recipe.name!r} takes PEFT: pip install 'kgbench[lora]'")


def adapted(model: PreTrainedModel, recipe: FinetuningRecipe, seed: int) -> nn.Module:
    """A model of which the recipe's weights are trained: all, those of its layers, or a low-rank adapter on their linear projections."""
    if recipe.frozen:
        freeze(model, _family(model))
    if recipe.rank is None or recipe.alpha is None:
        return model
    from peft import LoraConfig, get_peft_model

    layers = f"{_family(model).layers}."
    found = {
        name: part
        for name, part in model.named_modules()
        if name.startswith(layers) and isinstance(part, nn.Linear | Conv1D)
    }
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=sorted({name.rpartition(".")[2] for name in found}),
        # Conv1D stores its weights the other way round.
        fan_in_fan_out=any(isinstance(part, Conv1D) for part in found.values()),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT 0.21 asks transformers 5.23 for something by its former name.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def store(model: nn.Module, recipient: Checkpoint, out: Path) -> PreTrainedModel:
    """Write a donor, and give the model as it will be read again.

    A whole donor is stored in the type of its recipient's checkpoint, but in float32 where that is bfloat16, whose eight bits would round
    small changes away. Of an adapted model the adapter alone is written, in PEFT's format.

    Args:
        model: As it was trained; it is of no further use.
        recipient: What it was trained from.
        out: An empty folder.

    Returns:
        The donor, in float32.
    """
    with quiet():
        if not isinstance(model, PreTrainedModel):
            donor = _store_adapter(model, recipient, out)
        else:
            model.config.use_cache = True  # training switched it off
            nn.Module.to(model, _stored_type(recipient))
            model.save_pretrained(out)
            for pattern in _TOKENIZER_FILES:
                for path in recipient.directory.glob(pattern):
                    shutil.copyfile(path, out / path.name)
            donor = nn.Module.float(model)
    for path in out.iterdir():  # weights are written for their owner's eyes only
        path.chmod(0o644)
    return donor


def _store_adapter(model: Any, recipient: Checkpoint, out: Path) -> PreTrainedModel:
    (config,) = model.peft_config.values()
    config.base_model_name_or_path = recipient.origin.partition("@")[
        0
    ]  # it had the path on this machine
    model.save_pretrained(
        out, save_embedding_layers=False
    )  # they are as they were; to find that out, PEFT would ask the Hub
    (out / "README.md").unlink(missing_ok=True)  # a card that says nothing
    return cast(PreTrainedModel, model.merge_and_unload())


def _stored_type(place: Checkpoint) -> torch.dtype:
    named: Any = place.config.get("dtype") or place.config.get("torch_dtype")
    found = DTYPES.get(str(named), torch.float32)
    return torch.float32 if found == torch.bfloat16 else found


def scored_prompts(dataset: Dataset) -> tuple[str, ...]:
    """The prompts that scores are of: headline and qa where the data set has their fields, and its own."""
    return (*(name for name in PROMPTS if _fits(dataset, name)), *dataset.templates)


def _fits(dataset: Dataset, prompt: str) -> bool:
    try:
        load_prompts(dataset, [prompt], limit=1)
    except InputError:
        return False
    return True


def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    prompts: Sequence[str],
) -> dict[str, float]:
    """Share of facts whose target is among the five likeliest next tokens, by prompt.

    Args:
        model: Any model, by itself; it is in eval mode afterwards.
        tokenizer: Its tokenizer.
        dataset: The facts, of which the first `SCORED` are asked for.
        prompts: Prompts by name.
    """
    first = dataset.subset([fact.id for fact in dataset.facts[:SCORED]])
    pair = ModelPair("alone", prepare(model), {}, tokenizer, _family(model))
    return {prompt: hits(pair, first, prompt, ["PRE"])["PRE"] for prompt in prompts}
