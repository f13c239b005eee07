"""Models that the caller holds in memory, as recipient and donors of a pair.

A pair computes with copies that share the given models' tensors, so that nothing that it does to
its models (eval mode, untied embeddings, hooks) reaches the caller's. What a model answers as it
was given is noted, and compared when the pair is verified.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel

from kgbench.errors import InputError, ModelError, first_fault, first_line
from kgbench.models.lora import (
    BaseSettings,
    active_adapters,
    adapter_layers,
    is_peft,
    put_adapters,
)
from kgbench.models.pair import make_ready
from kgbench.models.tensors import refuse_non_finite, share_equal, shared_copy
from kgbench.sites import RECIPIENT

MEMORY = "memory"
"""Origin of a model that the caller holds."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_PEFT_PATH = "base_model.model."
"""What paths begin with in a model of PEFT."""
_WRAPPED = ("_orig_mod", "module")
"""Where compiled and distributed models hold the one that they were made of."""


@dataclass(frozen=True)
class HeldModel:
    """A model of a pair that the caller holds."""

    given: Any
    """As given."""
    part: str
    """`recipient`, or the donor's name."""
    origin: str = MEMORY
    is_adapter: bool = False
    """Adapters in memory are part of the model."""

    @property
    def who(self) -> str:
        """What to call it in an error."""
        return RECIPIENT if self.part == RECIPIENT else f"donor {self.part!r}"

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model of transformers, with the layers of adapters that are in it.

        Raises:
            ModelError: It is none, or one whose weights cannot be read where they are.
        """
        model = self.given
        if is_peft(model):  # of which some have no one base
            model = getattr(model, "get_base_model", lambda: None)()
        if not isinstance(model, PreTrainedModel) or not hasattr(
            model.get_output_embeddings(), "weight"
        ):
            inner = next((name for name in _WRAPPED if hasattr(self.given, name)), None)
            raise ModelError(
                f"{self.who} is a {type(self.given).__name__}; expected a causal language model "
                "of transformers, a PeftModel, a directory or a Hub id"
                + (f": give the model inside it (its .{inner})" if inner else "")
            )
        is_quantized = getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None)
        if is_quantized or not all(isinstance(w, Tensor) for w in model.state_dict().values()):
            raise ModelError(
                f"{self.who} is quantised, and a graft needs plain weights: dequantise it "
                "(model.dequantize()), or give the model before that"
            )
        devices = sorted({str(weight.device) for weight in model.parameters()})
        if "meta" in devices or len(devices) > 1:
            where = " and ".join(devices).replace("meta", "disk")
            move = "" if "meta" in devices else "move it to one device (model.to(DEVICE)), or "
            raise ModelError(
                f"{self.who} is on {where}: {move}give its directory or Hub id with device_map"
            )
        return model

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, with its default values."""
        return dict(self.model.config.to_dict())

    @property
    def _is_before(self) -> bool:
        """Whether it is PEFT's model as a recipient, which is the one with the adapter off."""
        return self.part == RECIPIENT and is_peft(self.given)

    def read(
        self, attention: str | None, probe: Sequence[int], recipient: PreTrainedModel | None = None
    ) -> tuple[PreTrainedModel, Float[Tensor, "token vocabulary"]]:
        """The model ready for a pair, and what it answers to some tokens as it was given.

        Of an adapted model only what its adapters add is held besides its base.

        Args:
            attention: The pair's attention backend; by default the library's.
            probe: Token ids.
            recipient: The pair's recipient, where this is a donor.

        Raises:
            ModelError: It cannot be copied, computed or read, or is no donor of the recipient.
            InputError: It has hooks.
        """
        layers = adapter_layers(self.model)
        self._check_adapters(layers)
        refuse_hooks(self.given, who=self.who)
        if recipient is not None:
            for what in ("dtype", "device"):
                ours, theirs = getattr(recipient, what), getattr(self.model, what)
                if ours == theirs:
                    continue
                first, second = (str(each).removeprefix("torch.") for each in (theirs, ours))
                to = repr(second) if what == "device" else torch.promote_types(ours, theirs)
                raise ModelError(
                    f"{self.who} is {'of type' if what == 'dtype' else 'on'} {first}, the "
                    f"recipient {second}; bring both to one by model.to({to})"
                )
        try:
            copy: Any = shared_copy(self.given)
        except RuntimeError as error:  # besides its weights it holds results that take gradients
            raise ModelError(
                f"{self.who} does not copy ({first_line(error)}): save it (save_pretrained), and "
                "give its folder"
            ) from error
        _remove_hooks(copy)
        with copy.disable_adapter() if self._is_before else nullcontext():
            answer = answers(copy.eval(), probe, self.who)
        ready = copy.get_base_model() if is_peft(copy) else copy
        for path, layer in adapter_layers(ready):
            replaced = hasattr(layer, "original_module")
            ready.set_submodule(path, layer.original_module if replaced else layer.get_base_layer())
        usual = "sdpa" if ready._supports_sdpa else "eager"
        ready.config._attn_implementation = attention or usual
        make_ready(ready)
        for name, tensor in ready.state_dict().items():
            refuse_non_finite(name, tensor, self.who)
        if layers and recipient is not None:
            share_equal(recipient, ready)  # a head that was untied
        if not self._is_before:
            put_adapters(ready, layers, self.who)
        return ready, answer

    def _check_adapters(self, layers: Sequence[tuple[str, Any]]) -> None:
        """Refuse adapters that are no weights, are all off, or whose base is not at hand."""
        for path, layer in layers:
            if not hasattr(layer, "_get_available_adapters"):
                raise ModelError(
                    f"{self.who} has PEFT's {type(layer).__name__} at {path}, which no weights stand "
                    "for, and a graft takes weights; give a donor whose adapter changes weights, "
                    "such as LoRA"
                )
            if getattr(layer, "merged", False):
                raise ModelError(
                    f"{self.who} has its adapter merged into the base at {path}: take it out "
                    "first (model.unmerge_adapter())"
                )
        is_on = [bool(active_adapters(layer)) for _, layer in layers]
        if layers and not any(is_on) and self.part != RECIPIENT:
            raise ModelError(
                f"{self.who} has its adapter off in all layers, which leaves its base: "
                "switch it on (PEFT: model.base_model.enable_adapter_layers(), transformers: "
                "model.enable_adapters()), or leave the block of disable_adapter()"
            )
        for name in self.given.active_adapters if is_peft(self.given) else ():
            config = self.given.peft_config[name]
            if config.is_prompt_learning:
                raise ModelError(
                    f"{self.who} has an adapter of type {config.peft_type.value}, which adds "
                    "tokens to each prompt, and a graft takes weights; give a donor whose adapter "
                    "changes weights, such as LoRA"
                )
            if not self._is_before:
                continue
            try:
                BaseSettings.model_validate(config, from_attributes=True)
            except ValidationError as error:
                raise ModelError(
                    f"the recipient would be {type(self.given).__name__}'s base, which training "
                    f"changed too ({first_fault(error, 'the whole')}): give the model before "
                    "training as the recipient"
                ) from error


