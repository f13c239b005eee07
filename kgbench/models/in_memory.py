"""Models that the caller holds in memory, as recipient and donors of a pair.

A pair computes with copies that share the given models' tensors, so that nothing that it does to
its models (eval mode, untied embeddings, hooks) reaches the caller's.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedModel

from kgbench.errors import ModelError, first_line
from kgbench.models.lora import (
    adapted_donor,
    adapter_layers,
    is_peft,
    refuse_more_than_layers,
)
from kgbench.models.pair import make_ready
from kgbench.models.tensors import refuse_non_finite, same_bits, shared_copy

MEMORY = "memory"
"""Origin of a model that the caller holds."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_LISTED = 3
"""Modules that a message names."""


class ModelHooksWarning(UserWarning):
    """A model has hooks or replaced functions, which a pair leaves out."""


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
        if not self.is_adapted and (layers := adapter_layers(found)):
            raise ModelError(
                f"{self.part} has layers of an adapter in it, such as {layers[0][0]}: give the "
                "PeftModel (peft: PeftModel.from_pretrained(MODEL, FOLDER)), or its folder as donor"
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
        self._check_adapter()
        return adapted_donor(recipient, self.given, f"donor {self.part!r}")

    def _check_adapter(self) -> None:
        """Refuse a PEFT model that is more than a base and the layers of one active adapter."""
        names = list(self.given.active_adapters)
        if len(names) != 1:
            raise ModelError(
                f"donor {self.part!r} has {len(names)} active adapters; expected one: choose it by "
                "model.set_adapter(NAME)"
            )
        settings = self.given.peft_config[names[0]].to_dict()
        plain = json.loads(json.dumps(settings, default=list))
        refuse_more_than_layers(plain, f"donor {self.part!r}", in_memory=True)


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
    try:
        copy = shared_copy(model)
    except RuntimeError as error:  # beside its weights it holds results that take gradients
        raise ModelError(
            f"{part} does not copy ({first_line(error)}): save it (save_pretrained), and give its "
            "folder"
        ) from error
    for path, layer in adapter_layers(copy):
        if getattr(layer, "merged", False):
            raise ModelError(
                f"{part} has its adapter merged into the base at {path}: take it out first "
                "(model.unmerge_adapter())"
            )
        replaced = hasattr(layer, "original_module")
        copy.set_submodule(path, layer.original_module if replaced else layer.get_base_layer())
    return copy
