"""Models that the caller holds in memory, as recipient and donors of a pair.

A pair computes with copies that share the given models' tensors, so that nothing that it does to
its models (eval mode, untied embeddings, hooks) reaches the caller's.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from kgbench.errors import ModelError
from kgbench.models.lora import (
    Adapter,
    adapter_config,
    changes_base,
    low_rank_donor,
    named_tensors,
)
from kgbench.models.pair import make_ready
from kgbench.models.tensors import put_weight, refuse_non_finite, same_bits, shared_copy

if TYPE_CHECKING:
    from peft import PeftModel

MEMORY = "memory"
"""Origin of a model that the caller holds."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LISTED = 3
"""Modules that a message names."""


class ModelHooksWarning(UserWarning):
    """A model has hooks or replaced functions, which a pair leaves out."""


def is_peft(model: object) -> bool:
    """Whether a model is one of PEFT's, which is not imported for the question."""
    kinds = type(model).__mro__
    return any(kind.__module__.startswith("peft.") for kind in kinds)


@dataclass(frozen=True)
class HeldModel:
    """A model of a pair that the caller holds."""

    given: Any
    """As given."""
    part: str
    """`recipient`, or the donor's name."""
    origin: str = MEMORY

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model of transformers; a PEFT model's with the layers of its adapters in it.

        Raises:
            ModelError: It is none, or one whose weights cannot be read where they are.
        """
        found = self.given.get_base_model() if self.is_adapted else self.given
        if not isinstance(found, PreTrainedModel):
            raise ModelError(
                f"{self.part} is a {type(self.given).__name__}; expected a causal language model "
                "of transformers, a PeftModel, a directory or a Hub id"
            )
        if getattr(found, "is_quantized", False) or getattr(found, "hf_quantizer", None):
            raise ModelError(
                f"{self.part} is quantised, and a graft needs plain weights: load it without "
                "quantization_config, or dequantise it (model.dequantize())"
            )
        devices = sorted({str(weight.device) for weight in found.parameters()})
        if "meta" in devices or len(devices) > 1:
            where = " and ".join(devices).replace("meta", "disk")
            raise ModelError(
                f"{self.part} is on {where}: move it to one device (model.to(DEVICE)), or give its "
                "directory or Hub id with device_map"
            )
        return found

    @property
    def is_adapted(self) -> bool:
        """Whether it is a PEFT model."""
        return is_peft(self.given)

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, with its default values."""
        return dict(self.model.config.to_dict())

    def base(self, attention: str) -> PreTrainedModel:
        """The model without adapters, ready for a pair."""
        copy = _without_adapters(self.model, self.part)
        _remove_hooks(copy, self.part)
        copy.config._attn_implementation = attention
        ready = make_ready(copy)
        for name, tensor in ready.state_dict().items():
            refuse_non_finite(name, tensor, self.part)
        return ready

    def donor(self, recipient: PreTrainedModel, attention: str) -> PreTrainedModel:
        """The model as a donor of a recipient, ready for a pair.

        Of an adapted model only what the adapter adds is held beside the recipient's weights.

        Raises:
            ModelError: Its base has other weights than the recipient, or its adapter cannot be
                read.
        """
        for what in ("dtype", "device"):
            if getattr(recipient, what) != getattr(self.model, what):
                wanted = str(getattr(recipient, what)).removeprefix("torch.")
                found = str(getattr(self.model, what)).removeprefix("torch.")
                to = f"torch.{wanted}" if what == "dtype" else f"{wanted!r}"
                raise ModelError(
                    f"donor {self.part!r} is {'of type' if what == 'dtype' else 'on'} {found}, the "
                    f"recipient {wanted}; convert one of them, such as by model.to({to})"
                )
        if not self.is_adapted:
            return self.base(attention)
        ours = dict(recipient.named_parameters())
        base = make_ready(_without_adapters(self.model, self.part))
        for name, theirs in base.named_parameters():
            if name not in ours or not same_bits(ours[name].detach(), theirs.detach()):
                raise ModelError(
                    f"donor {self.part!r} is an adapter in a model whose {name} differs from the "
                    "recipient's; leave out the recipient, which then is the adapter's own base"
                )
        return _adapted_donor(recipient, self.given, self.part)


# ------------------------------------------------------------------------------------------- hooks