def answers(model: nn.Module, probe: Sequence[int], who: str) -> Float[Tensor, "token vocabulary"]:
    """Logits of a model by its own forward pass.

    Args:
        model: A model in eval mode.
        probe: Token ids.
        who: What to call it in an error.

    Raises:
        ModelError: It does not compute.
    """
    device = next(model.parameters()).device
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT's advice for training
            ids = torch.tensor([list(probe)], device=device)
            logits: Tensor = model(input_ids=ids, use_cache=False, return_dict=True).logits[0]
    except Exception as error:  # models raise what they like
        raise ModelError(
            f"{who} does not compute as it was given ({first_line(error)}); give a model that "
            "answers to model(input_ids=ids)"
        ) from error
    return logits


# ------------------------------------------------------------------------------------------- hooks


def _remove_hooks(copy: nn.Module) -> None:
    """Leave the class's own forward pass, without the libraries' hooks, which change no answer."""
    if any(hasattr(module, "_hf_hook") for module in copy.modules()):
        from accelerate.hooks import remove_hook_from_module

        remove_hook_from_module(copy, recurse=True)
    for module in copy.modules():
        for kind in _HOOKS:
            getattr(module, kind).clear()
        for replaced in ("forward", "_original_forward"):  # accelerate's keeps the class's
            vars(module).pop(replaced, None)


def hooked_modules(model: nn.Module) -> list[str]:
    """Paths of modules with hooks that are no library's, or another forward than their class's."""
    foreign = []
    for path, module in model.named_modules():
        hooks: list[Any] = []
        for kind in _HOOKS:
            hooks += getattr(module, kind).values()
        patched = "forward" in vars(module) and "_original_forward" not in vars(module)
        if patched or not all(map(_is_of_library, hooks)):
            foreign.append(path.removeprefix(_PEFT_PATH) or type(module).__name__)
    return foreign


def _is_of_library(hook: Any) -> bool:
    hook = getattr(hook, "func", hook)  # of a partial function
    place = getattr(hook, "__module__", None) or type(hook).__module__
    return place.partition(".")[0] in ("transformers", "peft", "accelerate", "kgbench")


def global_hooks() -> list[Any]:
    """The hooks that torch calls at every module of the process."""
    hooks: list[Any] = []
    for name, kind in sorted(vars(torch_module).items()):
        if name.startswith("_global_") and name.endswith("_hooks"):
            hooks += kind.values()
    return hooks


def refuse_hooks(*models: nn.Module, who: str = "a model of the pair") -> None:
    """Refuse to compute where models may answer otherwise than by their weights.

    Args:
        *models: Models.
        who: What to call one in an error.

    Raises:
        InputError: There are hooks, at some modules or at all, or torch chooses types by itself.
    """
    for model in models:
        if foreign := hooked_modules(model):
            more = ", …" if len(foreign) > 3 else ""
            raise InputError(
                f"{who} has hooks or replaced functions at {', '.join(foreign[:3])}{more}, which "
                "may change its answers: remove them first (their handles' remove())"
            )
    if hooks := global_hooks():
        named = getattr(hooks[0], "__qualname__", type(hooks[0]).__name__)
        raise InputError(
            f"torch has a hook at all modules ({named}, by torch.nn.modules.module.register_…), "
            "which may change every answer: remove it first (its handle's remove())"
        )
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise InputError(
            "torch.autocast is on, so that models compute in another type than their weights': "
            "leave its block, or say the type by dtype"
        )