def _remove_hooks(copy: PreTrainedModel, part: str) -> None:
    """Leave the class's own forward pass; say so where the caller's model had another.

    Hooks of the libraries, which move tensors or turn on gradients, change no answer.
    """
    if any(hasattr(module, "_hf_hook") for module in copy.modules()):
        from accelerate.hooks import remove_hook_from_module

        remove_hook_from_module(copy, recurse=True)
    foreign = []
    for path, module in copy.named_modules():
        hooks: list[Any] = []
        for kind in _HOOKS:
            hooks += getattr(module, kind).values()
            getattr(module, kind).clear()
        patched = "forward" in vars(module) and "_original_forward" not in vars(module)
        for replaced in ("forward", "_original_forward"):  # accelerate's keeps the class's
            vars(module).pop(replaced, None)
        if patched or not all(map(_is_of_library, hooks)):
            foreign.append(path or type(module).__name__)
    if foreign:
        named = ", ".join(foreign[:_LISTED]) + (", …" if len(foreign) > _LISTED else "")
        warnings.warn(
            f"{part} has hooks or replaced functions at {named}; the pair leaves them out and "
            "computes what its weights answer",
            ModelHooksWarning,
            stacklevel=2,
        )


def _is_of_library(hook: Any) -> bool:
    place = getattr(hook, "__module__", None) or type(hook).__module__
    return place.partition(".")[0] in ("transformers", "peft", "accelerate")


# ---------------------------------------------------------------------------------------- adapters


def _without_adapters(model: PreTrainedModel, part: str) -> PreTrainedModel:
    """A copy of a model without the layers of its adapters, which shares its tensors."""
    copy = shared_copy(model)
    for path, layer in _adapter_layers(copy):
        if getattr(layer, "merged", False):
            raise ModelError(
                f"{part} has its adapter merged into the base at {path}: take it out first "
                "(model.unmerge_adapter())"
            )
        replaced = hasattr(layer, "original_module")
        copy.set_submodule(path, layer.original_module if replaced else layer.get_base_layer())
    return copy


def _adapter_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """The modules that PEFT put in the place of others, outermost first."""
    found: list[tuple[str, Any]] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer, _ in found)
        if is_peft(module) and not inside:
            found.append((path, module))
    return found


def _adapted_donor(recipient: PreTrainedModel, model: PeftModel, part: str) -> PreTrainedModel:
    """The donor that the active adapter of a PEFT model makes of the recipient."""
    from peft import get_peft_model_state_dict

    active = list(model.active_adapters)
    if len(active) != 1:
        raise ModelError(
            f"donor {part!r} has {len(active)} active adapters; expected one: choose it by "
            "model.set_adapter(NAME)"
        )
    (name,) = active
    settings = json.loads(json.dumps(model.peft_config[name].to_dict(), default=list))
    if settings.get("peft_type") != "LORA":
        raise ModelError(
            f"donor {part!r} is an adapter of type {settings.get('peft_type')!r}; only LORA is "
            "read from memory: give the merged model (model.merge_and_unload())"
        )
    if changed := changes_base(settings):
        raise ModelError(
            f"donor {part!r}: its adapter was trained with {changed}, which changes the base's own "
            "weights, so that the model with the adapter off is not the recipient; give the model "
            "before the adapter was added as recipient, and the merged one "
            "(model.merge_and_unload()) as donor"
        )
    try:
        config = adapter_config(settings, part)
    except ModelError:  # it is more than low-rank rows
        return _merged_donor(recipient, model, name)
    # The embeddings are asked for by name only where they were trained.
    stored = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    tensors = named_tensors(stored, part)
    return low_rank_donor(recipient, Adapter(config, tensors), part)


def _merged_donor(recipient: PreTrainedModel, model: PeftModel, name: str) -> PreTrainedModel:
    """The donor of an adapter that is more than low-rank rows, such as DoRA.

    PEFT itself merges it, layer by layer; the other weights are the recipient's.
    """
    donor = shared_copy(recipient)
    with torch.no_grad():
        for path, layer in _adapter_layers(model.get_base_model()):
            if hasattr(layer, "original_module"):
                module = layer.modules_to_save[name]
            else:
                merged = deepcopy(layer)
                merged.merge(safe_merge=True, adapter_names=[name])
                module = merged.get_base_layer()
            for leaf, weight in module.named_parameters():
                put_weight(donor, f"{path}.{leaf}", weight.detach().clone())
    donor.eval()
    return donor
